"""Reading files: inside the prefix, and within bounds.

Invariants: no byte is read from outside the prefix, whatever an address, a log's name or a symbolic link says; only
regular files are opened, so that a pipe cannot hang a report; every read states the most it takes, and what ends up on
the page is charged to one allowance, so that a run of 10,000 chatty steps still gives a page that a browser opens.
Whatever cannot be read raises `UnreadableFileError`, which a page shows as a note in the file's place.
"""

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from marin_core.ahead import side_by_side
from marin_core.errors import MarinCoreError, PrefixError
from marin_core.store import Status, Store, open_store

_FAILURES = (OSError, ValueError, RuntimeError, PrefixError)
"""What reading raises: the system's errors, a path with a null byte, (Python 3.12) a loop of symbolic links, and a
store that does not answer."""


class UnreadableFileError(MarinCoreError):
    """A file that is missing, too large, not a file, or not inside the prefix; the message says which."""


@dataclass(frozen=True)
class FoundFile:
    """A file below a directory: path relative to that directory, size in bytes."""

    path: str
    size: int


class PrefixFiles:
    """The files under one prefix. Of a directory, links are resolved and judged; any other store has none.

    Args:
        prefix: where the run's steps lie: a directory, a URL, or its store.
        allowance_bytes: the most that `embed` and `tail` hand out in total.
    """

    def __init__(self, prefix: str | Store, *, allowance_bytes: int = 24_000_000) -> None:
        self._store = open_store(prefix, unsafe_single_writer=True) if isinstance(prefix, str) else prefix
        url = self._store.url
        local = self._store.local or (Path(url.removeprefix("local://")) if url.startswith("local://") else None)
        self._root = None if local is None else local.resolve()
        self._remaining = allowance_bytes

    def find(self, directory: str, *, max_files: int) -> list[FoundFile]:
        """At most `max_files` of the files below a directory, sorted by path; linked directories are not entered."""
        try:
            found = self._list(directory) if self._root is None else self._walk(directory, max_files)
        except _FAILURES as e:
            raise UnreadableFileError(f"{directory}: {_reason(e)}") from e
        return sorted(found, key=lambda f: f.path)[:max_files]

    def find_each(self, directories: Iterable[str], *, max_files: int) -> "list[list[FoundFile] | UnreadableFileError]":
        """`find` of each directory, side by side where each is a journey; in the place of one that fails, why."""

        def look(directory: str) -> list[FoundFile] | UnreadableFileError:
            try:
                return self.find(directory, max_files=max_files)
            except UnreadableFileError as e:
                return e

        return side_by_side(self._store, look, directories)

    def names(self, directory: str) -> list[str]:
        """Names directly below a directory, sorted; none where there is no such directory."""
        try:
            if self._root is None:
                return self._store.names(_relative(directory).as_posix())
            return sorted(os.listdir(self._contained(directory)))  # noqa: PTH208  names, and nothing of the files
        except (FileNotFoundError, NotADirectoryError):
            return []
        except _FAILURES as e:
            raise UnreadableFileError(f"{directory}: {_reason(e)}") from e

    def status(self, path: str) -> Status | None:
        """Size and version of a regular file; None where there is none.

        Raises:
            UnreadableFileError: it is something else, or outside the prefix.
        """
        try:
            if self._root is None:
                return self._store.status(_relative(path).as_posix())
            found = self._contained(path).stat()
            if not stat.S_ISREG(found.st_mode):
                raise UnreadableFileError(f"{path}: not a regular file")
            return Status(found.st_size, f"{found.st_size}-{found.st_mtime_ns}-{found.st_ino}")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except _FAILURES as e:
            raise UnreadableFileError(f"{path}: {_reason(e)}") from e

    def range(self, path: str, *, start: int, stop: int) -> bytes:
        """The bytes from `start` up to `stop`, or to where the file ends.

        Raises:
            UnreadableFileError: it is missing, not a regular file, or outside the prefix.
        """
        return self._range(path, start=start, stop=stop)[1]

    def read(self, path: str, *, max_bytes: int) -> bytes:
        """The whole file.

        Raises:
            UnreadableFileError: it is missing, larger than `max_bytes`, not a regular file, or outside the prefix.
        """
        size, data = self._range(path, start=0, stop=max_bytes)
        if size > max_bytes:
            raise UnreadableFileError(f"{path}: {size:,} bytes, and at most {max_bytes:,} are shown")
        return data

    def record(self, path: str, *, max_bytes: int) -> bytes | None:
        """`read` of a record, without a second journey for its size; None where there is no file.

        Raises:
            UnreadableFileError: it is larger than `max_bytes`, not a regular file, or outside the prefix.
        """
        try:
            if self._root is None:
                return self._store.read(_relative(path).as_posix())
            size, data = self._local_range(path, 0, max_bytes)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except _FAILURES as e:
            raise UnreadableFileError(f"{path}: {_reason(e)}") from e
        if size > max_bytes:
            raise UnreadableFileError(f"{path}: {size:,} bytes, and at most {max_bytes:,} are read")
        return data

    def embed(self, path: str, *, max_bytes: int) -> bytes:
        """`read`, charged to the page's allowance."""
        return self._charged(path, self.read(path, max_bytes=min(max_bytes, max(0, self._remaining))))

    def tail(self, path: str, *, max_bytes: int) -> bytes:
        """The end of the file, charged to the page's allowance."""
        _, data = self._range(path, start=-max_bytes, stop=None)
        return self._charged(path, data)

    def tail_each(self, paths: Iterable[str], *, max_bytes: int) -> "list[bytes]":
        """`tail` of each file, side by side where each is a journey; empty for one that cannot be read."""

        def look(path: str) -> bytes:
            try:
                return self.tail(path, max_bytes=max_bytes)
            except UnreadableFileError:
                return b""

        return side_by_side(self._store, look, paths)

    def _charged(self, path: str, data: bytes) -> bytes:
        if len(data) > self._remaining:
            raise UnreadableFileError(f"{path}: left out, this page is large enough already")
        self._remaining -= len(data)
        return data

    def _range(self, path: str, *, start: int, stop: int | None) -> tuple[int, bytes]:
        """Size of the file and the bytes from `start` (negative: from the end) up to `stop`."""
        try:
            if self._root is not None:
                return self._local_range(path, start, stop)
            key = _relative(path).as_posix()
            found = self._store.status(key)
            if found is None:
                raise FileNotFoundError(key)
            begin = start if start >= 0 else max(0, found.size + start)
            end = found.size if stop is None else min(stop, found.size)
            return found.size, self._store.read_range(key, start=begin, stop=end) if begin < end else b""
        except _FAILURES as e:
            raise UnreadableFileError(f"{path}: {_reason(e)}") from e

    def _local_range(self, path: str, start: int, stop: int | None) -> tuple[int, bytes]:
        # Resolved first, then opened without following a link that has come since. O_NONBLOCK, because opening a pipe
        # for reading waits for its writer.
        descriptor = os.open(self._contained(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise UnreadableFileError(f"{path}: not a regular file")
            begin = start if start >= 0 else max(0, status.st_size + start)
            end = status.st_size if stop is None else min(stop, status.st_size)
            file.seek(begin)
            return status.st_size, file.read(max(0, end - begin))

    def _walk(self, directory: str, max_files: int) -> list[FoundFile]:
        base = self._contained(directory)
        found: list[FoundFile] = []
        for parent, folders, names in base.walk(follow_symlinks=False):
            folders.sort()  # the walk follows this order, so that where it ends does not depend on the disk
            for name in sorted(names):
                if len(found) == max_files:
                    return found
                file = parent / name
                found.append(FoundFile(file.relative_to(base).as_posix(), file.lstat().st_size))
        return found

    def _list(self, directory: str) -> list[FoundFile]:
        return [FoundFile(path, size) for path, size in self._store.tree(_relative(directory).as_posix()).items()]

    def _contained(self, path: str) -> Path:
        root = self._root or Path()
        resolved = (root / _relative(path)).resolve(strict=True)
        if not resolved.is_relative_to(root):
            raise UnreadableFileError(f"{path}: refused, it leads outside the prefix")
        return resolved


def _relative(path: str) -> PurePosixPath:
    pure = PurePosixPath(path)
    if pure.is_absolute() or not pure.parts or ".." in pure.parts or "\0" in path or "\\" in path:
        raise UnreadableFileError(f"{path}: refused, it is not a path inside the prefix")
    return pure


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "not found"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
