"""Every check of the project, as sessions; `uv run --only-group dev nox -s tests` is the README's test command.

Locked sessions take versions from ``uv.lock`` (as constraints), `wheel` installs one built wheel **alone**, `minimums`
takes the lowest versions that the wheels allow. Nothing ever asks an index for a sibling: they are named by path.
"""

import os
import shutil
import tempfile
from pathlib import Path

import nox

nox.options.default_venv_backend = "uv"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True
nox.options.sessions = ["lint", "typecheck", "layering", "wheel", "tests"]

ROOT = Path(__file__).parent
PACKAGES = ("core", "zephyr", "rigging", "train", "delphi")
EXTRAS = {"core": "[s3,ray,serve]", "zephyr": "[fast,hf,ray,s3]", "train": "[report,s3,tensorboard,trackio,wandb]"}


def export(session: nox.Session, *options: str) -> str:
    """A requirements file out of the lock file, for ``-r`` or ``-c``."""
    path = Path(session.create_tmp()).resolve() / f"{'-'.join(o.strip('-') for o in options)}.txt"
    session.run_install(
        *("uv", "export", "--frozen", "--quiet", "--no-hashes", "--no-emit-workspace", *options, "-o", str(path)),
        external=True,
        silent=True,
    )
    return str(path)


def locked(session: nox.Session) -> list[str]:
    """The constraint that pins everything the lock file knows."""
    return ["-c", export(session, "--all-packages", "--all-groups", "--all-extras")]


def members(*packages: str) -> list[str]:
    """Editable installs of the named wheels from this tree, with their extras."""
    return [part for p in packages for part in ("-e", f"lib/marin-{p}{EXTRAS.get(p, '')}")]


