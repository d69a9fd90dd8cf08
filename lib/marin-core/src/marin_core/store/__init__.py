"""The store: one prefix with records and outputs under it, and writes that take effect only if nothing has changed.

Every decision that two runners could take at once rests on one primitive, compare-and-swap: `Store.swap` replaces the
bytes at a key if the key still has the version that the writer has read, and raises `ConflictError` if not. Readers see
the old bytes or the new, never a part. (Conditional writes: RFC 9110, section 13; S3 and GCS keep them per object.)

- `local`        a directory: ``flock`` around read, compare and rename.
- `filesystems`  ``memory://`` under a lock of this process; any other fsspec URL on the user's word that nobody else
                 writes there.
- `objects`      ``s3://`` and ``gs://``: ``If-None-Match`` and ``If-Match``, through obstore.

A commit has to hold one thing more: the step's lease must still be the writer's. Where the store can look at a second
key in the same critical section (`Store.guards`) it does; an object store cannot, and `leases` fences instead.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, NamedTuple

from marin_core.errors import ConflictError, PrefixError
from marin_core.records import FileEntry
from marin_core.store.manifests import manifest, sha256_of, strangeness, sync_directory
from marin_core.threads import DaemonExecutor

__all__ = [
    "Guard",
    "Status",
    "Store",
    "Versioned",
    "default_prefix",
    "manifest",
    "open_store",
    "strangeness",
    "sync_directory",
]

DEFAULT_PREFIX = ".marin"
_CONDITIONAL = {"s3": "s3", "gs": "gcs", "gcs": "gcs"}
"""Schemes of object stores with conditional writes -> the extra that brings the client."""
_READERS = 32
"""Requests at a time where a store answers over a network."""


class Versioned(NamedTuple):
    """The bytes at a key, and their version: opaque, and different after every change of the bytes."""

    data: bytes
    version: str


class Status(NamedTuple):
    """A file as it stands: size in bytes, and a version, opaque and different after every change."""

    size: int
    version: str


class Guard(NamedTuple):
    """What must hold of another key's bytes for a swap to take effect. Both keys belong to one step."""

    key: str
    holds: Callable[[bytes | None], bool]


def default_prefix() -> str:
    """``MARIN_PREFIX``, or ``.marin`` in the working directory."""
    return os.environ.get("MARIN_PREFIX") or DEFAULT_PREFIX


def open_store(prefix: str | os.PathLike[str] | None = None, *, unsafe_single_writer: bool = False) -> "Store":
    """The store of a prefix.

    Args:
        prefix: a local path, ``file://``, ``s3://bucket/path``, ``gs://bucket/path`` or ``memory://name``; default
            ``MARIN_PREFIX`` or ``.marin``.
        unsafe_single_writer: also take any other fsspec URL, on the caller's word that nobody else writes there (or
            because the caller only reads).

    Raises:
        PrefixError: the store cannot write conditionally, or its client is not installed.
    """
    url = (default_prefix() if prefix is None else os.fspath(prefix)).removeprefix("file://")
    scheme, separator, rest = url.partition("://")
    if not separator:
        from marin_core.store.local import LocalStore

        return LocalStore(url)
    if scheme in _CONDITIONAL:
        from marin_core.store.objects import ObjectStore, connect

        client, bulk = connect(scheme, rest, extra=_CONDITIONAL[scheme])
        return ObjectStore(url.rstrip("/"), client=client, bulk=bulk)
    if scheme == "memory" or unsafe_single_writer:
        from marin_core.store.filesystems import FilesystemStore

        return FilesystemStore(url.rstrip("/"))
    raise PrefixError(
        f"prefix {url}: {scheme}:// is used without conditional writes, so two runners could overwrite each other's "
        "records; give a local directory (a path or file://), s3:// or gs://, or, if nobody else writes there, "
        "say --unsafe-single-writer"
    )


