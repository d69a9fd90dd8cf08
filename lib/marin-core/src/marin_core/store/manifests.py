"""Manifests: what lies in an output directory, file by file, with size and sha256.

A manifest vouches for plain files alone, so a link, a pipe or a socket in an output is an error. On a local prefix the
files are flushed to disk with it: the pointer to an output must never outlive the output in a power failure. They lose
their write permission too, since what reads them would otherwise change what others read; for those whom permissions
do not stop, `strangeness` is asked.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from marin_core.errors import UsageError
from marin_core.records import FileEntry
from marin_core.threads import DaemonExecutor

_HASH_BLOCK = 1 << 20
_WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def manifest(directory: Path, *, durable: bool = True) -> tuple[FileEntry, ...]:
    """Every regular file below a directory with its size and sha256, in order of path.

    Args:
        directory: an output directory that is no longer written to.
        durable: also make the files read-only, and flush them and the directories to disk, so that a pointer to them
            never outlives them.

    Raises:
        UsageError: the directory has a link, which the manifest could not vouch for, or a pipe or socket, or is itself
            none.
    """
    sizes, directories = _listed(directory)
    if not sizes:
        return ()
    names = sorted(sizes, key=lambda name: name.split("/"))

    def digest_of(name: str) -> str:
        return sha256_of(f"{directory}/{name}", durable=durable)

    if len(names) == 1 or sum(sizes.values()) < _HASH_BLOCK:  # threads would take longer to start
        digests = list(map(digest_of, names))
    else:
        with DaemonExecutor(min(8, len(names), os.cpu_count() or 1), name="marin-hash") as pool:
            digests = list(pool.map(digest_of, names))
    for path in directories if durable else ():
        sync_directory(path)
    return tuple(FileEntry(path=n, size=sizes[n], sha256=d) for n, d in zip(names, digests, strict=True))


def _listed(directory: Path) -> tuple[dict[str, int], list[str]]:
    """The files below a directory, by path relative to it, with their sizes; and the directories, itself the first."""
    sizes: dict[str, int] = {}
    directories = [top := os.fspath(directory)]
    if not stat.S_ISDIR(os.lstat(top).st_mode):
        raise UsageError("the body replaced its output directory by a link or a file; write files into it")
    for parent in directories:  # which grows meanwhile
        with os.scandir(parent) as entries:
            for entry in entries:
                name = entry.path[len(top) + 1 :]
                if entry.is_dir(follow_symlinks=False):
                    directories.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    sizes[name] = entry.stat(follow_symlinks=False).st_size
                else:
                    what = "a symbolic link" if entry.is_symlink() else "neither a file nor a directory"
                    raise UsageError(f"output {name} is {what}; write a plain file")
    return sizes, directories


def sha256_of(path: str | Path, *, durable: bool = False) -> str:
    """The sha256 of a file in hex; ``durable`` also makes it read-only and flushes it to disk."""
    digest, descriptor = hashlib.sha256(), os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while block := os.read(descriptor, _HASH_BLOCK):
            digest.update(block)
        if durable:
            _protect(descriptor)
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return digest.hexdigest()


def _protect(descriptor: int) -> None:
    """Takes the write permission from a file, unless it has another name, which may be somebody else's."""
    found = os.fstat(descriptor)
    if found.st_nlink == 1 and found.st_mode & _WRITABLE:
        with contextlib.suppress(OSError):  # not every file system, nor every owner, has permissions to change
            os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & ~_WRITABLE)


def strangeness(directory: str, files: Iterable[FileEntry]) -> str | None:
    """What of a committed output is another file, or of another size, than its manifest says; None if nothing is."""
    try:
        sizes, _ = _listed(Path(directory))
    except UsageError as e:
        return str(e).partition(";")[0]
    except OSError as e:
        return f"{e.filename or directory} cannot be read ({e.strerror})"
    known = {entry.path: entry.size for entry in files}
    if sizes == known:
        return None
    name = min(name for name in sizes.keys() | known.keys() if sizes.get(name) != known.get(name))
    return f"{name} {'was added' if name not in known else 'is gone' if name not in sizes else 'has another size'}"


def sync_directory(directory: str | Path) -> None:
    """Makes the names in a directory survive a power failure."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
