"""Where a token store's files lie: a local directory, or any URL that fsspec knows.

Both answer the same few questions, so that a remote store is checked, refused and read like a local one. Nothing is
taken from a network twice if it can be helped, and nothing on trust: small files come whole and are checked by their
sha256, the large ``.bin`` files in blocks (`marin_train.data.blocks`), and both stay on the local disk under the
sha256 that the manifest gives the file. A server that does not answer is an error that names it, after ``TIMEOUT_S``.
"""

import hashlib
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from marin_train.data.blocks import BlockCache, shared_cache
from marin_train.errors import TokenStoreError

logger = logging.getLogger(__name__)

TIMEOUT_S = 60.0
"""How long a request may take before it counts as failed; it is made three times."""

_ATTEMPTS = 3
_PAUSE_S = 0.2
"""Between the attempts, four times longer each time."""

_AT_ONCE = 64
_CONNECTIONS = 16
_FINAL = (FileNotFoundError, PermissionError)
"""Answers that asking again does not change."""

_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "http": "aiohttp"}


class Directory(Protocol):
    """The files of one store."""

    path: Path | str

    def name(self, file: str) -> str:
        """A file's full name, for messages."""
        ...

    def read(self, file: str) -> bytes:
        """A whole file. Raises OSError."""
        ...

    def sizes(self, files: Iterable[str]) -> dict[str, int | None]:
        """Their sizes in bytes; None for one that is absent."""
        ...

    def heads(self, files: Sequence[str], size: int) -> list[bytes]:
        """The first bytes of each; fewer where the file is shorter."""
        ...

    def check_digest(self, file: str, sha256: str) -> None:
        """Raises TokenStoreError unless the file is the one with this digest."""
        ...

    def local_files(self, digests: Mapping[str, str]) -> list[Path]:
        """Files on the local disk, given their sha256."""
        ...


def open_directory(path: str | Path, cache: BlockCache | None) -> Directory:
    """The directory at a path or URL."""
    protocol, separator, rest = str(path).partition("://")
    if not separator:
        return LocalDirectory(Path(path))
    if protocol in ("file", "local"):
        return LocalDirectory(Path(rest))
    return RemoteDirectory(str(path), cache or shared_cache())


class LocalDirectory:
    """A directory on a disk of this machine."""

    def __init__(self, path: Path) -> None:
        self.path: Path | str = path
        self._path = path

    def name(self, file: str) -> str:
        """Its path."""
        return str(self._path / file)

    def read(self, file: str) -> bytes:
        """A whole file."""
        return (self._path / file).read_bytes()

    def sizes(self, files: Iterable[str]) -> dict[str, int | None]:
        """Sizes by ``stat``."""
        paths = {file: self._path / file for file in files}
        return {file: path.stat().st_size if path.is_file() else None for file, path in paths.items()}

    def heads(self, files: Sequence[str], size: int) -> list[bytes]:
        """The first bytes of each."""
        return [_head(self._path / file, size) for file in files]

    def check_digest(self, file: str, sha256: str) -> None:
        """Hashes the file."""
        path = self._path / file
        found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "absent"
        if found != sha256:
            raise TokenStoreError(_differs(str(path), found, sha256))

    def local_files(self, digests: Mapping[str, str]) -> list[Path]:
        """The files themselves."""
        return [self._path / file for file in digests]


