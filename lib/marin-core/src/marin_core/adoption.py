"""Adopted data: a step for files that exist already.

Adopted data is named by what is in it (relative paths, sizes, sha256), so the same files elsewhere are the same input,
and a changed byte is a new one. Links are followed, since a body would follow them; what is no file at all (a pipe, a
link that leads nowhere) is refused. It is read-only by construction: its step has no body, the runner never writes
outside the prefix, and `Input.open` opens for reading alone. A body that writes through the plain path of an `Input`
all the same changes what it has read, so nothing that it made is committed.

A file's sha256 is remembered between processes (`remembered`) beside its size, times and inode, so that planning over
a large corpus reads it once and not each time. As in git's index, a file that changed just before it was read is not
remembered: a later change within the same tick of the clock would leave its stamp as it was. The change time is part
of the stamp because, other than the modification time, no program can set it back.

What was read for the identity is not what a body reads later. So the files are looked at once more when the body has
ended (`Listing.changed`), and what was made while one of them changed is not committed.
"""

import hashlib
import os
import stat
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from marin_core.errors import UsageError
from marin_core.handles import relative_name
from marin_core.names import is_free
from marin_core.remembered import recall, remember
from marin_core.steps import Step, StepFunction

_SCHEMA = 1
_MEMORY = "adopted"
_SETTLED_NS = 2_000_000_000
"""Nanoseconds that a file must have stood still before it was read; file systems' clocks tick every 2 s at worst."""

Stamp = list[int]
"""Size, modification time, change time (ns) and inode: as long as these stay, the content does."""
_CHANGE_TIME = 2
_LONGEST = 100
"""Characters of a file's name that name the step."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The files of adopted data: stamp and sha256 of each, by its name relative to ``base``."""

    base: Path
    whole: Path | None
    """The directory, if all that lies in it matters; then a file that is new there is a change too."""
    files: Mapping[str, tuple[Stamp, str]]

    def changed(self) -> str | None:
        """The first file that no longer is what was read, or None. Reads a file only if its change time alone differs,
        as after another link to it was made."""
        names = set(self.files)
        if self.whole is not None:
            try:
                names.update(_names(self.whole))
            except (OSError, UsageError) as e:
                return f"what lies there ({e})"
        return next((name for name in sorted(names) if self._differs(name)), None)

    def _differs(self, name: str) -> bool:
        if name not in self.files:
            return True
        before, sha256 = self.files[name]
        try:
            now = _stamp(self.base, name)
            if now == before:
                return False
            only_change_time = [*now[:_CHANGE_TIME], before[_CHANGE_TIME], *now[_CHANGE_TIME + 1 :]] == before
            return not only_change_time or _sha256(self.base, name) != sha256
        except (OSError, UsageError):
            return True


def adopt(path: str | os.PathLike[str], *, name: str | None = None, files: Iterable[str] | None = None) -> Step:
    """A step whose output is a file or directory that exists already. It is read, hashed and never written.

    Args:
        path: a local file or directory.
        name: the step's name; default the path's last component.
        files: the files under ``path`` that matter, relative to it; default all. What else lies there has no part
            in the identity, so a body must not read it.

    Raises:
        UsageError: there is nothing at the path, or a file is missing, unreadable or being written.
    """
    root = Path(path).expanduser().resolve()
    if not root.exists():
        raise UsageError(f"adopt({str(path)!r}): there is no such file or directory")
    listing = _listing(root, files)
    entries = [f"{name}\0{stamp[0]}\0{sha256}\n" for name, (stamp, sha256) in listing.files.items()]
    handle = _adopted(
        content=hashlib.sha256(os.fsencode("".join(entries))).hexdigest(),
        num_files=len(entries),
        num_bytes=sum(stamp[0] for stamp, _ in listing.files.values()),
        name=_word(root.name) if name is None else name,
    )
    return replace(handle, external=str(root), listing=listing)


def _existing_data(*, content: str, num_files: int, num_bytes: int) -> None:
    """Data that was there before; the digest of its listing is its identity."""


_adopted = StepFunction(_existing_data)


def _listing(root: Path, files: Iterable[str] | None) -> Listing:
    """Stamp and sha256 of every file, in order of name."""
    base = root.parent if root.is_file() else root
    memory: dict[str, Any] = recall(_MEMORY, f"{_SCHEMA} {base}") or {}
    before = time.time_ns()
    try:
        names = sorted(set(map(relative_name, files))) if files is not None else _names(root)
        stamps = {name: _stamp(base, name) for name in names}
        unread = [name for name in names if memory.get(name, [None])[0] != stamps[name]]
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            read = dict(zip(unread, pool.map(lambda name: _sha256(base, name), unread), strict=True))
        changed = next((name for name in unread if _stamp(base, name) != stamps[name]), None)
    except OSError as e:
        raise UsageError(f"adopt({str(root)!r}): {e.filename}: {e.strerror}") from e
    if changed is not None:
        raise UsageError(f"adopt({str(root)!r}): {changed} changed while it was read; try again when it is at rest")
    settled = {n: [stamps[n], read[n]] for n in unread if max(stamps[n][1:3]) <= before - _SETTLED_NS}
    if settled:
        remember(_MEMORY, f"{_SCHEMA} {base}", memory | settled)
    found = {name: (stamps[name], read.get(name) or memory[name][1]) for name in names}
    return Listing(base=base, whole=root if files is None else None, files=found)


def _names(root: Path) -> list[str]:
    """Names of the files below a directory, links followed, in order.

    Raises:
        UsageError: there is something that is no file, or a link that leads nowhere or around in a circle.
    """
    if root.is_file():
        return [root.name]
    found: list[str] = []
    directories: list[tuple[str, tuple[str, ...]]] = [("", (os.path.realpath(root),))]
    while directories:
        relative, around = directories.pop()
        with os.scandir(f"{root}/{relative}") as entries:
            for entry in entries:
                name = f"{relative}{entry.name}"
                if entry.is_file():
                    found.append(name)
                    continue
                real = os.path.realpath(entry.path) if entry.is_symlink() else f"{around[-1]}/{entry.name}"
                if not entry.is_dir() or real in around:
                    raise UsageError(f"adopt({str(root)!r}): {name} is {_kind(entry)}; name the files that matter")
                directories.append((f"{name}/", (*around, real)))
    return sorted(found)


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "a link that leads back up" if entry.is_dir() else "a link that leads to no file"
    return "neither a file nor a directory"


def _stamp(base: Path, name: str) -> Stamp:
    path = f"{base}/{name}"
    found = os.stat(path)  # noqa: PTH116  a path object for each of 100,000 files takes longer than the look at it
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(f"adopt({str(base)!r}): {name} is not a file")
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _sha256(base: Path, name: str) -> str:
    with (base / name).open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _word(text: str) -> str:
    """A step's name made of a file's: what no name can have becomes ``_``."""
    word = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in text).lstrip(".-")[:_LONGEST]
    return word if word and is_free(word) else f"{word}_data".lstrip("_")
