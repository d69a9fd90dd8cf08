"""Checkouts: a recorded state of a repository, made again in a directory of its own, and a Python to run it with.

A checkout borrows the objects of the repository it is made from (``git clone --shared``) and writes nothing to it; the
user's own checkout is neither changed nor read. Nothing of the process that asks leaks into what runs there: outputs,
caches, virtual environments and repositories that environment variables name are left behind, and an interpreter that
would import modules from the user's checkout is led to the clean one.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from marin_core.errors import UsageError
from marin_core.provenance.environments import LOCK
from marin_core.provenance.repository import environment_for_git, root_of
from marin_core.records import Origin

_LEFT_BEHIND = ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "UV_PROJECT", "PYTHONHOME", "PYTHONSAFEPATH")


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """A Python that runs a checkout's scripts."""

    executable: str
    what: str
    """Where it comes from, for the certificate."""


def repository_of(origin: Origin, *, named: Path | None, near: Sequence[Path]) -> Path:
    """The repository that holds the recorded commit.

    Args:
        origin: where the run came from.
        named: what the user says; then nothing else is looked at.
        near: directories that may lie in it, besides the place where it was recorded.

    Raises:
        UsageError: none is there, or it lacks the commit.
    """
    places = [named] if named else [Path(origin.repository), *near]
    roots = dict.fromkeys(r for p in places if (r := root_of(p.resolve())) is not None)
    if not roots:
        where = named or origin.repository
        raise UsageError(f"{where} is in no repository; give the one with commit {origin.commit[:12]} by --repository")
    for root in roots:
        if _git(root, "cat-file", "-e", f"{origin.commit}^{{commit}}").returncode == 0:
            return root
    held = ", ".join(map(str, roots))
    raise UsageError(f"commit {origin.commit[:12]} is not in {held}; fetch it, or give --repository")


def check_out(repository: Path, origin: Origin, into: Path, *, patch: bytes) -> None:
    """Makes a clean checkout of the recorded commit with the recorded patch.

    Raises:
        UsageError: git cannot check the commit out, or the patch does not apply.
    """
    _told(
        subprocess.run(
            ["git", "clone", "--quiet", "--shared", "--no-checkout", "--template=", "--", str(repository), str(into)],
            capture_output=True,
            env=environment_for_git(),
            check=False,
        ),
        f"{repository} cannot be cloned",
    )
    checked_out = _git(into, "-c", "advice.detachedHead=false", "checkout", "--quiet", "--detach", origin.commit)
    _told(checked_out, f"commit {origin.commit[:12]} cannot be checked out")
    if patch:
        _told(_git(into, "apply", "--binary", "--whitespace=nowarn", "-", stdin=patch), "the patch does not apply")


def restore_lock(checkout: Path, origin: Origin, text: bytes | None) -> str:
    """Puts the recorded lock file in its place, if another or none is there; returns what was done, for people."""
    if not origin.lock or Path(origin.lock_path).is_absolute():
        return ""
    place = checkout / origin.lock_path
    there = hashlib.sha256(place.read_bytes()).hexdigest() if place.is_file() else ""
    if there == origin.lock:
        return ""
    what = f"{origin.lock_path} {'of the commit and patch is another than' if there else 'is not in the commit, as'}"
    if text is None:
        raise UsageError(f"{what} recorded, and the recorded one is gone from objects/{origin.lock}")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(text)
    return f"{what} recorded; the recorded one was put there"


def bring_data(checkout: Path, origin: Origin, repository: Path, path: str) -> None:
    """Sees to it that adopted data is where the run will look for it: what git ignores is linked into the checkout.

    Raises:
        UsageError: it is nowhere.
    """
    inside = origin.repository and Path(path).is_relative_to(origin.repository)
    relative = Path(path).relative_to(origin.repository) if inside else None
    source = repository / relative if relative else Path(path)
    place = checkout / relative if relative else source
    if place.exists():
        return
    if not source.exists():
        raise UsageError(f"{path}: the adopted data is not there any more; bring it back")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(source)


