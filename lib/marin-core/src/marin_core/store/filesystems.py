"""Any fsspec filesystem as a store.

A lock of this process makes swaps of its writes: all that ``memory://`` needs, which lives in this process alone. Of
any other URL it is true only as long as one process writes there, which is why `open_store` takes those on the
caller's word.
"""

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from marin_core.errors import PrefixError
from marin_core.store import Guard, Status, Store, Versioned

_lock = threading.RLock()
_VERSIONS = ("e_tag", "ETag", "etag", "mtime", "last_modified", "LastModified", "created")
"""What filesystems call the thing that changes with a file."""


class FilesystemStore(Store):
    """Files behind an fsspec filesystem.

    Args:
        url: the prefix.

    Raises:
        PrefixError: fsspec knows no such filesystem, or lacks a package for it.
    """

    def __init__(self, url: str) -> None:
        import fsspec

        try:
            self._fs: Any
            self._fs, self._root = fsspec.url_to_fs(url)
        except (ImportError, ValueError) as e:
            raise PrefixError(f"prefix {url}: {e}") from e
        self.url = url
        self.shared = not url.startswith("memory://")

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}".rstrip("/")

    def read_versioned(self, key: str) -> Versioned | None:
        """The bytes at a key, and their digest as the version."""
        try:
            with _lock:
                data = self._fs.cat_file(self._path(key))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as e:
            raise self.error(e) from e
        return Versioned(data, _version(data))

    def status(self, key: str) -> Status | None:
        """Size and version, as far as the filesystem tells one."""
        try:
            found = self._fs.info(self._path(key))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as e:
            raise self.error(e) from e
        version = next((str(found[name]) for name in _VERSIONS if found.get(name)), "")
        return Status(int(found["size"]), f"{found['size']}-{version}") if found["type"] == "file" else None

    def read_range(self, key: str, *, start: int, stop: int) -> bytes:
        """The bytes of a file from ``start`` up to ``stop``, both within it."""
        return self._fs.cat_file(self._path(key), start=start, end=stop)

    def swap(
        self, key: str, data: bytes, *, expected: str | None, guard: Guard | None = None, durable: bool = False
    ) -> str:
        """Compares and replaces under this process's lock."""
        with _lock:
            self._compare(key, expected=expected, guard=guard)
            self.write(key, data, durable=durable)
        return _version(data)

    def write(self, key: str, data: bytes, *, durable: bool = True) -> None:
        """Writes as the filesystem does it, which need not be whole: readers of this process wait for the end."""
        try:
            with _lock:
                self._fs.makedirs(self._path(key).rpartition("/")[0], exist_ok=True)
                self._fs.pipe_file(self._path(key), data)
        except OSError as e:
            raise self.error(e) from e

    def delete(self, key: str) -> None:
        """Removes a key if it is there."""
        if self._fs.exists(self._path(key)):
            self._fs.rm_file(self._path(key))

    def names(self, key: str) -> list[str]:
        """Names of the entries directly under a key, sorted; empty when there is none."""
        try:
            return sorted(e.rstrip("/").rsplit("/", 1)[-1] for e in self._fs.ls(self._path(key), detail=False))
        except FileNotFoundError:
            return []

    def find(self, name: str) -> Iterator[str]:
        """Keys whose last component is ``name``, without those in attempts."""
        yield from (key for key in self.tree("") if key.endswith(f"/{name}") and "/attempts/" not in key)

    def tree(self, key: str) -> dict[str, int]:
        """Every file below a key: its path relative to the key -> its size in bytes, in order of path."""
        root = self._path(key) + "/"
        found = self._fs.find(root, detail=True)
        return {p.removeprefix(root): found[p]["size"] for p in sorted(found) if p.startswith(root)}

    def put_file(self, source: Path, key: str) -> None:
        """Copies a local file to a key."""
        self.write(key, source.read_bytes())

    def get_file(self, key: str, target: Path) -> None:
        """Copies a key to a local file."""
        self._fs.get_file(self._path(key), str(target))


def _version(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
