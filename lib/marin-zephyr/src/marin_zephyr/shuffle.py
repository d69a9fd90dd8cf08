"""The exchange: which keys are equal, which partition a key belongs to, and the files in which rows change hands.

**Keys.** A key is one value or several columns. Equality is declared once, here: numbers are equal by value (``1`` is
``1.0``, ``-0.0`` is ``0.0``, every NaN is every NaN), a boolean is no number, a string is no bytes, null equals null,
lists and structs are equal member by member. A key's *digest* is XXH3-128 of the value's canonical bytes, seeded by its
kind; rows are matched by digest. (For n keys two different ones meet with probability below n^2 / 2^129: 1e-21 for a
billion. The hash is not cryptographic: it guards against accident, not against an adversary.)

**Partitions.** A key's partition is the digest's first eight bytes, little-endian, modulo the number of partitions. The
function is named `PARTITION_FUNCTION` and enters every fingerprint; the number of partitions is a function of the
inputs.

**Block files.** A task that feeds an exchange writes one file: blocks, each a zstd-compressed Arrow IPC stream of rows
of one partition, and at the end an index (partition -> offset, length, rows, CRC32). A reader seeks to its own
partition's blocks in each file and checks them. The same format keeps rows between stages, with a single partition.

See: https://github.com/Cyan4973/xxHash (XXH3), https://arrow.apache.org/docs/format/Columnar.html (IPC streams).
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

import numpy as np
import polars as pl
import pyarrow as pa
import xxhash

from marin_zephyr.errors import CorruptBlockError, SchemaError
from marin_zephyr.frames import to_frame

PARTITION_FUNCTION = "xxh3-128/1"

_NULL, _BOOL, _INT, _FLOAT, _TEXT, _BYTES, _LIST, _STRUCT, _OTHER = range(9)
_MAGIC = b"ZBLK0001"
_FLUSH_BYTES = 64 << 20

_digest: Callable[[Any, int], bytes] = xxhash.xxh3_128_digest


def key_digests(frame: pl.DataFrame, on: Sequence[str] | None) -> np.ndarray:
    """The 16-byte digest of each row's key.

    Args:
        frame: rows.
        on: key columns; None for the whole row, whatever the order of its columns and whether nulls are spelled out.

    Returns:
        ``uint64[rows, 2]``; the first word decides the partition.
    """
    names = sorted(frame.columns) if on is None else on
    columns = [_column_digests(frame.get_column(name)) for name in names]
    if on is None:
        digests = (
            [_digest_members(names, row) for row in zip(*columns, strict=True)]
            if names
            else [b"\0" * 16] * frame.height
        )
    elif len(columns) == 1:
        digests = columns[0]
    else:
        digests = [_digest(b"".join(row), _LIST) for row in zip(*columns, strict=True)]
    return np.frombuffer(b"".join(digests), dtype="<u8").reshape(-1, 2)


def partitions(digests: np.ndarray, num_partitions: int) -> np.ndarray:
    """The partition of each key (`PARTITION_FUNCTION`)."""
    return (digests[:, 0] % np.uint64(num_partitions)).astype(np.int64)


def key_digest(value: Any) -> bytes:
    """The digest of one Python value, the definition of key equality."""
    if value is None:
        return _digest(b"", _NULL)
    if isinstance(value, bool):
        return _digest(b"\1" if value else b"\0", _BOOL)
    if isinstance(value, int):
        return _digest(value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True), _INT)
    if isinstance(value, float):
        if value.is_integer():
            return key_digest(int(value))
        return _digest(struct.pack("<d", value if value == value else float("nan")), _FLOAT)
    if isinstance(value, str):
        return _digest(value.encode(), _TEXT)
    if isinstance(value, bytes):
        return _digest(value, _BYTES)
    if isinstance(value, (list, tuple)):
        return _digest(b"".join(map(key_digest, value)), _LIST)
    if isinstance(value, dict):
        names = sorted(value)
        return _digest_members(names, [key_digest(value[name]) for name in names])
    if isinstance(value, Decimal) or hasattr(value, "isoformat"):
        return _digest(f"{type(value).__name__}:{value}".encode(), _OTHER)
    raise SchemaError(f"a key of type {type(value).__name__} has no declared equality; make it a string or a number")


def _digest_members(names: Sequence[str], digests: Sequence[bytes]) -> bytes:
    """A struct's digest: its members that are not null, by name, so that an absent member is a null one."""
    null = _digest(b"", _NULL)
    held = [_digest(name.encode(), _TEXT) + d for name, d in zip(names, digests, strict=True) if d != null]
    return _digest(b"".join(held), _STRUCT)


def _column_digests(column: pl.Series) -> list[bytes]:
    """`key_digest` of each value; text without a detour through Python strings."""
    if column.dtype == pl.String:
        null = _digest(b"", _NULL)
        return [null if v is None else _digest(v, _TEXT) for v in column.cast(pl.Binary).to_list()]
    return [key_digest(value) for value in column.to_list()]


class BlockWriter:
    """Writes one block file.

    Args:
        path: where; a task's own staging directory, renamed into place by nobody: the task's record makes it count.
        num_partitions: how many partitions the index has.
    """

    def __init__(self, path: Path, num_partitions: int) -> None:
        self.rows = 0
        self._file: IO[bytes] = path.open("wb")
        self._file.write(_MAGIC)
        self._index: list[list[list[int]]] = [[] for _ in range(num_partitions)]
        self._held: list[list[pl.DataFrame]] = [[] for _ in range(num_partitions)]
        self._bytes = 0

    def write(self, frame: pl.DataFrame, partition: int = 0) -> None:
        """Appends rows to a partition; the order within one is kept."""
        if not frame.height:
            return
        self.rows += frame.height
        self._held[partition].append(frame)
        self._bytes += int(frame.estimated_size())
        if self._bytes >= _FLUSH_BYTES:
            self._flush()

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
        options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
        for p, frames in enumerate(self._held):
            for frame in _merged(frames):
                table = frame.to_arrow()
                buffer = pa.BufferOutputStream()
                with pa.ipc.new_stream(buffer, table.schema, options=options) as stream:
                    stream.write_table(table)
                data = buffer.getvalue()
                self._index[p].append([self._file.tell(), data.size, table.num_rows, zlib.crc32(data)])
                self._file.write(data)
        self._held = [[] for _ in self._held]
        self._bytes = 0


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


def read_blocks(path: Path, partition: int = 0) -> Iterator[pl.DataFrame]:
    """The rows of one partition, in the order they were written.

    Raises:
        CorruptBlockError: the file is gone or not whole, or a block fails its checksum.
    """
    try:
        file = path.open("rb")
    except OSError as e:
        raise CorruptBlockError(f"{path}: is gone ({e.strerror}); run again with a fresh work directory") from e
    with file:
        for offset, size, rows, crc in _read_index(file, path)[partition]:
            file.seek(offset)
            data = file.read(size)
            if len(data) != size or zlib.crc32(data) != crc:
                raise CorruptBlockError(
                    f"{path}: block at offset {offset:,} fails its checksum; delete the work directory"
                )
            table = pa.ipc.open_stream(data).read_all()
            yield to_frame(table) if table.num_columns else pl.DataFrame(height=rows)


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
