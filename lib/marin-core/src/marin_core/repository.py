"""The repository of a script: its commit, and a patch of all that a clean checkout of the commit would lack.

The patch is ``git diff --binary HEAD`` with the untracked files in it, those that git is told to ignore left out. So
that they become part of a diff, they are entered (``git add --intent-to-add``) in a copy of the index; the user's own
index, checkout and objects are never written, nor is a lock of theirs taken.

Bounded, because it runs beside every run: a listing that takes longer than seconds is given up, files beyond the cap
stay out, largest first, and a diff beyond it is not kept. What is missing is said in `Snapshot.omitted`.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from marin_core.quantities import format_bytes
from marin_core.store import DEFAULT_PREFIX

PATCH_CAP_BYTES = 20_000_000
UNTRACKED_CAP = 2_000
"""Most untracked files in a patch."""
_LISTING_SECONDS = 2.0
_DIFF_SECONDS = 10.0
_MOST_NAMED = 3
_LOCATION = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_PREFIX")
_DIFF = (
    *("diff", "--binary", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--ignore-submodules=dirty"),
    *("--src-prefix=a/", "--dst-prefix=b/", "HEAD"),
)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The state of a checkout."""

    root: Path
    commit: str
    branch: str
    dirty: bool
    """Whether tracked files differ from the commit."""
    patch: bytes | None
    """What is to be applied to the commit; empty if nothing is, None if it could not be had."""
    omitted: tuple[str, ...]
    """What the patch lacks, and why."""


def root_of(path: Path) -> Path | None:
    """The checkout that a directory lies in: the nearest ancestor with a ``.git``."""
    return next((a for a in (path, *path.parents) if (a / ".git").exists()), None)


def environment_for_git() -> dict[str, str]:
    """This process's environment without what a git hook sets to lead every git to one repository."""
    kept = {name: value for name, value in os.environ.items() if name not in _LOCATION}
    return kept | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}


def snapshot(root: Path, *, without: Path | None = None, cap_bytes: int = PATCH_CAP_BYTES) -> Snapshot | None:
    """Looks at a checkout.

    Args:
        root: its top directory.
        without: a directory whose untracked files are no part of it, as outputs are none.
        cap_bytes: most bytes of the patch.

    Returns:
        None if git is not there or does not answer.
    """
    listing = _Listing(root, without=without)
    try:
        status = _git(root, "status", "--porcelain=v2", "--branch", "--untracked-files=no", seconds=_DIFF_SECONDS)
    except (OSError, subprocess.SubprocessError):
        listing.stop()
        return None
    lines = status.decode("utf-8", "replace").splitlines()
    heads = dict(line.removeprefix("# branch.").split(" ", 1) for line in lines if line.startswith("# branch."))
    commit = heads.get("oid", "").removeprefix("(initial)")
    dirty = any(not line.startswith("#") for line in lines)
    untracked, omitted = listing.chosen(cap_bytes=cap_bytes)
    patch: bytes | None = b""
    if commit and (dirty or untracked):
        try:
            patch = _diff(root, untracked)
        except (OSError, subprocess.SubprocessError) as e:
            patch, omitted = None, [*omitted, f"the changes since the commit: {_why(e)}"]
    if patch is not None and len(patch) > cap_bytes:
        over = f"the changes since the commit: {format_bytes(len(patch))}, over the cap of {format_bytes(cap_bytes)}"
        patch, omitted = None, [*omitted, over]
    branch = heads.get("head", "").removeprefix("(detached)")
    return Snapshot(root=root, commit=commit, branch=branch, dirty=dirty, patch=patch, omitted=tuple(omitted))


