"""Blocks: a remote store's token ids, a megabyte at a time, checked when they arrive and kept on the local disk.

A ``.bin`` is read in the blocks of 1 MiB of which its ``.crc`` has the checksums. Blocks that a batch needs and that
are not on the disk are requested together, neighbours in one request; the same block is never under way twice in a
process. Invariant: no token id leaves here that has not passed its checksum in this process, wherever it came from: a
block on the disk that fails is fetched again, one from the network once more, and after that it is an error.

The cache is a directory of files, one a block, named by the sha256 of the file they belong to: stores that share a
part share its blocks, and a store that was written anew finds none of the old. Files appear by renaming, so that any
number of processes may share a cache; whoever has written much removes what was longest not used.
"""

import itertools
import logging
import os
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from marin_train.cache import cache_directory
from marin_train.data.stream import map_file
from marin_train.errors import ConfigError, TokenStoreError

if TYPE_CHECKING:
    from marin_train.data.directories import RemoteDirectory

logger = logging.getLogger(__name__)

BLOCK_BYTES = 1 << 20
_RUN_BLOCKS = 8
"""Neighbouring blocks in one request at most: longer ones would not arrive sooner than several side by side."""

_MAPPED_BLOCKS = 256
"""Blocks that stay mapped; each holds an open file."""

_DEFAULT_GB = 32.0
_WRITING_S = 3600.0
"""How old an unfinished file must be for its writer to be dead."""


