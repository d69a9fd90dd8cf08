"""The store: one prefix with files under it, whole or absent, and writes that take effect only if nothing has changed.

Two promises carry everything above:

- `Store.write` is atomic. On a local disk: a temporary file in the same directory, ``fsync``, rename. A reader sees the
  old bytes or the new, never a part.
- `Store.exclusive` holds a key's lock (``flock`` locally, released by the kernel when its holder dies) around a read, a
  decision and a write, which makes a conditional write of them.

Local directories and ``memory://`` keep both. A store without conditional writes is refused rather than trusted.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from marin_core.errors import PrefixError, UsageError
from marin_core.records import FileEntry

DEFAULT_PREFIX = ".marin"
_memory_lock = threading.RLock()
_HASH_BLOCK = 1 << 20


def default_prefix() -> str:
    """``MARIN_PREFIX``, or ``.marin`` in the working directory."""
    return os.environ.get("MARIN_PREFIX") or DEFAULT_PREFIX


def open_store(prefix: str | os.PathLike[str] | None = None) -> "Store":
    """The store of a prefix; see `Store`."""
    return Store(prefix)


class Store:
    """Files under one prefix. Keys are relative paths with forward slashes.

    Args:
        prefix: a local path, or an fsspec URL.

    Raises:
        PrefixError: the store cannot write conditionally.
    """

    def __init__(self, prefix: str | os.PathLike[str] | None = None) -> None:
        prefix = default_prefix() if prefix is None else os.fspath(prefix)
        if prefix.startswith("file://"):
            prefix = prefix.removeprefix("file://")
        self.local: Path | None = None
        self._fs: Any = None
        if "://" not in prefix:
            self.local = Path(prefix).expanduser().absolute()
            self.url = str(self.local)
        elif prefix.startswith("memory://"):
            import fsspec

            self._fs = fsspec.filesystem("memory")
            self.url = prefix.rstrip("/")
        else:
            raise PrefixError(
                f"prefix {prefix}: {prefix.partition('://')[0]}:// is not supported, since records there cannot be "
                "swapped conditionally; give a local directory (a path or file://), or memory:// for inline runs"
            )

    def child(self, key: str) -> str:
        """The absolute path or URL of a key."""
        return f"{self.url}/{key}"

    def read(self, key: str) -> bytes | None:
        """The bytes at a key; None when there is nothing."""
        try:
            if self.local is not None:
                return (self.local / key).read_bytes()
            return self._fs.cat_file(self.child(key))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as e:
            raise self.error(e) from e

    def write(self, key: str, data: bytes, *, durable: bool = True) -> None:
        """Writes atomically; ``durable`` also survives a power failure.

        Raises:
            PrefixError: the prefix is not writable or is full.
        """
        if self.local is None:
            self._fs.pipe_file(self.child(key), data)
            return
        path = self.local / key
        temporary = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as f:
                f.write(data)
                if durable:
                    f.flush()
                    os.fsync(f.fileno())
            temporary.replace(path)
            if durable:
                sync_directory(path.parent)
        except OSError as e:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise self.error(e, at=path if e.filename == str(temporary) else None) from e

    def delete(self, key: str) -> None:
        """Removes a key if it is there."""
        if self.local is not None:
            (self.local / key).unlink(missing_ok=True)
        elif self._fs.exists(self.child(key)):
            self._fs.rm_file(self.child(key))

    @contextlib.contextmanager
    def exclusive(self, key: str) -> Generator[None]:
        """Holds the lock of ``key`` against every other writer of this prefix."""
        if self.local is None:
            with _memory_lock:
                yield
            return
        path = self.local / f"{key}.lock"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as e:
            raise self.error(e) from e
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def names(self, key: str) -> list[str]:
        """Names of the entries directly under a key, sorted; empty when there is none."""
        if self.local is not None:
            try:
                return sorted(entry.name for entry in os.scandir(self.local / key))
            except (FileNotFoundError, NotADirectoryError):
                return []
            except OSError as e:
                raise self.error(e) from e
        try:
            return sorted(e.rstrip("/").rsplit("/", 1)[-1] for e in self._fs.ls(self.child(key), detail=False))
        except FileNotFoundError:
            return []

    def find(self, name: str) -> Iterator[str]:
        """Keys whose last component is ``name``, without descending into attempts."""
        if self.local is None:
            root = self.url.removeprefix("memory:/")
            yield from (
                p[len(root) + 1 :] for p in self._fs.find(self.url) if p.endswith(f"/{name}") and "/attempts/" not in p
            )
            return
        for directory, subdirectories, files in os.walk(self.local):
            inside = ("attempts", "work") if {name, "lease.json"} & set(files) else ()
            subdirectories[:] = sorted(d for d in subdirectories if d not in inside)
            if name in files:
                yield (Path(directory) / name).relative_to(self.local).as_posix()

    def tree(self, key: str) -> dict[str, int]:
        """Every file below a key: its path relative to the key -> its size in bytes, in order of path."""
        if self.local is not None:
            root = self.local / key
            return {p.relative_to(root).as_posix(): p.stat().st_size for p in sorted(root.rglob("*")) if p.is_file()}
        root = self.child(key).removeprefix("memory:/") + "/"
        found = self._fs.find(self.child(key), detail=True)
        return {p.removeprefix(root): found[p]["size"] for p in sorted(found)}

    def remove_tree(self, key: str) -> None:
        """Removes every file below a key."""
        if self.local is not None:
            shutil.rmtree(self.local / key, ignore_errors=True)
            return
        for name in self.tree(key):
            self.delete(f"{key}/{name}")

    def damage(self, key: str, files: tuple[FileEntry, ...], *, deep: bool = False) -> list[str]:
        """What is wrong with a committed output directory: files missing, resized or (``deep``) of another sha256."""
        if self.local is None:
            return []
        root, found = self.local / key, []
        for entry in files:
            try:
                size = (root / entry.path).stat().st_size
                if size != entry.size:
                    found.append(f"{entry.path} has {size} bytes instead of {entry.size}")
                elif deep and _sha256(root / entry.path, durable=False) != entry.sha256:
                    found.append(f"{entry.path} has another sha256 than recorded")
            except FileNotFoundError:
                found.append(f"{entry.path} is missing")
            except OSError as e:
                found.append(f"{entry.path} cannot be read: {e.strerror}")
        return found

    def upload(self, source: Path, key: str) -> None:
        """Copies a local directory to a key of a remote prefix."""
        for path in sorted(source.rglob("*")):
            if path.is_file():
                self._fs.pipe_file(self.child(f"{key}/{path.relative_to(source).as_posix()}"), path.read_bytes())

    def check_writable(self) -> None:
        """Raises `PrefixError` with the reason if nothing can be written here."""
        if self.local is None:
            return
        probe = self.local / f".writable.{os.getpid()}.{threading.get_ident()}"
        try:
            self.local.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as e:
            raise self.error(e, at=self.local if e.filename == str(probe) else None) from e

    def error(self, e: OSError, *, at: Path | None = None) -> PrefixError:
        """The error that tells a user what an operating system error on this prefix means.

        Args:
            e: what the system said.
            at: the entry to name, where the one that ``e`` names is none of the user's.
        """
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            return PrefixError(f"prefix {self.url}: no space left on the device; free some, or choose another --prefix")
        place = at or Path(os.fsdecode(e.filename or self.url))
        misfit = self._misfit(place) if e.errno in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST) else None
        if misfit is not None:
            return PrefixError(f"prefix {self.url}: {misfit}; delete that entry")
        why = "not a directory" if e.errno == errno.EEXIST else e.strerror or e
        named = "" if place == self.local else f" ({place})"
        return PrefixError(f"prefix {self.url}: {why}{named}; choose another --prefix or MARIN_PREFIX")

    def _misfit(self, place: Path) -> str | None:
        """Of an entry below the prefix that is a file in a directory's stead, or the other way round: which it is."""
        if self.local is None or self.local not in place.parents:
            return None
        if place.is_dir():
            return f"{place} is a directory where a file belongs"
        below = [p for p in (place, *place.parents) if self.local in p.parents]
        found = next((p for p in below if p.exists()), None)
        return f"{found} is a file where a directory belongs" if found is not None and not found.is_dir() else None


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
    with ThreadPoolExecutor(min(8, len(paths), os.cpu_count() or 1)) as pool:
        digests = list(pool.map(lambda p: _sha256(p, durable=durable), paths))
    for path in directories if durable else ():
        sync_directory(path)
    return tuple(
        FileEntry(path=p.relative_to(directory).as_posix(), size=p.stat().st_size, sha256=d)
        for p, d in zip(paths, digests, strict=True)
    )


def _sha256(path: Path, *, durable: bool) -> str:
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