class Store(ABC):
    """Files under one prefix. Keys are relative paths with forward slashes."""

    url: str
    """The prefix: an absolute local path, or a URL."""
    guards: ClassVar[bool] = True
    """Whether `swap` evaluates its guard in the same critical section as the comparison."""
    shared: bool = True
    """Whether other processes see the same files."""

    @property
    def local(self) -> Path | None:
        """The directory, on a local prefix."""
        return None

    def child(self, key: str) -> str:
        """The absolute path or URL of a key."""
        return f"{self.url}/{key}"

    @abstractmethod
    def read_versioned(self, key: str) -> Versioned | None:
        """The bytes at a key and their version; None when there is nothing."""

    @abstractmethod
    def swap(
        self, key: str, data: bytes, *, expected: str | None, guard: Guard | None = None, durable: bool = False
    ) -> str:
        """Replaces the bytes at a key if nothing has changed.

        Args:
            key: what to replace.
            data: the new bytes; never written to this key before.
            expected: the version that is to be replaced; None if there must be nothing yet.
            guard: what must hold of another key of the same step. A store without `guards` looks just before it
                writes, so what changes in between goes unnoticed.
            durable: after a power failure too, a reader finds these bytes or the old ones.

        Returns:
            The new version.

        Raises:
            ConflictError: the key has another version, or the guard does not hold; nothing was written.
            UnsettledError: the store answered with errors until patience ended; the write may yet take effect.
            PrefixError: the prefix is not writable or is full.
        """

    def _compare(self, key: str, *, expected: str | None, guard: Guard | None) -> None:
        """Raises `ConflictError` unless a swap may go on; for stores that hold a lock around it and the write."""
        found = self.read_versioned(key)
        if (found.version if found else None) != expected:
            raise ConflictError(f"{self.child(key)} is no longer what was read")
        if guard is not None and not guard.holds(self.read(guard.key)):
            raise ConflictError(f"{self.child(guard.key)} forbids a change of {key}")

    @abstractmethod
    def write(self, key: str, data: bytes, *, durable: bool = True) -> None:
        """Writes whole, whatever was there; ``durable`` as for `swap`.

        Raises:
            PrefixError: the prefix is not writable or is full.
        """

    @abstractmethod
    def delete(self, key: str) -> None:
        """Removes a key if it is there."""

    @abstractmethod
    def names(self, key: str) -> list[str]:
        """Names of the entries directly under a key, sorted; empty when there is none."""

    @abstractmethod
    def find(self, name: str) -> Iterator[str]:
        """Keys whose last component is ``name``, without descending into attempts, in order."""

    @abstractmethod
    def tree(self, key: str) -> dict[str, int]:
        """Every file below a key: its path relative to the key -> its size in bytes, in order of path."""

    @abstractmethod
    def put_file(self, source: Path, key: str) -> None:
        """Copies a local file to a key."""

    @abstractmethod
    def get_file(self, key: str, target: Path) -> None:
        """Copies a key to a local file, whose directory exists.

        Raises:
            FileNotFoundError: there is nothing at the key.
        """

    def read(self, key: str) -> bytes | None:
        """The bytes at a key; None when there is nothing."""
        found = self.read_versioned(key)
        return None if found is None else found.data

    def status(self, key: str) -> Status | None:
        """Size and version of a file; None when there is none."""
        found = self.read_versioned(key)
        return None if found is None else Status(len(found.data), found.version)

    def read_range(self, key: str, *, start: int, stop: int) -> bytes:
        """The bytes of a file from ``start`` up to ``stop``, both within it.

        Raises:
            FileNotFoundError: there is nothing at the key.
        """
        data = self.read(key)
        if data is None:
            raise FileNotFoundError(key)
        return data[start:stop]

    def upload(self, source: Path, key: str) -> None:
        """Copies a local directory to a key, files in parallel. Not atomic: a commit comes after it.

        Raises:
            PrefixError: the prefix is not writable or is full.
        """
        paths = [path for path in sorted(source.rglob("*")) if path.is_file()]
        with DaemonExecutor(_READERS, name="marin-upload") as pool:
            list(pool.map(lambda p: self.put_file(p, f"{key}/{p.relative_to(source).as_posix()}"), paths))

    def remove_tree(self, key: str) -> None:
        """Removes every file below a key."""
        with DaemonExecutor(_READERS, name="marin-remove") as pool:
            list(pool.map(self.delete, [f"{key}/{name}" for name in self.tree(key)]))

    def damage(self, key: str, files: tuple[FileEntry, ...], *, deep: bool = False) -> list[str]:
        """What is wrong with a committed output directory: files missing, resized or (``deep``) of another sha256."""
        sizes, found = self.tree(key) if files else {}, []
        for entry in files:
            if entry.path not in sizes:
                found.append(f"{entry.path} is missing")
            elif sizes[entry.path] != entry.size:
                found.append(f"{entry.path} has {sizes[entry.path]} bytes instead of {entry.size}")
            elif deep and self._sha256(f"{key}/{entry.path}") != entry.sha256:
                found.append(f"{entry.path} has another sha256 than recorded")
        return found

    def _sha256(self, key: str) -> str:
        import tempfile

        with tempfile.TemporaryDirectory(prefix="marin-verify-") as directory:
            target = Path(directory) / "file"
            self.get_file(key, target)
            return sha256_of(target)

    def check_writable(self) -> None:  # noqa: B027  a store that can tell only by writing says it then
        """Raises `PrefixError` with the reason if nothing can be written here, where that can be told beforehand."""

    def error(self, e: OSError, *, at: Path | None = None) -> PrefixError:
        """The error that tells a user what an operating system error on this prefix means.

        Args:
            e: what the system said.
            at: the entry to name, where the one that ``e`` names is none of the user's.
        """
        named = f" ({at})" if at is not None else ""
        return PrefixError(f"prefix {self.url}: {e.strerror or e}{named}; choose another --prefix or MARIN_PREFIX")
