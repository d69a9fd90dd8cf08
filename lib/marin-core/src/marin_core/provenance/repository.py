"""The repository of a script: its commit, and a patch of all that a clean checkout of the commit would lack.

The patch is ``git diff --binary HEAD`` with the untracked files in it, those that git is told to ignore left out. So
that they become part of a diff, they are entered (``git add --intent-to-add``) in a copy of the index; the user's own
index, checkout and objects are never written, nor is a lock of theirs taken.

It runs beside every run, so it is bounded: a listing that takes longer than seconds is given up, files beyond the cap
stay out, largest first, and a diff beyond it is not kept; what is missing is said. And as in git's index, files whose
sizes and times are those of an earlier look have the content that they had then (`Snapshot.stamp`): a patch that is
known need not be made.
"""

import contextlib
import os
import shutil
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from marin_core.quantities import format_bytes
from marin_core.store import DEFAULT_PREFIX

PATCH_CAP_BYTES = 20_000_000
UNTRACKED_CAP = 2_000
"""Most untracked files in a patch."""
_MOST_WEIGHED = 20_000
"""Most untracked files whose sizes are looked at."""
_LISTING_SECONDS = 2.0
_SECONDS = 10.0
_MOST_NAMED = 3
_LOCATION = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_PREFIX")
_SETTLED_NS = 2_000_000_000
_STATUS = ("status", "--porcelain=v2", "-z", "--branch", "--no-renames", "--untracked-files=no")
_DIFF = (
    *("diff", "--binary", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--ignore-submodules=dirty"),
    *("--src-prefix=a/", "--dst-prefix=b/", "HEAD"),
)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The state of a checkout, before anything is read but names, sizes and times."""

    root: Path
    commit: str
    branch: str
    changed: tuple[str, ...]
    """Tracked files that differ from the commit."""
    untracked: tuple[str, ...]
    omitted: tuple[str, ...]
    """What of the untracked files is too much for a patch, and why."""

    def stamp(self) -> str | None:
        """A text that stays the same only as long as the patch does; None while a file has not stood still for long
        enough that its times would tell of a change."""
        entries: list[tuple[str, tuple[int, ...] | None]] = []
        for name in (*self.changed, *self.untracked):
            try:
                found = os.lstat(self.root / name)
            except OSError:
                entries.append((name, None))
                continue
            newest = max(found.st_mtime_ns, found.st_ctime_ns)
            if not (stat.S_ISREG(found.st_mode) and newest < time.time_ns() - _SETTLED_NS):
                return None
            entries.append((name, (found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)))
        return repr((str(self.root), self.commit, entries))

    def patch(self, *, cap_bytes: int = PATCH_CAP_BYTES) -> tuple[bytes | None, str]:
        """What is to be applied to the commit: empty if nothing is; None, and why, if it cannot be had."""
        if not self.commit or not (self.changed or self.untracked):
            return b"", ""
        try:
            return _diff(self.root, self.untracked, cap_bytes=cap_bytes), ""
        except (OSError, subprocess.SubprocessError) as e:
            return None, f"the changes since the commit: {e}"


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
        lines = os.fsdecode(_git(root, *_STATUS)).split("\0")
    except (OSError, subprocess.SubprocessError):
        listing.stop()
        return None
    heads = dict(line.removeprefix("# branch.").split(" ", 1) for line in lines if line.startswith("# branch."))
    untracked, omitted = listing.chosen(cap_bytes=cap_bytes)
    return Snapshot(
        root=root,
        commit=heads.get("oid", "").removeprefix("(initial)"),
        branch=heads.get("head", "").removeprefix("(detached)"),
        # The fields before a path: eight for a change, ten for a merge conflict.
        changed=tuple(line.split(" ", 8 if line[0] == "1" else 10)[-1] for line in lines if line[:2] in ("1 ", "u ")),
        untracked=tuple(untracked),
        omitted=tuple(omitted),
    )


class _Listing:
    """The untracked files of a checkout, listed beside other work."""

    def __init__(self, root: Path, *, without: Path | None) -> None:
        self._root, self._process = root, None
        command = ["git", "-C", str(root), "ls-files", "-z", "--others", "--exclude-standard"]
        command.append(f"--exclude={DEFAULT_PREFIX}/")
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
        plain = [name for name in names if not name.endswith("/")]
        sizes = sorted((s, n) for n, s in self._sizes(plain[:_MOST_WEIGHED]))
        kept, total = 0, 0
        for size, _ in sizes[:UNTRACKED_CAP]:
            if total + size > cap_bytes:
                break
            kept, total = kept + 1, total + size
        left = sizes[kept:]
        omitted += [f"{name}: {format_bytes(size)}, untracked" for size, name in left[::-1][:_MOST_NAMED]]
        if len(plain) > kept + _MOST_NAMED:
            omitted.append(f"{len(plain) - kept - _MOST_NAMED} more untracked files")
        return [name for _, name in sizes[:kept]], omitted

    def _sizes(self, names: Sequence[str]) -> Iterator[tuple[str, int]]:
        for name in names:
            with contextlib.suppress(OSError):
                yield name, os.lstat(self._root / name).st_size


def _literal(name: str) -> str:
    """A path as a pattern of ``.gitignore`` that matches nothing else."""
    return "".join(f"\\{c}" if c in r"\*?[ " else c for c in name)


def _diff(root: Path, untracked: Sequence[str], *, cap_bytes: int) -> bytes:
    if not untracked:
        return _git(root, *_DIFF, cap_bytes=cap_bytes)
    with tempfile.TemporaryDirectory(prefix="marin-index-") as directory:
        index, names = Path(directory) / "index", Path(directory) / "names"
        with contextlib.suppress(FileNotFoundError):
            # With its time: git compares the contents of files that are no older than the index, which were perhaps
            # changed in the moment in which it was written.
            shutil.copy2(_git_directory(root) / "index", index)
        names.write_bytes(b"\0".join(map(os.fsencode, untracked)))
        copy = {"GIT_INDEX_FILE": str(index)}
        # What is intended to be added stands in the index as an empty object, which git would write as well.
        aside = copy | {"GIT_OBJECT_DIRECTORY": directory}
        add = ("--literal-pathspecs", "add", "--intent-to-add", f"--pathspec-from-file={names}", "--pathspec-file-nul")
        _git(root, *add, variables=aside)
        return _git(root, *_DIFF, variables=copy, cap_bytes=cap_bytes)


def _git_directory(root: Path) -> Path:
    """Where the index lies: ``.git`` itself, or what that file of a linked worktree points to."""
    place = root / ".git"
    if place.is_dir():
        return place
    return root / place.read_text(encoding="utf-8").removeprefix("gitdir:").strip()


def _git(
    root: Path, *arguments: str, variables: Mapping[str, str] | None = None, cap_bytes: int = PATCH_CAP_BYTES
) -> bytes:
    """What git prints; given up when it takes too long or prints too much."""
    with subprocess.Popen(
        ["git", "-C", str(root), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment_for_git() | dict(variables or {}),
    ) as process:
        timer = threading.Timer(_SECONDS, process.kill)
        timer.start()
        try:
            printed = process.stdout.read(cap_bytes + 1) if process.stdout else b""
        finally:
            timer.cancel()
        if len(printed) > cap_bytes:
            process.kill()
            raise subprocess.SubprocessError(f"more than the cap of {format_bytes(cap_bytes)}")
    if process.returncode < 0:
        raise subprocess.SubprocessError(f"git needed longer than {_SECONDS:.0f} s")
    if process.returncode:
        raise subprocess.SubprocessError(f"git {arguments[0]} ended with exit code {process.returncode}")
    return printed
