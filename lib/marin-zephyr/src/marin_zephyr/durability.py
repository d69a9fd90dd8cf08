"""Files that are whole or absent, and directories with one writer.

A file is written under a hidden name, flushed to the disk and renamed: whoever finds it finds all of it, after a kill
or a power cut too. A directory is locked with ``flock`` on the directory itself, so that the lock leaves no file behind
and ends with the process that holds it, however that process ends. An operating system that will not write is an
`OutputError` that names the path and, where there is one, the fix.

See: Pillai et al., "All File Systems Are Not Created Equal" (OSDI 2014), for why both the file and its directory are
synced.
"""

import errno
import hashlib
import os
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from marin_zephyr.errors import OutputBusyError, OutputError

_SYNCS = 8
_FIXES = {
    errno.ENOSPC: "; free some space and run again: committed work is kept",
    errno.EACCES: "; check permissions, or choose another place",
    errno.EROFS: "; choose another place",
}


@contextmanager
def writing(path: Path) -> Generator[None]:
    """Turns a failure of the operating system inside the block into an `OutputError` that names ``path``."""
    try:
        yield
    except OSError as e:
        raise OutputError(f"{path}: cannot write ({e.strerror or e}){_FIXES.get(e.errno or 0, '')}") from e


@contextmanager
def new_file(path: Path, *, durable: bool = True) -> Generator[Path]:
    """Gives a hidden path to write to, and renames it to ``path`` when the block ends without an error.

    Args:
        path: readers see the old file there, or the whole new one. Its directory is made if need be.
        durable: flush file and name to the disk first; without, the file may be lost or cut by a power cut, though
            not by a kill: for what a reader checks, or can do without.

    Raises:
        OutputError: the directory cannot be written, or the disk is full.
    """
    hidden = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield hidden
            if durable:
                sync(hidden)
            hidden.replace(path)
        except BaseException:
            hidden.unlink(missing_ok=True)
            raise
        if durable:
            sync(path.parent)


def replace_file(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Writes ``data`` to ``path``; see `new_file`."""
    with new_file(path, durable=durable) as hidden:
        hidden.write_bytes(data)


def sync(path: Path) -> None:
    """Makes a file's content, or the names in a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(paths: Iterable[Path]) -> None:
    """`sync` of many files, several at a time: a journal writes out together what waits for it together."""
    with ThreadPoolExecutor(_SYNCS) as pool:
        for _ in pool.map(sync, paths):
            pass


def file_digest(path: Path) -> str:
    """The sha256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def sole_writer(directory: Path) -> Generator[None]:
    """Creates ``directory`` if needed and holds it: a second writer is refused at once.

    Raises:
        OutputBusyError: another process, or another call in this one, is writing there.
        OutputError: the directory cannot be created.
    """
    import fcntl

    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputBusyError(f"{directory}: another run is writing it; wait for it, or stop it") from None
        yield
    finally:
        os.close(descriptor)
