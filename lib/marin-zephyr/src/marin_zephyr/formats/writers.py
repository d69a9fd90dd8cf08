"""The sinks: parquet, Arrow (`arrow`) and JSON lines, written so that equal rows give equal bytes.

Groups of rows are cut at fixed sizes (`columnar`), compressors are given no time stamp, and no writer uses threads.

JSON is encoded by Polars where that gives the same objects as Python's encoder, which the types of the columns decide:
of NaN Polars would make null, and dates it writes in a form of its own. Rows that carry the lines they were read from
are written as they stand.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import zstandard

from marin_zephyr.errors import SchemaError
from marin_zephyr.formats.arrow import ArrowPart
from marin_zephyr.formats.columnar import ColumnarPart
from marin_zephyr.frames import BATCH_ROWS
from marin_zephyr.nodes import RAW

_SAME_IN_POLARS = (pl.String, pl.Boolean, pl.Null, pl.Float64, pl.Int8, pl.Int16, pl.Int32, pl.Int64)
_SAME_IN_POLARS += (pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64)


class PartWriter(Protocol):
    """Writes one part file."""

    def write(self, frame: pl.DataFrame) -> None:
        """Appends rows."""
        ...

    def close(self) -> pa.Schema | None:
        """Finishes the file; the schema if the format has one."""
        ...


class ParquetPart(ColumnarPart):
    """One parquet file, a row group a group; ``zstd``, ``snappy`` or nothing compresses its columns."""

    def _open(self, path: Path, schema: pa.Schema) -> pq.ParquetWriter:
        return pq.ParquetWriter(path, schema, compression=self._compression or "none")

    def _append(self, writer: pq.ParquetWriter, group: pa.Table) -> None:
        writer.write_table(group, row_group_size=BATCH_ROWS)

    def _groups(self, path: Path) -> Iterator[pa.Table]:
        with pq.ParquetFile(path) as opened:
            for i in range(opened.num_row_groups):
                yield opened.read_row_group(i, use_threads=False)


class JsonlPart:
    """One file of JSON lines: UTF-8, one object a line, nulls written out."""

    def __init__(self, path: Path, compression: str | None) -> None:
        self._raw = path.open("wb")
        self._file: Any = self._raw
        if compression == "gz":
            self._file = gzip.GzipFile(filename="", fileobj=self._raw, mode="wb", compresslevel=6, mtime=0)
        elif compression == "zst":
            self._file = zstandard.ZstdCompressor(level=3).stream_writer(self._raw, closefd=False)

    def write(self, frame: pl.DataFrame) -> None:
        """Appends rows.

        Raises:
            SchemaError: a column holds NaN, infinity or bytes.
        """
        self._file.write(_raw_lines(frame[RAW]) if RAW in frame.columns else _lines(frame))

    def close(self) -> None:
        """Ends the compressed stream and the file."""
        if self._file is not self._raw:
            self._file.close()
        self._raw.close()


def _raw_lines(raw: pl.Series) -> memoryview:
    """The lines, each with its end."""
    ends = pa.scalar(b"\n", pa.large_binary()), pa.scalar(b"", pa.large_binary())
    joined = pc.call_function("binary_join_element_wise", [raw.alias("raw").to_arrow(), *ends])
    offsets, data = joined.buffers()[1:]
    last = memoryview(offsets).cast("b").cast("q")[joined.offset + len(joined)] if len(joined) else 0
    return memoryview(data or b"")[:last]


def _lines(frame: pl.DataFrame) -> bytes:
    for column in frame:
        _check_words(column)
    if frame.width and all(_is_same_in_polars(kind) for kind in frame.dtypes):
        lines = io.BytesIO()
        frame.write_ndjson(lines)
        return lines.getvalue()  # not a view: collected with the error of a full disk, it would crash Python
    encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_plain)
    return "".join(encoder.encode(row) + "\n" for row in frame.iter_rows(named=True)).encode()


def _is_same_in_polars(kind: pl.DataType) -> bool:
    if isinstance(kind, pl.List):
        return _is_same_in_polars(kind.inner)  # pyrefly: ignore
    if isinstance(kind, pl.Struct):
        return bool(kind.fields) and all(_is_same_in_polars(field.dtype) for field in kind.fields)  # pyrefly: ignore
    return isinstance(kind, _SAME_IN_POLARS)


def _check_words(column: pl.Series) -> None:
    for leaf in _leaves(column):
        if leaf.dtype.is_float() and not leaf.is_finite().all():
            what, fix = "NaN or infinity", "fill it"
        elif leaf.dtype == pl.Binary and leaf.null_count() < len(leaf):
            what, fix = "bytes", "encode it as base64"
        else:
            continue
        raise SchemaError(f"column {column.name!r} holds {what}, which JSON has no word for; write parquet, or {fix}")


def _leaves(column: pl.Series) -> Iterator[pl.Series]:
    """The values within a column that are neither lists nor structs."""
    if column.null_count():
        column = column.drop_nulls()  # under a null may lie anything
    if isinstance(column.dtype, pl.Struct):
        for field in column.struct.fields:
            yield from _leaves(column.struct.field(field))
    elif isinstance(column.dtype, pl.List | pl.Array):
        yield from _leaves(column.explode())
    else:
        yield column


def _plain(value: Any) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def part_name(index: int, format: str, compression: str | None) -> str:
    """``part-00003.parquet``, ``part-00003.arrow``, ``part-00003.jsonl.zst``."""
    extension = f"{format}.{compression}" if format == "jsonl" and compression else format
    return f"part-{index:05d}.{extension}"


COLUMNAR: dict[str, type[ColumnarPart]] = {"parquet": ParquetPart, "arrow": ArrowPart}
"""Format -> the writer of its parts, for the formats whose parts have a schema."""


def part_writer(path: Path, format: str, compression: str | None) -> PartWriter:
    """The writer of a format."""
    path.unlink(missing_ok=True)  # a task given up for dead may hold it open, and come back
    return COLUMNAR.get(format, JsonlPart)(path, compression)