class _Listing:
    """The untracked files of a checkout, listed beside other work."""

    def __init__(self, root: Path, *, without: Path | None) -> None:
        self._root, self._process = root, None
        command = [
            "git",
            "-C",
            str(root),
            "ls-files",
            "-z",
            "--others",
            "--exclude-standard",
            f"--exclude={DEFAULT_PREFIX}/",
        ]
        if without is not None and without.is_relative_to(root) and without != root:
            command.append(f"--exclude=/{_literal(without.relative_to(root).as_posix())}/")
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment_for_git()
            )

    def stop(self) -> None:
        """Gives it up."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()

    def chosen(self, *, cap_bytes: int) -> tuple[list[str], list[str]]:
        """The files that fit into a patch, smallest first, and words about those that do not."""
        if self._process is None:
            return [], ["untracked files: git did not start"]
        try:
            listed = self._process.communicate(timeout=_LISTING_SECONDS)[0]
        except subprocess.TimeoutExpired:
            self.stop()
            return [], [f"untracked files: listing them took longer than {_LISTING_SECONDS:.0f} s"]
        names = [os.fsdecode(name) for name in listed.split(b"\0") if name]
        repositories = [name for name in names if name.endswith("/")]
        omitted = [f"{name}: a repository of its own" for name in repositories[:_MOST_NAMED]]
        sizes = sorted((s, n) for n, s in self._sizes(n for n in names if not n.endswith("/")))
        kept, total = 0, 0
        for size, _ in sizes[:UNTRACKED_CAP]:
            if total + size > cap_bytes:
                break
            kept, total = kept + 1, total + size
        left = sizes[kept:]
        omitted += [f"{name}: {format_bytes(size)}, untracked" for size, name in left[::-1][:_MOST_NAMED]]
        if len(left) > _MOST_NAMED:
            omitted.append(f"{len(left) - _MOST_NAMED} more untracked files")
        return [name for _, name in sizes[:kept]], omitted

    def _sizes(self, names: Iterator[str]) -> Iterator[tuple[str, int]]:
        for name in names:
            with contextlib.suppress(OSError):
                yield name, os.lstat(self._root / name).st_size


def _literal(name: str) -> str:
    """A path as a pattern of ``.gitignore`` that matches nothing else."""
    return "".join(f"\\{c}" if c in r"\*?[ " else c for c in name)


def _diff(root: Path, untracked: Sequence[str]) -> bytes:
    if not untracked:
        return _git(root, *_DIFF, seconds=_DIFF_SECONDS)
    with tempfile.TemporaryDirectory(prefix="marin-index-") as directory:
        index = Path(directory) / "index"
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(_git_directory(root) / "index", index)
        add = ("--literal-pathspecs", "add", "--intent-to-add", "--pathspec-from-file=-", "--pathspec-file-nul")
        names = b"\0".join(map(os.fsencode, untracked))
        copy = {"GIT_INDEX_FILE": str(index)}
        # What is intended to be added stands in the index as an empty object, which git would write as well.
        aside = copy | {"GIT_OBJECT_DIRECTORY": directory}
        _git(root, *add, seconds=_DIFF_SECONDS, variables=aside, stdin=names)
        return _git(root, *_DIFF, seconds=_DIFF_SECONDS, variables=copy)


def _git_directory(root: Path) -> Path:
    """Where the index lies: ``.git`` itself, or what that file of a linked worktree points to."""
    place = root / ".git"
    if place.is_dir():
        return place
    return root / place.read_text(encoding="utf-8").removeprefix("gitdir:").strip()


def _git(
    root: Path, *arguments: str, seconds: float, variables: Mapping[str, str] | None = None, stdin: bytes = b""
) -> bytes:
    environment = environment_for_git() | dict(variables or {})
    command = ["git", "-C", str(root), *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=seconds, check=True, env=environment)
    return done.stdout


def _why(e: Exception) -> str:
    if isinstance(e, subprocess.TimeoutExpired):
        return f"git needed longer than {e.timeout:.0f} s"
    if isinstance(e, subprocess.CalledProcessError):
        return ((e.stderr or b"").decode("utf-8", "replace").strip().splitlines() or ["git failed"])[-1]
    return str(e)
