"""Reading files: inside the prefix, and within bounds.

Invariants: no byte is read from outside the prefix, whatever an address, a log's name or a symbolic link says; only
regular files are opened, so that a pipe cannot hang a report; every read states the most it takes, and what ends up on
the page is charged to one allowance, so that a run of 10,000 chatty steps still gives a page that a browser opens.
Whatever cannot be read raises `UnreadableFileError`, which a page shows as a note in the file's place.
"""

import os
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from marin_core.errors import MarinCoreError, UsageError

_FAILURES = (OSError, ValueError, RuntimeError)
"""What reading raises: the system's errors, a path with a null byte, and (Python 3.12) a loop of symbolic links."""
_VERSIONS = ("e_tag", "ETag", "etag", "mtime", "last_modified", "LastModified", "created")
"""What filesystems call the thing that changes with a file."""
_OBJECT_STORES = {"s3": "s3", "gs": "gcs", "gcs": "gcs"}
"""Schemes -> the extra that brings their client."""


class UnreadableFileError(MarinCoreError):
    """A file that is missing, too large, not a file, or not inside the prefix; the message says which."""


@dataclass(frozen=True)
class FoundFile:
    """A file below a directory: path relative to that directory, size in bytes."""

    path: str
    size: int


@dataclass(frozen=True)
class FileStatus:
    """A regular file: size in bytes, and a version that is another after every change."""

    size: int
    version: str


class PrefixFiles:
    """The files under one prefix, a directory or any fsspec URL.

    Args:
        prefix: where the run's steps lie.
        allowance_bytes: the most that `embed` and `tail` hand out in total.
    """

    def __init__(self, prefix: str, *, allowance_bytes: int = 24_000_000) -> None:
        from fsspec.implementations.local import LocalFileSystem

        self._filesystem: Any
        self._filesystem, self._root = _filesystem_of(prefix)
        self._is_local = isinstance(self._filesystem, LocalFileSystem)
        if self._is_local:
            self._root = str(Path(self._root).resolve())
        self._remaining = allowance_bytes

    def find(self, directory: str, *, max_files: int) -> list[FoundFile]:
        """At most `max_files` of the files below a directory, sorted by path; linked directories are not entered."""
        try:
            found = self._walk(directory, max_files) if self._is_local else self._list(directory)
        except _FAILURES as e:
            raise UnreadableFileError(f"{directory}: {_reason(e)}") from e
        return sorted(found, key=lambda f: f.path)[:max_files]

    def names(self, directory: str) -> list[str]:
        """Names directly below a directory, sorted; none where there is no such directory."""
        try:
            if self._is_local:
                return sorted(os.listdir(self._contained(directory)))  # noqa: PTH208  names, and nothing of the files
            return sorted(
                {p.rstrip("/").rpartition("/")[2] for p in self._filesystem.ls(self._remote(directory), detail=False)}
            )
        except (FileNotFoundError, NotADirectoryError):
            return []
        except _FAILURES as e:
            raise UnreadableFileError(f"{directory}: {_reason(e)}") from e

    def status(self, path: str) -> FileStatus | None:
        """Size and version of a regular file; None where there is none.

        Raises:
            UnreadableFileError: it is something else, or outside the prefix.
        """
        try:
            if self._is_local:
                found = self._contained(path).stat()
                if not stat.S_ISREG(found.st_mode):
                    raise UnreadableFileError(f"{path}: not a regular file")
                return FileStatus(found.st_size, f"{found.st_size}-{found.st_mtime_ns}-{found.st_ino}")
            entry = self._filesystem.info(self._remote(path))
            if entry["type"] != "file":
                raise UnreadableFileError(f"{path}: not a regular file")
            version = next((str(entry[key]) for key in _VERSIONS if entry.get(key)), "")
            return FileStatus(int(entry["size"]), f"{entry['size']}-{version}")
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

    def embed(self, path: str, *, max_bytes: int) -> bytes:
        """`read`, charged to the page's allowance."""
        return self._charged(path, self.read(path, max_bytes=min(max_bytes, max(0, self._remaining))))

    def tail(self, path: str, *, max_bytes: int) -> bytes:
        """The end of the file, charged to the page's allowance."""
        _, data = self._range(path, start=-max_bytes, stop=None)
        return self._charged(path, data)

    def _charged(self, path: str, data: bytes) -> bytes:
        if len(data) > self._remaining:
            raise UnreadableFileError(f"{path}: left out, this page is large enough already")
        self._remaining -= len(data)
        return data

    def _range(self, path: str, *, start: int, stop: int | None) -> tuple[int, bytes]:
        """Size of the file and the bytes from `start` (negative: from the end) up to `stop`."""
        try:
            if self._is_local:
                return self._local_range(path, start, stop)
            remote = self._remote(path)
            size = int(self._filesystem.size(remote))
            begin = start if start >= 0 else max(0, size + start)
            end = size if stop is None else min(stop, size)
            return size, self._filesystem.cat_file(remote, start=begin, end=end) if begin < end else b""
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
        base = self._remote(directory)
        listing = self._filesystem.find(base, detail=True)
        return [FoundFile(p[len(base) :].lstrip("/"), int(entry["size"] or 0)) for p, entry in listing.items()]

    def _contained(self, path: str) -> Path:
        resolved = Path(self._root, _relative(path)).resolve(strict=True)
        if not resolved.is_relative_to(self._root):
            raise UnreadableFileError(f"{path}: refused, it leads outside the prefix")
        return resolved

    def _remote(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{_relative(path)}"


def _filesystem_of(prefix: str) -> tuple[Any, str]:
    """The filesystem behind a prefix and the path in it; object stores through the client that the extras bring."""
    from fsspec.core import url_to_fs

    scheme, _, path = prefix.partition("://")
    if scheme not in _OBJECT_STORES:
        return url_to_fs(prefix)
    try:
        from obstore.fsspec import FsspecStore
    except ModuleNotFoundError as e:
        raise UsageError(f"prefix {prefix}: pip install 'marin-core[{_OBJECT_STORES[scheme]}]'") from e
    return FsspecStore("s3" if scheme == "s3" else "gs"), path


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
