"""A local directory as a store.

A write is a temporary file beside its target and a rename over it. A swap is that, with the step's lock held around
the comparison and the rename: ``flock`` on ``{address}/.lock``, which the kernel releases when its holder dies,
however it dies. One lock serves all the keys of a step, its attempts included, so a guard on the lease and the swap of
the pointer are one critical section.

What is flushed to disk is what a power failure could otherwise make wrong rather than merely old: outputs, and the
bytes of the pointers to them. That the newest pointer itself may be lost with the last seconds costs its step another
run. A lease is not flushed: the machine that lost it has lost its holder too.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import threading
from collections.abc import Generator, Iterator
from pathlib import Path

from marin_core.errors import PrefixError
from marin_core.records import FileEntry
from marin_core.store import Guard, Store, Versioned
from marin_core.store.manifests import sha256_of

_BLOCK = 1 << 16


class LocalStore(Store):
    """A directory of this machine, or one that it has mounted.

    Args:
        path: the directory; it need not exist yet.
    """

    def __init__(self, path: str) -> None:
        try:
            self._root = Path(path).expanduser().absolute()
        except RuntimeError as e:  # ~name of nobody
            raise PrefixError(f"prefix {path}: {e}; give ./{path} if a directory is called so") from e
        self.url = str(self._root)

    @property
    def local(self) -> Path:
        """The directory."""
        return self._root

    def read(self, key: str) -> bytes | None:
        """The bytes at a key; None when there is nothing."""
        path = f"{self.url}/{key}"
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                parts = []
                while part := os.read(descriptor, _BLOCK):
                    parts.append(part)
            finally:
                os.close(descriptor)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as e:
            raise self.error(e, at=Path(path)) from e
        return b"".join(parts)

    def read_versioned(self, key: str) -> Versioned | None:
        """The bytes at a key, and their digest as the version."""
        data = self.read(key)
        return None if data is None else Versioned(data, _version(data))

    def swap(
        self, key: str, data: bytes, *, expected: str | None, guard: Guard | None = None, durable: bool = False
    ) -> str:
        """Compares and replaces under the step's lock."""
        with self._locked(key):
            self._compare(key, expected=expected, guard=guard)
            self.write(key, data, durable=durable)
        return _version(data)

    def write(self, key: str, data: bytes, *, durable: bool = True) -> None:
        """A temporary file, flushed if ``durable`` so that no later reader finds a part of it, then a rename."""
        path = f"{self.url}/{key}"
        temporary = f"{path}.{os.getpid()}.{threading.get_ident()}.tmp"
        try:
            descriptor = _opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                if durable:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.rename(temporary, path)  # noqa: PTH104
        except OSError as e:
            with contextlib.suppress(OSError):
                os.unlink(temporary)  # noqa: PTH108
            raise self.error(e, at=Path(path) if e.filename == temporary else None) from e

    def delete(self, key: str) -> None:
        """Removes a key if it is there."""
        try:
            (self._root / key).unlink(missing_ok=True)
        except OSError as e:
            raise self.error(e) from e

    @contextlib.contextmanager
    def _locked(self, key: str) -> Generator[None]:
        """Holds the lock of the step that a key belongs to."""
        step = key.partition("/attempts/")[0] if "/attempts/" in key else key.rpartition("/")[0]
        path = f"{self.url}/{step}/.lock"
        while True:
            try:
                descriptor = _opened(path, os.O_RDWR | os.O_CREAT, 0o644)
            except OSError as e:
                raise self.error(e) from e
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if _is_still(path, descriptor):
                    yield
                    return
            finally:
                os.close(descriptor)

    def names(self, key: str) -> list[str]:
        """Names of the entries directly under a key, sorted; empty when there is none."""
        try:
            return sorted(os.listdir(f"{self.url}/{key}"))  # noqa: PTH208
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as e:
            raise self.error(e) from e

    def find(self, name: str) -> Iterator[str]:
        """Keys whose last component is ``name``, without descending into attempts, in order of path."""
        for directory, subdirectories, files in os.walk(self._root):
            inside = ("attempts", "work") if {name, "lease.json"} & set(files) else ()
            subdirectories[:] = sorted(d for d in subdirectories if d not in inside)
            if name in files:
                yield (Path(directory) / name).relative_to(self._root).as_posix()

    def tree(self, key: str) -> dict[str, int]:
        """Every file below a key: its path relative to the key -> its size in bytes, in order of path."""
        root = self._root / key
        return {p.relative_to(root).as_posix(): p.stat().st_size for p in sorted(root.rglob("*")) if p.is_file()}

    def remove_tree(self, key: str) -> None:
        """Removes every file below a key, and the directory."""
        shutil.rmtree(self._root / key, ignore_errors=True)

    def put_file(self, source: Path, key: str) -> None:
        """Copies a local file to a key."""
        try:
            (self._root / key).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, self._root / key)
        except OSError as e:
            raise self.error(e) from e

    def get_file(self, key: str, target: Path) -> None:
        """Copies a key to a local file."""
        shutil.copyfile(self._root / key, target)

    def damage(self, key: str, files: tuple[FileEntry, ...], *, deep: bool = False) -> list[str]:
        """What is wrong with a committed output directory. Looks at the manifest's files alone."""
        found = []
        for entry in files:
            path = f"{self.url}/{key}/{entry.path}"
            try:
                size = os.stat(path).st_size  # noqa: PTH116  for every step of every plan
                if size != entry.size:
                    found.append(f"{entry.path} has {size} bytes instead of {entry.size}")
                elif deep and sha256_of(path) != entry.sha256:
                    found.append(f"{entry.path} has another sha256 than recorded")
            except FileNotFoundError:
                found.append(f"{entry.path} is missing")
            except OSError as e:
                found.append(f"{entry.path} cannot be read: {e.strerror}")
        return found

    def check_writable(self) -> None:
        """Raises `PrefixError` with the reason if nothing can be written here."""
        probe = self._root / f".writable.{os.getpid()}.{threading.get_ident()}"
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as e:
            raise self.error(e, at=self._root if e.filename == str(probe) else None) from e

    def error(self, e: OSError, *, at: Path | None = None) -> PrefixError:
        """The error that tells a user what an operating system error on this prefix means."""
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            return PrefixError(f"prefix {self.url}: no space left on the device; free some, or choose another --prefix")
        place = at or Path(os.fsdecode(e.filename or self.url))
        misfit = self._misfit(place) if e.errno in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST) else None
        if misfit is not None:
            return PrefixError(f"prefix {self.url}: {misfit}; delete that entry")
        why = "not a directory" if e.errno == errno.EEXIST else e.strerror or e
        named = "" if place == self._root else f" ({place})"
        return PrefixError(f"prefix {self.url}: {why}{named}; choose another --prefix or MARIN_PREFIX")

    def _misfit(self, place: Path) -> str | None:
        """Of an entry below the prefix that is a file in a directory's stead, or the other way round: which it is."""
        if self._root not in place.parents:
            return None
        if place.is_dir():
            return f"{place} is a directory where a file belongs"
        below = [p for p in (place, *place.parents) if self._root in p.parents]
        found = next((p for p in below if p.exists()), None)
        return f"{found} is a file where a directory belongs" if found is not None and not found.is_dir() else None


def _version(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _opened(path: str, flags: int, mode: int) -> int:
    """A descriptor of a file that is made if need be, its directory too. A step touches some ten small files, to which
    Python's own file objects and paths would add more than they cost."""
    try:
        return os.open(path, flags | os.O_CLOEXEC, mode)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        return os.open(path, flags | os.O_CLOEXEC, mode)


def _is_still(path: str, descriptor: int) -> bool:
    """Whether a lock file is the one that others will find: the step may have been removed while we waited for it."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))  # noqa: PTH116
    except FileNotFoundError:
        return False