def pytest(session: nox.Session, *arguments: str, cwd: Path = ROOT) -> None:
    """Runs pytest with a fixed hash seed and no accelerator, from ``cwd``."""
    with session.chdir(cwd):
        # nox puts TMPDIR inside this tree; what tests write must not look like a part of the workspace.
        # Ray would take the environment of `uv run`, which runs nox, for its own workers.
        env = {"JAX_PLATFORMS": "cpu", "PYTHONHASHSEED": "0", "TMPDIR": tempfile.gettempdir()}
        env["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
        # The same examples every time; `-- --hypothesis-profile=default` draws new ones.
        session.run("python", "-m", "pytest", "--hypothesis-profile=ci", *arguments, env=env)


@nox.session
@nox.parametrize("package", [*PACKAGES, "whole"], ids=[*PACKAGES, "whole"])
def tests(session: nox.Session, package: str) -> None:
    """One wheel's tests, or (whole) those that look at all of them together."""
    chosen = PACKAGES if package == "whole" else (package,)
    session.install(*locked(session), "-r", export(session, "--only-group", "test"), *members(*chosen))
    where = ROOT if package == "whole" else ROOT / "lib" / f"marin-{package}"
    pytest(session, "tests", *session.posargs, cwd=where)


@nox.session
def soak(session: nox.Session) -> None:
    """A training run killed at random moments, SOAK_KILLS times (20), compared bitwise with one that was not."""
    session.install(*locked(session), "-r", export(session, "--only-group", "test"), *members("train"))
    pytest(session, "tests/soak.py", "-s", *session.posargs, cwd=ROOT / "lib" / "marin-train")


@nox.session
def tpu(session: nox.Session) -> None:
    """The training step built by the compiler of TPUs, which needs none; libtpu is too large for every run."""
    session.install(*locked(session), "-r", export(session, "--only-group", "test"), *members("train"), "libtpu")
    pytest(session, "tests/tpu.py", *session.posargs, cwd=ROOT / "lib" / "marin-train")


@nox.session
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def wheel(session: nox.Session, package: str) -> None:
    """Builds one wheel, installs it alone in a clean environment, and runs its tests outside this tree."""
    with tempfile.TemporaryDirectory() as scratch:
        session.run_install("uv", "build", "--quiet", "--package", f"marin-{package}", "-o", scratch, external=True)
        (built,) = Path(scratch).glob("*.whl")
        session.install(*locked(session), "-r", export(session, "--only-group", "test"))
        session.install(*locked(session), "--reinstall-package", f"marin-{package}", str(built))
        absent = [f"marin_{p}" for p in PACKAGES if p != package] + ([] if package == "train" else ["jax"])
        probe = "import importlib.util as u, sys; sys.exit(' '.join(m for m in sys.argv[1:] if u.find_spec(m)) or 0)"
        session.run("python", "-I", "-c", probe, *absent)
        copied = Path(scratch) / "tests"
        shutil.copytree(
            ROOT / "lib" / f"marin-{package}" / "tests", copied, ignore=shutil.ignore_patterns("__pycache__")
        )
        shutil.copy(ROOT / "lib" / f"marin-{package}" / "pyproject.toml", scratch)
        pytest(session, "tests", *session.posargs, cwd=Path(scratch))


@nox.session
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def minimums(session: nox.Session, package: str) -> None:
    """The wheel's tests against the lowest versions that it declares."""
    session.install("--resolution", "lowest-direct", "-r", export(session, "--only-group", "test"), *members(package))
    pytest(session, "tests", *session.posargs, cwd=ROOT / "lib" / f"marin-{package}")


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff: rules and format."""
    session.install("-r", export(session, "--only-group", "lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def typecheck(session: nox.Session) -> None:
    """Pyrefly over all sources and experiments (ruff sees to it that every public function is annotated)."""
    groups = export(session, "--only-group", "typecheck", "--only-group", "bench")
    session.install(*locked(session), "-r", groups, *members(*PACKAGES))
    session.run("pyrefly", "check", "--summarize-errors")


@nox.session
def layering(session: nox.Session) -> None:
    """Who may import whom (import-linter), what is declared (deptry), and how long an import takes."""
    session.install(*locked(session), "-r", export(session, "--only-group", "layering"), *members(*PACKAGES))
    session.run("lint-imports")
    for package in PACKAGES:
        with session.chdir(ROOT / "lib" / f"marin-{package}"):
            session.run("deptry", "src")
    session.run("python", "bench/imports.py", "--check")


@nox.session
def build(session: nox.Session) -> None:
    """Wheels and source archives of all five into dist/."""
    session.run_install("uv", "build", "--all-packages", "-o", "dist", external=True)


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation; a warning, or a public name without a docstring, fails it."""
    session.install(*locked(session), "-r", export(session, "--only-group", "docs"), *members(*PACKAGES))
    session.run("python", "docs/undocumented.py")
    session.run("sphinx-build", "-W", "--keep-going", "-q", "docs", "docs/_build")


@nox.session
def bench(session: nox.Session) -> None:
    """Every measurement under bench/, as tables with ratios; names one to run it alone: `-- imports`."""
    session.install(*locked(session), "-r", export(session, "--only-group", "bench"), *members(*PACKAGES))
    # A GPU's step is measured where one is, by its name.
    names = session.posargs or sorted({p.stem for p in (ROOT / "bench").glob("*.py")} - {"train_gpu"})
    for name in names:
        session.run(
            "python", f"bench/{name}.py", env={"JAX_PLATFORMS": "cpu", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
        )


@nox.session(python="3.11", venv_backend="venv")
def peers(session: nox.Session) -> None:
    """Token stores read by Megatron-core's own code, models by transformers', and theirs by ours.

    In an environment of its own: torch is too large for every run.
    """
    session.install("torch==2.13.0", "numpy", "packaging", "transformers==5.24.0")
    session.install("--no-deps", "megatron-core==0.16.1")
    stores = Path(session.create_tmp()).resolve() / "stores"
    shutil.rmtree(stores, ignore_errors=True)
    write = ("uv", "run", "--no-project", "--isolated", "--with-editable", "lib/marin-zephyr", "--python", "3.12")
    session.run(*write, "tests/peers/megatron_stores.py", str(stores), external=True)
    found = [str(path.parent) for path in sorted(stores.glob("*/manifest.json"))]
    session.run("python", "tests/peers/megatron_reader.py", *found)
    models = Path(session.create_tmp()).resolve() / "models"
    shutil.rmtree(models, ignore_errors=True)
    session.run("python", "tests/peers/transformers_models.py", "write", str(models))
    exchange = ("--with-editable", "lib/marin-train", "tests/peers/marin_models.py", str(models))
    session.run(*write, *exchange, external=True, env={"JAX_PLATFORMS": "cpu"})
    session.run("python", "tests/peers/transformers_models.py", "read", str(models))


@nox.session(venv_backend="none")
def quickstart(session: nox.Session) -> None:
    """The main job by the README's own command; arguments after ``--`` are its flags."""
    session.run("uv", "run", "experiments/quickstart.py", *session.posargs, external=True, env={**os.environ})