class BlockCache:
    """Files on the local disk, of a bounded total size, the longest unused removed first.

    Args:
        directory: where; by default ``$MARIN_CACHE``, else ``$XDG_CACHE_HOME/marin``, else ``~/.cache/marin``, and in
            it ``blocks``.
        max_bytes: the bound; by default ``$MARIN_CACHE_GB`` gigabytes, else 32.

    Raises:
        ConfigError: ``$MARIN_CACHE_GB`` is not a positive number.
    """

    def __init__(self, directory: str | Path | None = None, *, max_bytes: int | None = None) -> None:
        self.directory = cache_directory() / "blocks" if directory is None else Path(directory)
        self.max_bytes = _max_bytes() if max_bytes is None else max_bytes
        # As if much had been written: what earlier processes left is counted at the first write.
        self._written, self._numbers = self.max_bytes, itertools.count()

    def path(self, key: str) -> Path:
        """Where the file of a key lies, or would lie."""
        return self.directory / key

    def find(self, key: str) -> Path | None:
        """The file of a key, marked as used just now; None if it is not there."""
        try:
            os.utime(self.path(key))
        except OSError:
            return None
        return self.path(key)

    def put(self, key: str, content: bytes | memoryview) -> Path:
        """Writes a file; readers see all of it or nothing.

        Raises:
            TokenStoreError: the disk is full or cannot be written.
        """
        path = self.path(key)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{next(self._numbers)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(content)
            temporary.replace(path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            raise TokenStoreError(
                f"the cache of remote stores, {self.directory}, cannot be written ({error.strerror}); set MARIN_CACHE "
                f"to another directory or MARIN_CACHE_GB below {self.max_bytes / 1e9:g}"
            ) from None
        # Threads may lose an addition to each other: the bound is kept to a block or two.
        self._written += len(content)
        if self._written * 16 >= self.max_bytes:
            self._written = 0
            self._sweep()
        return path

    def remove(self, key: str) -> None:
        """Removes a file that may be there."""
        self.path(key).unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Leaves room for what may be written before the next sweep."""
        files = []
        for path in self.directory.glob("*/*"):
            try:
                facts = path.stat()
            except OSError:
                continue  # another process was faster
            if path.name.startswith(".") and time.time() - facts.st_mtime < _WRITING_S:
                continue  # another process is writing it
            files.append((facts.st_mtime_ns, facts.st_size, path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total * 16 <= self.max_bytes * 15:
                return
            path.unlink(missing_ok=True)
            total -= size


def shared_cache() -> BlockCache:
    """The cache that the environment names, one for all stores of the process: together they keep its bound."""
    cache = BlockCache()
    return _SHARED.setdefault((cache.directory, cache.max_bytes), cache)


_SHARED: dict[tuple[Path, int], BlockCache] = {}


def _max_bytes() -> int:
    text = os.environ.get("MARIN_CACHE_GB") or str(_DEFAULT_GB)
    try:
        gigabytes = float(text)
    except ValueError:
        gigabytes = 0.0
    if not 0 < gigabytes < 1e9:
        raise ConfigError(f"MARIN_CACHE_GB={text!r} must be a positive number: gigabytes that remote stores may take")
    return int(gigabytes * 1e9)


@dataclass(frozen=True)
class BlockFile:
    """A remote file: its name in the store, sha256, size in bytes, and the CRC32 of each block, UInt32[blocks]."""

    name: str
    sha256: str
    size: int
    checksums: np.ndarray


@dataclass(frozen=True)
class _Block:
    """One block: of which file, and which one of it."""

    file: BlockFile
    index: int

    @property
    def start(self) -> int:
        return self.index * BLOCK_BYTES

    @property
    def stop(self) -> int:
        return min(self.start + BLOCK_BYTES, self.file.size)

    @property
    def key(self) -> str:
        return f"{self.file.sha256}/{self.index:08d}"

    def passes(self, content: bytes | memoryview | np.ndarray) -> bool:
        return len(content) == self.stop - self.start and zlib.crc32(content) == self.file.checksums[self.index]


class BlockPieces:
    """The blocks of some remote files as the pieces of a stream.

    Args:
        directory: where the files lie.
        files: in the order of the stream.
        dtype: of their items; a block holds a whole number of them.
    """

    def __init__(self, directory: "RemoteDirectory", files: Sequence[BlockFile], *, dtype: np.dtype) -> None:
        self._directory, self._cache, self._files, self._dtype = directory, directory.cache, files, dtype
        blocks = [len(file.checksums) for file in files]
        self._first = np.concatenate([[0], np.cumsum(blocks, dtype=np.int64)])
        sizes = np.full(int(self._first[-1]), BLOCK_BYTES, np.int64)
        for file, stop in zip(files, self._first[1:].tolist(), strict=True):
            if file.size % BLOCK_BYTES:
                sizes[stop - 1] = file.size % BLOCK_BYTES
        self.stops = np.cumsum(sizes) // dtype.itemsize
        self._start()

    def _start(self) -> None:
        """What belongs to a process; a forked child begins anew, lest it wait for threads that it has not."""
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._mapped: OrderedDict[int, np.ndarray] = OrderedDict()
        self._coming: dict[int, Future[np.ndarray]] = {}
        self._passed: set[int] = set()

    def load(self, numbers: Sequence[int]) -> list[np.ndarray | None]:
        """The contents of these blocks.

        Raises:
            TokenStoreError: one cannot be had, or twice failed its checksum; the message names file and block.
        """
        if self._pid != os.getpid():
            self._start()
        found, coming, mine = {}, {}, {}
        with self._lock:
            for number in numbers:
                if number in self._mapped:
                    self._mapped.move_to_end(number)
                    found[number] = self._mapped[number]
                elif number in self._coming:
                    coming[number] = self._coming[number]
                else:
                    mine[number] = self._coming[number] = Future()
        try:
            self._bring(mine)
        except BaseException as error:
            for future in mine.values():
                if not future.done():
                    future.set_exception(error)
            raise
        finally:
            with self._lock:
                for number in mine:
                    del self._coming[number]
        found |= {number: future.result() for number, future in (coming | mine).items()}
        return [found[number] for number in numbers]

    def announce(self, number: int, start: int, stop: int) -> None:
        """Nothing: a block is read from its beginning to its end, for its checksum."""

    def _bring(self, wanted: dict[int, "Future[np.ndarray]"]) -> None:
        """From the disk what is there, the rest from the network."""
        absent = []
        for number, future in wanted.items():
            array = self._on_disk(number)
            if array is None:
                absent.append(number)
            else:
                self._keep(number, array, future)
        for number, content in self._fetch(sorted(absent)):
            path = self._cache.put(self._block(number).key, content)
            try:
                array = map_file(path, np.dtype(np.uint8))
            except OSError:  # a cache smaller than what is asked for at once
                array = np.frombuffer(bytes(content), np.uint8)
            self._keep(number, array, wanted[number])

    def _keep(self, number: int, content: np.ndarray, future: "Future[np.ndarray]") -> None:
        array = content.view(self._dtype)
        with self._lock:
            self._passed.add(number)
            self._mapped[number] = array
            if len(self._mapped) > _MAPPED_BLOCKS:
                self._mapped.popitem(last=False)
        future.set_result(array)

    def _block(self, number: int) -> _Block:
        file = int(np.searchsorted(self._first, number, side="right")) - 1
        return _Block(self._files[file], number - int(self._first[file]))

    def _on_disk(self, number: int) -> np.ndarray | None:
        block = self._block(number)
        path = self._cache.find(block.key)
        if path is None:
            return None
        try:
            content = map_file(path, np.dtype(np.uint8))
        except OSError:
            return None  # removed since: another process has swept
        if number in self._passed or block.passes(content):
            return content
        logger.warning("%s is damaged; fetching it again", path)
        self._cache.remove(block.key)
        return None

    def _fetch(self, numbers: Sequence[int]) -> list[tuple[int, memoryview]]:
        """Blocks from the network, each checked; those that fail are asked for once more."""
        contents = self._request(self._runs(numbers))
        failed = [number for number, content in contents.items() if not self._block(number).passes(content)]
        if failed:
            contents |= self._request([[number] for number in failed])
        for number in failed:
            block = self._block(number)
            if not block.passes(contents[number]):
                found, wanted = zlib.crc32(contents[number]), int(block.file.checksums[block.index])
                raise TokenStoreError(
                    f"{self._directory.name(block.file.name)}: block {block.index} (bytes {block.start} to "
                    f"{block.stop}) has CRC32 {found:08x}, fetched twice; {Path(block.file.name).stem}.crc says "
                    f"{wanted:08x}; the store is damaged: write or copy it again"
                )
        return list(contents.items())

    def _runs(self, numbers: Sequence[int]) -> list[list[int]]:
        """Neighbours of one file, together."""
        runs: list[list[int]] = []
        for number in numbers:
            run = runs[-1] if runs else []
            if run and run[-1] == number - 1 and len(run) < _RUN_BLOCKS and self._block(number).index:
                run.append(number)
            else:
                runs.append([number])
        return runs

    def _request(self, runs: Sequence[Sequence[int]]) -> dict[int, memoryview]:
        ends = [(self._block(run[0]), self._block(run[-1])) for run in runs]
        answers = self._directory.fetch([(first.file.name, first.start, last.stop) for first, last in ends])
        contents = {}
        for run, (first, _), answer in zip(runs, ends, answers, strict=True):
            for number in run:
                block = self._block(number)
                contents[number] = memoryview(answer)[block.start - first.start : block.stop - first.start]
        return contents