def make_interpreter(checkout: Path, origin: Origin, *, python: str, log: Path) -> Interpreter:
    """The recorded environment: installed from the lock file by uv, or else this very interpreter.

    Args:
        checkout: the clean checkout.
        origin: where the run came from.
        python: the recorded version of Python.
        log: what uv says goes there.

    Raises:
        UsageError: the lock file cannot be installed.
    """
    here = f"this interpreter, Python {sys.version.split()[0]}"
    if Path(origin.lock_path).name != LOCK or Path(origin.lock_path).is_absolute():
        return Interpreter(executable=sys.executable, what=f"{here}: no {LOCK} was recorded")
    uv = shutil.which("uv")
    if uv is None:
        return Interpreter(executable=sys.executable, what=f"{here}: uv, which would install {LOCK}, is not on PATH")
    project = (checkout / origin.lock_path).parent
    environment = {k: v for k, v in os.environ.items() if k not in _LEFT_BEHIND}
    command = [uv, "sync", "--frozen", "--project", str(project)]
    with log.open("ab") as f:
        for version in ([python] if python else []) + [""]:
            chosen = ["--python", version] if version else []
            done = subprocess.run([*command, *chosen], cwd=project, env=environment, stdout=f, stderr=f, check=False)
            if done.returncode == 0:
                return Interpreter(executable=str(project / ".venv/bin/python"), what=f"uv sync --frozen from {LOCK}")
    said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
    raise UsageError(f"uv sync --frozen failed: {' '.join(said)}")


def environment_for_run(checkout: Path, repository: Path, interpreter: Interpreter, *, scratch: Path) -> dict[str, str]:
    """The environment variables of a run in the checkout, with outputs and caches below ``scratch``."""
    kept = {k: v for k, v in environment_for_git().items() if not k.startswith("MARIN_") and k not in _LEFT_BEHIND}
    kept |= {"XDG_CACHE_HOME": str(scratch / "cache"), "MARIN_PREFIX": str(scratch / "prefix")}
    # An interpreter that finds modules in the user's checkout (an editable install, a PYTHONPATH) is led to this one.
    inside = [p.relative_to(repository) for p in _import_path(interpreter, kept) if p.is_relative_to(repository)]
    moved = [str(checkout / p) for p in inside if (checkout / p).is_dir()]
    own = [p for p in kept.get("PYTHONPATH", "").split(os.pathsep) if p and not Path(p).is_relative_to(repository)]
    return kept | {"PYTHONPATH": os.pathsep.join([*moved, *own])}


def _import_path(interpreter: Interpreter, variables: Mapping[str, str]) -> list[Path]:
    ask = [interpreter.executable, "-c", "import json, sys; print(json.dumps(sys.path[1:]))"]
    asked = subprocess.run(ask, capture_output=True, text=True, env=variables, check=False)
    if asked.returncode != 0:
        raise UsageError(f"{interpreter.executable} does not run: {asked.stderr.strip()[-200:]}")
    return [Path(p).resolve() for p in json.loads(asked.stdout) if p]


def command_for(origin: Origin, interpreter: Interpreter, checkout: Path, flags: Sequence[str]) -> list[str]:
    """The command line that runs the recorded script in the checkout."""
    script = str(checkout / origin.script)
    if origin.launched == "module":
        return [interpreter.executable, "-m", origin.entry, *flags]
    if origin.launched == "marin":
        target = f"{script}:{origin.entry}" if origin.entry else script
        return [interpreter.executable, "-m", "marin_core.cli", "run", target, *flags]
    return [interpreter.executable, script, *flags]


def _git(root: Path, *arguments: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    # No hook of the user's runs in a checkout that is none of theirs.
    command = ["git", "-C", str(root), "-c", "core.hooksPath=/dev/null", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, env=environment_for_git(), check=False)


def _told(done: subprocess.CompletedProcess[bytes], what: str) -> None:
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise UsageError(f"{what}: {lines[-1] if lines else f'git ended with {done.returncode}'}")
