"""The exchange: the files in which rows change hands between stages.

A task that feeds an exchange writes one *block file*: blocks, each an Arrow IPC stream (LZ4) of rows of one
partition, and at the end an index (partition -> offset, length, rows, CRC32). A reader seeks to its own partition's
blocks in each file and checks them. The same format keeps rows between stages, with a single partition.

See: https://arrow.apache.org/docs/format/Columnar.html (IPC streams).
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import IO

import numpy as np
import polars as pl
import pyarrow as pa

from marin_zephyr.errors import CorruptBlockError
from marin_zephyr.frames import to_frame

_MAGIC = b"ZBLK0001"
_FLUSH_BYTES = 16 << 20
_BLOCK_BYTES = 4 << 20


class BlockWriter:
    """Writes one block file.

    Args:
        path: where; a task's own staging directory, renamed into place by nobody: the task's record makes it count.
        num_partitions: how many partitions the index has; `write_block` may add the next one.
    """

    def __init__(self, path: Path, num_partitions: int) -> None:
        self.rows = 0
        path.unlink(missing_ok=True)  # a task given up for dead may hold it open, and come back
        self._file: IO[bytes] = path.open("wb")
        self._file.write(_MAGIC)
        self._index: list[list[list[int]]] = [[] for _ in range(num_partitions)]
        self._held: list[list[pl.DataFrame]] = [[] for _ in range(num_partitions)]
        self._bytes = 0
        self._limit = min(_FLUSH_BYTES, _BLOCK_BYTES * num_partitions)

    def write(self, frame: pl.DataFrame, partition: int = 0) -> None:
        """Appends rows to a partition; the order within one is kept."""
        if not frame.height:
            return
        self.rows += frame.height
        self._held[partition].append(frame)
        self._bytes += int(frame.estimated_size())
        if self._bytes >= self._limit:
            self._flush()

    def write_block(self, frame: pl.DataFrame, partition: int = 0) -> None:
        """Appends rows, or with none their schema, as exactly one block; for partitions that `write` does not feed."""
        self.rows += frame.height
        self._write_block(frame, partition)

    def scatter(self, frame: pl.DataFrame, partition: np.ndarray) -> None:
        """Appends each row to its own partition."""
        order = np.argsort(partition, kind="stable")
        sorted_frame = frame[order]
        ends = np.searchsorted(partition[order], np.arange(len(self._index) + 1))
        for p in range(len(self._index)):
            self.write(sorted_frame[int(ends[p]) : int(ends[p + 1])], p)

    def close(self) -> None:
        """Writes what is held and the index."""
        self._flush()
        index = json.dumps(self._index, separators=(",", ":")).encode()
        self._file.write(index + struct.pack("<QI", len(index), zlib.crc32(index)) + _MAGIC)
        self._file.close()

    def _flush(self) -> None:
        for p, frames in enumerate(self._held):
            for frame in _merged(frames):
                self._write_block(frame, p)
        self._held = [[] for _ in self._held]
        self._bytes = 0

    def _write_block(self, frame: pl.DataFrame, partition: int) -> None:
        table = frame.to_arrow()
        buffer = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
        with pa.ipc.new_stream(buffer, table.schema, options=options) as stream:
            stream.write_table(table)
        data = buffer.getvalue()
        if partition == len(self._index):
            self._index.append([])
        self._index[partition].append([self._file.tell(), data.size, frame.height, zlib.crc32(data)])
        self._file.write(data)


def _merged(frames: list[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Runs of frames of one schema as one frame each (a frame without columns still has rows)."""
    run: list[pl.DataFrame] = []
    for frame in frames:
        if run and (frame.schema != run[0].schema or not frame.width):
            yield pl.concat(run, rechunk=True) if len(run) > 1 else run[0]
            run = []
        run.append(frame)
    if run:
        yield pl.concat(run, rechunk=True) if len(run) > 1 else run[0]


def read_blocks(path: Path, partition: int = 0, *, only: Sequence[int] | None = None) -> Iterator[pl.DataFrame]:
    """The rows of one partition, in the order they were written.

    Args:
        path: a block file.
        partition: which.
        only: the numbers of the blocks to read, by default all.

    Raises:
        CorruptBlockError: the file is gone or not whole, or a block fails its checksum.
    """
    with _opened(path) as file:
        blocks = _read_index(file, path)[partition]
        for offset, size, rows, crc in blocks if only is None else [blocks[i] for i in only]:
            file.seek(offset)
            data = file.read(size)
            if len(data) != size or zlib.crc32(data) != crc:
                raise CorruptBlockError(
                    f"{path}: block at offset {offset:,} fails its checksum; delete the work directory"
                )
            table = pa.ipc.open_stream(data).read_all()
            yield to_frame(table) if table.num_columns else pl.DataFrame(height=rows)


def num_rows(path: Path) -> int:
    """How many rows the first partition has, by the index.

    Raises:
        CorruptBlockError: the file is gone or not whole.
    """
    with _opened(path) as file:
        return sum(rows for _, _, rows, _ in _read_index(file, path)[0])


def read_rows(path: Path, begin: int, end: int) -> Iterator[pl.DataFrame]:
    """The rows ``begin`` up to ``end`` of the first partition; blocks that hold none of them are not read.

    Raises:
        CorruptBlockError: the file is gone or not whole, or a block fails its checksum.
    """
    with _opened(path) as file:
        sizes = [rows for _, _, rows, _ in _read_index(file, path)[0]]
    starts = [0, *accumulate(sizes)]
    touched = [i for i, size in enumerate(sizes) if starts[i] < end and starts[i] + size > begin]
    for i, frame in zip(touched, read_blocks(path, only=touched), strict=True):
        yield frame[max(begin - starts[i], 0) : end - starts[i]]


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as e:
        raise CorruptBlockError(f"{path}: is gone ({e.strerror}); run again with a fresh work directory") from e


def _read_index(file: IO[bytes], path: Path) -> list[list[list[int]]]:
    end = struct.calcsize("<QI") + len(_MAGIC)
    try:
        file.seek(-end, 2)
        tail = file.read(end)
        length, crc = struct.unpack("<QI", tail[: -len(_MAGIC)])
        file.seek(-end - length, 2)
        index = file.read(length)
    except (OSError, struct.error) as e:
        raise CorruptBlockError(f"{path}: not a whole block file ({e}); delete the work directory") from e
    if not tail.endswith(_MAGIC) or zlib.crc32(index) != crc:
        raise CorruptBlockError(f"{path}: the index fails its checksum; delete the work directory")
    return json.loads(index)
