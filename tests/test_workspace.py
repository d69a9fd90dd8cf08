"""The workspace as a whole: versions in lock-step, the lock file's siblings, and what an experiment's run installs."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("core", "zephyr", "rigging", "train", "delphi")


def project(package: str) -> dict:
    return tomllib.loads((ROOT / "lib" / f"marin-{package}" / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def root() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def lock() -> list[dict]:
    return tomllib.loads((ROOT / "uv.lock").read_text())["package"]


def test_no_sibling_ever_resolves_from_an_index(lock):
    siblings = {p["name"]: p["source"] for p in lock if p["name"].startswith("marin")}
    assert siblings == {
        "marin-workspace": {"virtual": "."},
        **{f"marin-{p}": {"editable": f"lib/marin-{p}"} for p in PACKAGES},
    }


def test_no_dependency_asks_an_index_for_a_sibling(lock):
    for package in lock:
        groups = [package.get("dependencies", []), *package.get("optional-dependencies", {}).values()]
        for dependency in (d for group in groups for d in group if d["name"].startswith("marin")):
            assert package["name"] == "marin-workspace", f"{package['name']} depends on {dependency['name']}"
            assert "registry" not in dependency.get("source", {})


def test_every_sibling_is_bound_to_the_workspace(root):
    assert root["tool"]["uv"]["sources"] == {f"marin-{p}": {"workspace": True} for p in PACKAGES}


def test_an_experiment_installs_no_test_or_documentation_tooling(root):
    assert root["tool"]["uv"]["default-groups"] == []
    assert root["tool"]["uv"]["package"] is False
    assert set(root["dependency-groups"]) == {"dev", "test", "lint", "typecheck", "layering", "docs", "bench"}


@pytest.fixture(scope="module")
def main_job(lock) -> dict[str, list[dict]]:
    """All that `uv run experiments/...` installs: package name -> its entries in the lock file."""
    by_name: dict[str, list[dict]] = {}
    for package in lock:
        by_name.setdefault(package["name"], []).append(package)
    reached, todo = set(), [f"marin-{p}" for p in PACKAGES]
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo += [d["name"] for package in by_name[name] for d in package.get("dependencies", [])]
    return {name: by_name[name] for name in reached}


def test_the_main_job_downloads_neither_ray_nor_torch_nor_a_plotting_server(main_job):
    assert main_job.keys().isdisjoint({"ray", "torch", "plotly", "datasets", "pandas", "pytest", "nox", "tensorflow"})


def test_the_main_job_downloads_at_most_400_megabytes(main_job):
    fits = re.compile(r"-(py3|py2\.py3|cp312|cp3\d+-abi3)-.*(any|manylinux\S*x86_64)\.whl$")
    sizes = {}
    for name, entries in main_job.items():
        wheels = [w for entry in entries for w in entry.get("wheels", [])]
        sizes[name] = max((w["size"] for w in wheels if fits.search(w["url"])), default=0)
    unsized = [name for name, size in sizes.items() if not size and not name.startswith("marin-")]
    assert not unsized, "no wheel for Linux and Python 3.12"
    assert 50e6 < sum(sizes.values()) <= 400e6


def test_versions_are_in_lock_step(root):
    versions = {project(p)["project"]["version"] for p in PACKAGES} | {root["project"]["version"]}
    assert len(versions) == 1


@pytest.mark.parametrize("package", PACKAGES)
def test_each_wheel_states_what_the_house_asks(package):
    described = project(package)
    assert described["build-system"]["build-backend"] == "uv_build"
    assert described["project"]["requires-python"] == ">=3.12"
    assert described["project"]["license"] == "Apache-2.0"
    assert "dynamic" not in described["project"]
    folder = ROOT / "lib" / f"marin-{package}"
    for name in ("README.md", "LICENSE", f"src/marin_{package}/py.typed"):
        assert (folder / name).is_file()
    assert list((folder / "tests").rglob("test_*.py"))
    assert len((folder / "README.md").read_text().splitlines()) > 5


@pytest.mark.parametrize("package", PACKAGES)
def test_no_wheel_depends_on_a_sibling(package):
    declared = project(package)["project"]
    extras = declared.get("optional-dependencies", {}).values()
    wanted = [*declared["dependencies"], *(d for extra in extras for d in extra)]
    assert not [d for d in wanted if re.match(r"marin[-_]", d)]


def test_no_file_is_longer_than_the_house_allows():
    sources = [*(ROOT / "lib").glob("*/src/**/*.py"), *(ROOT / "experiments").rglob("*.py")]
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in sources}
    assert {name: n for name, n in lengths.items() if n > 600} == {}


def test_readme_fits_and_gives_both_commands():
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 150
    assert "pip install uv && uv run experiments/quickstart.py" in readme
    (command,) = re.findall(r"pip install uv && (uv run .*nox -s tests)", readme)
    assert "nox=(" + command.removesuffix(" -s tests") + ")" in (ROOT / ".ci" / "run").read_text()