class RemoteDirectory:
    """A directory behind a URL.

    Args:
        url: of any protocol that fsspec knows.
        cache: where what was fetched is kept.
    """

    def __init__(self, url: str, cache: BlockCache) -> None:
        self.path: Path | str = url.rstrip("/")
        self.cache = cache
        self._opened: tuple[int, Any, str] | None = None

    def name(self, file: str) -> str:
        """Its URL."""
        return f"{self.path}/{file}"

    def _filesystem(self) -> tuple[Any, str]:
        """The file system and the directory's name on it; made anew in a forked child, whose parent's has no thread."""
        if self._opened is None or self._opened[0] != os.getpid():
            import fsspec

            protocol = str(self.path).partition("://")[0]
            try:
                filesystem, root = fsspec.core.url_to_fs(str(self.path))
            except (ImportError, ValueError) as error:
                extra = f"; pip install {_PACKAGES[protocol]}" if protocol in _PACKAGES else ""
                raise TokenStoreError(f"{self.path}: fsspec cannot open {protocol}:// ({error}){extra}") from None
            self._opened = os.getpid(), filesystem, root.rstrip("/")
        return self._opened[1], self._opened[2]

    def read(self, file: str) -> bytes:
        """A whole file, from the network each time."""
        (found,) = self._ask([(file, None, None)])
        if isinstance(found, Exception):
            raise found if isinstance(found, OSError) else OSError(str(found) or type(found).__name__)
        return found

    def sizes(self, files: Iterable[str]) -> dict[str, int | None]:
        """Sizes from one listing where the protocol has that, else asked for one by one."""
        filesystem, root = self._filesystem()
        filesystem.invalidate_cache()
        try:
            listed = filesystem.ls(root, detail=True)
        except Exception as error:  # every protocol has its own
            logger.debug("%s cannot be listed: %s", self.path, error)
            listed = []
        known = {Path(entry["name"]).name: entry.get("size") for entry in listed}
        found = {name: known.get(name) for name in files}
        unknown = [name for name, size in found.items() if size is None]
        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            return found | dict(zip(unknown, pool.map(self._size, unknown), strict=True))

    def _size(self, file: str) -> int | None:
        filesystem, root = self._filesystem()
        try:
            return filesystem.info(f"{root}/{file}")["size"]
        except FileNotFoundError:
            return None
        except Exception as error:
            raise TokenStoreError(f"{self.name(file)} cannot be read: {error or type(error).__name__}") from None

    def heads(self, files: Sequence[str], size: int) -> list[bytes]:
        """The first bytes of each, requested together."""
        return self._checked([(file, 0, size) for file in files])

    def check_digest(self, file: str, sha256: str) -> None:
        """Fetches the file, which checks it."""
        self.local_files({file: sha256})

    def local_files(self, digests: Mapping[str, str]) -> list[Path]:
        """Files in the cache, fetched whole where they are not there yet; one that arrives damaged, once more."""
        missing = [file for file, sha256 in digests.items() if not self._is_kept(sha256)]
        damaged = self._fetch_whole(missing, digests)
        for file, found in self._fetch_whole(list(damaged), digests).items():
            raise TokenStoreError(_differs(self.name(file), found, digests[file]))
        return [self.cache.path(f"{sha256}/whole") for sha256 in digests.values()]

    def _fetch_whole(self, files: Sequence[str], digests: Mapping[str, str]) -> dict[str, str]:
        """Puts those that are whole into the cache, and returns the sha256 of those that are not."""
        damaged = {}
        for content, file in zip(self._checked([(file, None, None) for file in files]), files, strict=True):
            found = hashlib.sha256(content).hexdigest()
            if found == digests[file]:
                self.cache.put(f"{found}/whole", content)
            else:
                damaged[file] = found
        return damaged

    def _is_kept(self, sha256: str) -> bool:
        """Whether a whole file is in the cache, and undamaged."""
        path = self.cache.find(f"{sha256}/whole")
        try:
            return path is not None and hashlib.sha256(path.read_bytes()).hexdigest() == sha256
        except OSError:
            return False

    def fetch(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Ranges of files, requested together.

        Raises:
            TokenStoreError: one cannot be had; the message names the file and what the server said.
        """
        contents = self._checked(ranges)
        for (file, start, stop), content in zip(ranges, contents, strict=True):
            if len(content) != stop - start:
                raise TokenStoreError(
                    f"{self.name(file)}: asked for bytes {start} to {stop}, the server sent {len(content)}; it must "
                    f"answer requests for ranges"
                )
        return contents

    def _checked(self, ranges: Sequence[tuple[str, int | None, int | None]]) -> list[bytes]:
        contents: list[bytes] = []
        for begin in range(0, len(ranges), _AT_ONCE):
            some = ranges[begin : begin + _AT_ONCE]
            for (file, _, _), found in zip(some, self._ask(some), strict=True):
                if isinstance(found, Exception):
                    raise TokenStoreError(f"{self.name(file)} cannot be read: {found or type(found).__name__}")
                contents.append(found)
        return contents

    def _ask(self, ranges: Sequence[tuple[str, int | None, int | None]]) -> list[bytes | Exception]:
        """Asks for all of these at once, and again for what failed."""
        found: list[bytes | Exception] = [FileNotFoundError()] * len(ranges)
        left = list(range(len(ranges)))
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE_S * 4**attempt)
            for i, answer in zip(left, self._request([ranges[i] for i in left]), strict=True):
                found[i] = answer
            left = [i for i in left if isinstance(found[i], Exception) and not isinstance(found[i], _FINAL)]
            if not left:
                break
        return found

    def _request(self, ranges: Sequence[tuple[str, int | None, int | None]]) -> list[bytes | Exception]:
        import fsspec.asyn

        filesystem, root = self._filesystem()
        arguments = [f"{root}/{file}" for file, _, _ in ranges], [a for _, a, _ in ranges], [b for _, _, b in ranges]
        if not filesystem.async_impl:
            return filesystem.cat_ranges(*arguments, on_error="return")
        try:
            ask: Any = fsspec.asyn.sync  # its annotations know of no result
            return ask(filesystem.loop, filesystem._cat_ranges, *arguments, on_error="return", timeout=TIMEOUT_S)
        except fsspec.exceptions.FSTimeoutError:
            return [TimeoutError(f"no answer within {TIMEOUT_S:g} s")] * len(ranges)


def _head(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        return file.read(size)


def _differs(file: str, found: str, wanted: str) -> str:
    return f"{file}: sha256 is {found}, the manifest says {wanted}; it is not the file that the store was written with"
