"""Manifests: what lies in an output directory, file by file, with size and sha256.

A manifest vouches for plain files alone, so a link, a pipe or a socket in an output is an error. On a local prefix the
files are flushed to disk with it: the pointer to an output must never outlive the output in a power failure.
"""

import hashlib
import os
from pathlib import Path

from marin_core.errors import UsageError
from marin_core.records import FileEntry
from marin_core.threads import DaemonExecutor

_HASH_BLOCK = 1 << 20


def manifest(directory: Path, *, durable: bool = True) -> tuple[FileEntry, ...]:
    """Every regular file below a directory with its size and sha256, in order of path.

    Args:
        directory: an output directory that is no longer written to.
        durable: also flush files and directories to disk, so that a pointer to them never outlives them.

    Raises:
        UsageError: the directory has a link, which the manifest could not vouch for, or a pipe or socket.
    """
    paths, directories = [], [directory]
    for path in sorted(directory.rglob("*")):
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            what = "a symbolic link" if path.is_symlink() else "neither a file nor a directory"
            raise UsageError(f"output {path.relative_to(directory)} is {what}; write a plain file")
        (directories if path.is_dir() else paths).append(path)
    if not paths:
        return ()
    with DaemonExecutor(min(8, len(paths), os.cpu_count() or 1), name="marin-hash") as pool:
        digests = list(pool.map(lambda p: sha256_of(p, durable=durable), paths))
    for path in directories if durable else ():
        sync_directory(path)
    return tuple(
        FileEntry(path=p.relative_to(directory).as_posix(), size=p.stat().st_size, sha256=d)
        for p, d in zip(paths, digests, strict=True)
    )


def sha256_of(path: Path, *, durable: bool = False) -> str:
    """The sha256 of a file in hex; ``durable`` also flushes it to disk."""
    digest = hashlib.sha256()
    with path.open("rb") as f:
        while block := f.read(_HASH_BLOCK):
            digest.update(block)
        if durable:
            os.fsync(f.fileno())
    return digest.hexdigest()


def sync_directory(directory: Path) -> None:
    """Makes the names in a directory survive a power failure."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
