"""Where the files of a token store lie: a directory, or below a URL.

A local file is read where it is. Of a remote one, the ids come in whole blocks of 1 MiB, neighbours in one request, and
the small files whole; both are kept in a `BlockCache` and checked on arrival and whenever they are taken from there:
blocks by the CRC that the store has of each, whole files by the sha256 in its manifest. What arrives damaged is fetched
once more, then told by name. `chunks` goes past the cache: it is what finds damage in the store itself.
"""

import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from isal import isal_zlib

from marin_zephyr.errors import TokenStoreError
from marin_zephyr.formats import remote
from marin_zephyr.tokens.blocks import BlockCache
from marin_zephyr.tokens.manifest import FileRecord
from marin_zephyr.tokens.parts import BLOCK_BYTES

_REQUEST_BLOCKS = 8
CHUNK_BYTES = _REQUEST_BLOCKS * BLOCK_BYTES
_KEPT_IN_MEMORY = 32  # blocks
_REQUESTS = 16  # at a time
_WHOLE = "whole"

_log = logging.getLogger(__name__)


class LocalDirectory:
    """A directory on this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def path(self, file: str) -> str:
        """The path."""
        return str(self._path / file)

    def read(self, file: str) -> bytes | None:
        """The content, or None if there is no such file."""
        try:
            return (self._path / file).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise TokenStoreError(f"{self.path(file)} cannot be read: {error.strerror or error}") from error

    def sizes(self, files: Sequence[str]) -> dict[str, int]:
        """The sizes of all files in the directory."""
        return {entry.name: entry.stat().st_size for entry in self._path.iterdir() if entry.is_file()}

    def chunks(self, file: str, size: int) -> Iterator[bytes]:
        """The content, to its end."""
        with (self._path / file).open("rb") as stream:
            while chunk := stream.read(CHUNK_BYTES):
                yield chunk

    def local(self, file: str, record: FileRecord) -> Path:
        """The file."""
        return self._path / file


class RemoteDirectory:
    """A directory behind a URL, through fsspec.

    Args:
        url: the store.
        cache: keeps what was fetched.

    Raises:
        MissingExtraError: the protocol's client is in an extra that is not installed.
        InputError: there is no such protocol or no client.
    """

    def __init__(self, url: str, cache: BlockCache) -> None:
        self._url = url.rstrip("/")
        self._cache = cache
        fs, path = remote.file_system(self._url)
        self._fs: Any = fs
        self._root = path.rstrip("/")
        self._recent: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return self._url

    def path(self, file: str) -> str:
        """The URL."""
        return f"{self._url}/{file}"

    def read(self, file: str) -> bytes | None:
        """The content, or None if there is no such file."""
        with remote.failures(self.path(file), "cannot be read"):
            try:
                return self._fs.cat_file(f"{self._root}/{file}")
            except FileNotFoundError:
                return None

    def sizes(self, files: Sequence[str]) -> dict[str, int]:
        """The sizes: of all files by one listing; over HTTP, which has none, of those that are asked for."""
        if not self._url.startswith("http"):
            with remote.failures(self._url, "cannot be listed"):
                self._fs.invalidate_cache()  # of listings that this process has seen earlier
                listed = self._fs.ls(self._root, detail=True)
            return {info["name"].rpartition("/")[2]: int(info["size"]) for info in listed if info["type"] == "file"}
        with ThreadPoolExecutor(_REQUESTS) as pool:
            sizes = pool.map(self._size, files)
            return {file: size for file, size in zip(files, sizes, strict=True) if size is not None}

    def chunks(self, file: str, size: int) -> Iterator[bytes]:
        """The first ``size`` bytes."""
        for start in range(0, size, CHUNK_BYTES):
            yield self._range(file, start, min(start + CHUNK_BYTES, size))

    def local(self, file: str, record: FileRecord) -> Path:
        """The copy in the cache."""
        kept = self._cache.find(record.sha256, _WHOLE)
        if kept is not None and _digest(kept) == record.sha256:
            return kept
        for _ in range(2):
            with self._cache.adding(record.sha256, _WHOLE) as hidden, hidden.open("wb") as copy:
                for chunk in self.chunks(file, record.size):
                    copy.write(chunk)
            if (kept := self._cache.find(record.sha256, _WHOLE)) is not None and _digest(kept) == record.sha256:
                return kept
            self._cache.drop(record.sha256, _WHOLE)
            _log.warning("%s arrived damaged: its sha256 differs from the manifest's", self.path(file))
        raise TokenStoreError(f"{self.path(file)} arrived damaged twice: its sha256 differs from the manifest's")

    def blocks(self, file: str, record: FileRecord, checksums: Sequence[int], *, first: int, last: int) -> list[bytes]:
        """The blocks ``first`` to ``last`` of a file, both included, from memory, the disk or the network.

        Args:
            file: its name.
            record: its size and sha256.
            checksums: the CRC32 of each block of it.
            first: number of the first block.
            last: number of the last block.
        """
        wanted = range(first, last + 1)
        found = {n: block for n in wanted if (block := self._kept(record, checksums, n)) is not None}
        missing = [n for n in wanted if n not in found]
        runs: list[list[int]] = []
        for n in missing:
            if runs and runs[-1][-1] == n - 1 and len(runs[-1]) < _REQUEST_BLOCKS:
                runs[-1].append(n)
            else:
                runs.append([n])
        if len(runs) == 1:
            found |= self._fetch(file, record, checksums, runs[0])
        elif runs:
            with ThreadPoolExecutor(min(_REQUESTS, len(runs))) as pool:
                for fetched in pool.map(lambda run: self._fetch(file, record, checksums, run), runs):
                    found |= fetched
        return [found[n] for n in wanted]

    def _kept(self, record: FileRecord, checksums: Sequence[int], n: int) -> bytes | None:
        """A block that memory or the disk has; one on the disk that was damaged there is forgotten."""
        key = record.sha256, n
        with self._lock:
            if key in self._recent:
                self._recent.move_to_end(key)
                return self._recent[key]
        path = self._cache.find(record.sha256, _block_name(n))
        if path is None:
            return None
        try:
            block = path.read_bytes()
        except OSError:  # removed in this very moment
            return None
        if isal_zlib.crc32(block) != checksums[n]:
            self._cache.drop(record.sha256, _block_name(n))
            return None
        self._remember(key, block)
        return block

    def _fetch(self, file: str, record: FileRecord, checksums: Sequence[int], run: list[int]) -> dict[int, bytes]:
        start, stop = run[0] * BLOCK_BYTES, min((run[-1] + 1) * BLOCK_BYTES, record.size)
        data = self._range(file, start, stop)
        fetched = {n: data[i * BLOCK_BYTES : (i + 1) * BLOCK_BYTES] for i, n in enumerate(run)}
        for n, block in fetched.items():
            if isal_zlib.crc32(block) != checksums[n]:
                _log.warning("%s: block %d arrived damaged; it is fetched again", self.path(file), n)
                begin = n * BLOCK_BYTES
                block = self._range(file, begin, min(begin + BLOCK_BYTES, record.size))
                if isal_zlib.crc32(block) != checksums[n]:
                    raise TokenStoreError(
                        f"{self.path(file)}: block {n} (bytes from {begin:,}) arrived damaged twice: it fails its CRC. "
                        f"See `zephyr inspect {self._url} --verify`"
                    )
                fetched[n] = block
            with self._cache.adding(record.sha256, _block_name(n)) as hidden:
                hidden.write_bytes(block)
            self._remember((record.sha256, n), block)
        return fetched

    def _remember(self, key: tuple[str, int], block: bytes) -> None:
        with self._lock:
            self._recent[key] = block
            while len(self._recent) > _KEPT_IN_MEMORY:
                self._recent.popitem(last=False)

    def _range(self, file: str, start: int, stop: int) -> bytes:
        with remote.failures(self.path(file), "cannot be read"):
            data = self._fs.cat_file(f"{self._root}/{file}", start=start, end=stop)
        if len(data) > stop - start:
            raise TokenStoreError(
                f"{self.path(file)}: asked for {stop - start:,} bytes, {len(data):,} came. The server knows no ranges: "
                f"copy the store, or serve it by one that does"
            )
        return data

    def _size(self, file: str) -> int | None:
        with remote.failures(self.path(file), "cannot be read"):
            try:
                return int(self._fs.info(f"{self._root}/{file}")["size"])
            except FileNotFoundError:
                return None


def open_directory(
    where: str | Path, *, cache_dir: str | Path | None = None, cache_bytes: int | None = None
) -> LocalDirectory | RemoteDirectory:
    """The directory that a path or a URL names; the rest is for `BlockCache`, which a URL needs."""
    text = str(where)
    if text.startswith("file://"):
        return LocalDirectory(Path(text.removeprefix("file://")))
    if "://" not in text:
        return LocalDirectory(Path(where))
    return RemoteDirectory(text, BlockCache(cache_dir, max_bytes=cache_bytes))


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:  # removed in this very moment
        return ""


def _block_name(n: int) -> str:
    return f"{n:08d}"
