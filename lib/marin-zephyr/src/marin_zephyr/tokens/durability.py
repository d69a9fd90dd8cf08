"""Files that are whole or absent, and directories with one writer.

A file is written under a hidden name, flushed to the disk and renamed: whoever finds it finds all of it, after a kill
or a power cut too. A directory is locked with ``flock`` on the directory itself, so that the lock leaves no file behind
and ends with the process that holds it, however that process ends.

See: Pillai et al., "All File Systems Are Not Created Equal" (OSDI 2014), for why both the file and its directory are
synced."""

import hashlib
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from marin_zephyr.errors import OutputBusyError, OutputError


@contextmanager
def writing(path: Path) -> Generator[None]:
    """Turns a failure of the operating system inside the block into an `OutputError` that names ``path``."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def replace_file(path: Path, data: bytes) -> None:
    """Writes ``data`` to ``path`` so that readers see the old file or the whole new one.

    Raises:
        OutputError: the directory cannot be written, or the disk is full.
    """
    hidden = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with hidden.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            hidden.replace(path)
        except OSError:
            hidden.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Makes the names in ``directory`` durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
            raise OutputBusyError(
                f"{directory} is being written by another run: wait for it, or choose another directory"
            ) from None
        yield
    finally:
        os.close(descriptor)
