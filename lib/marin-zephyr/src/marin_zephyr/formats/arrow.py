"""Arrow IPC: files (Feather's second version is one) and streams, read batch by batch; and the sink that writes files.

A file and a stream differ at their ends, so the first bytes tell which it is. What cannot be read, be it a damaged
batch or the end of a stream that breaks off, loses all rows from there on, and the desk is told from which. Arrow
trusts offsets and text as they lie in the file; here each batch is checked before anyone touches it. The format lets a
stream end without a mark, every writer sets one, and without it a cut between two batches could not be seen: so a
stream without it is refused after its last row.

The sink writes equal bytes for equal rows: batches of fixed size, compressed one after another. As in parquet parts,
the schema may widen while a part is written, and then the part is written again from what it holds.

See: https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from marin_zephyr.errors import InputError
from marin_zephyr.formats.files import InputFile
from marin_zephyr.formats.parquet import is_text
from marin_zephyr.formats.provenance import finish, needed
from marin_zephyr.formats.rejects import Desk
from marin_zephyr.formats.streams import blocks, open_random
from marin_zephyr.formats.writers import GROUP_BYTES, check_columns
from marin_zephyr.frames import BATCH_BYTES, BATCH_ROWS, conform, to_frame, unify
from marin_zephyr.merging import batches
from marin_zephyr.nodes import ReadOptions

_MAGIC = b"ARROW1"
_END_MARK = b"\xff\xff\xff\xff\0\0\0\0"


def read(file: InputFile, options: ReadOptions, desk: Desk) -> Iterator[pl.DataFrame]:
    """Frames of a file's rows, in order."""
    if file.size == 0:
        return
    row = 1
    try:
        with _open(file) as opened:
            is_file = opened.read(len(_MAGIC)) == _MAGIC
            opened.seek(0)
            batches = pa.ipc.open_file(opened) if is_file else pa.ipc.open_stream(opened)
            names, texts = batches.schema.names, [c for c in options.string_columns if c in batches.schema.names]
            for name in texts:
                if not is_text(batches.schema.field(name).type):
                    reason = f"column {name!r} is {batches.schema.field(name).type}, not a string"
                    lost = sum(batch.num_rows for batch in _batches(batches))
                    desk.record(file, line=None, offset=None, reason=reason, raw=b"", rows=max(1, lost))
                    return
            asked = needed(options)
            wanted = names if asked is None else [c for c in asked if c in names] or names[:1]
            for batch in _batches(batches):
                frame = to_frame(pa.Table.from_batches([batch]).select(wanted))
                frame = frame.with_columns(pl.col(c).cast(pl.String) for c in texts if c in wanted)
                size = _batch_rows(batch)
                for start in range(0, frame.height, size):
                    piece = frame.slice(start, size)
                    numbers = np.arange(row, row + piece.height)
                    row += piece.height
                    yield finish(piece, file, options, rows=numbers, offsets=None, desk=desk)
            if not is_file:
                opened.seek(max(0, opened.size() - len(_END_MARK)))
                if opened.read() != _END_MARK:
                    raise InputError("the stream is truncated: it ends without an end mark")
    except (pa.ArrowException, OSError, InputError) as e:
        if desk.policy == "raise" and isinstance(e, InputError) and file.compression is not None:
            raise
        reason = f"not a readable Arrow file: from row {row:,} on ({' '.join(str(e).split())})"
        desk.record(file, line=None, offset=None, reason=reason, raw=b"")


def _open(file: InputFile) -> pa.NativeFile:
    if file.compression is not None:  # it is read here and there, so all of it is needed at once
        return pa.BufferReader(b"".join(blocks(file.url, file.compression)))
    opened = open_random(file.url)
    return opened if isinstance(opened, pa.NativeFile) else pa.PythonFile(opened, mode="r")


def _batches(reader: Any) -> Iterator[pa.RecordBatch]:
    if isinstance(reader, pa.ipc.RecordBatchFileReader):
        found: Iterator[pa.RecordBatch] = (reader.get_batch(i) for i in range(reader.num_record_batches))
    else:
        found = iter(reader)
    for batch in found:
        batch.validate(full=True)
        yield batch


def _batch_rows(batch: pa.RecordBatch) -> int:
    width = batch.nbytes / max(1, batch.num_rows)
    return max(1, min(BATCH_ROWS, int(BATCH_BYTES / 2 / max(1.0, width))))


class ArrowPart:
    """One Arrow file; batches of at most 65,536 rows and 16 MiB. Satisfies `writers.PartWriter`.

    Args:
        path: the file to write.
        compression: of the columns: ``zstd``, ``lz4``, or None or ``none``.
    """

    def __init__(self, path: Path, compression: str | None) -> None:
        self._path = path
        self._compression = compression
        self._schema: pa.Schema | None = None
        self._writer: pa.ipc.RecordBatchFileWriter | None = None
        self._held: list[pa.Table] = []
        self._rows = self._bytes = 0

    def write(self, frame: pl.DataFrame) -> None:
        """Appends rows, holding them until a batch is full."""
        known = [] if self._schema is None else [self._schema]
        self._widen(unify([*known, _decoded(frame.clear().to_arrow()).schema], what=self._path.name))
        for part in batches([frame]):
            piece = _decoded(part.to_arrow())
            if self._held and (self._rows + piece.num_rows > BATCH_ROWS or self._bytes + piece.nbytes > GROUP_BYTES):
                self._flush()
            self._held.append(piece)
            self._rows += piece.num_rows
            self._bytes += piece.nbytes

    def close(self) -> pa.Schema:
        """Writes what is held, and the footer. A part without rows is a readable file."""
        self._flush()
        schema = self._schema or pa.schema([])
        writer = self._writer or _writer(self._path, schema, self._compression)
        writer.close()
        return schema

    def _flush(self) -> None:
        if not self._held:
            return
        assert self._schema is not None
        check_columns(self._schema, self._path)
        self._writer = self._writer or _writer(self._path, self._schema, self._compression)
        tables = [conform(t, self._schema, what=self._path.name) for t in self._held]
        self._writer.write_table(_repacked(pa.concat_tables(tables)))
        self._held, self._rows, self._bytes = [], 0, 0

    def _widen(self, schema: pa.Schema) -> None:
        before, self._schema = self._schema, schema
        if self._writer is not None and schema != before:
            self._writer.close()
            old = self._path.with_suffix(".narrow")
            self._path.rename(old)
            self._writer = _writer(self._path, schema, self._compression)
            _copy(old, self._writer, schema)
            old.unlink()


def rewrite_arrow(path: Path, schema: pa.Schema, compression: str | None) -> None:
    """Replaces a part by itself under a wider schema, atomically."""
    wide = path.with_suffix(".wide")
    with _writer(wide, schema, compression) as writer:
        _copy(path, writer, schema)
    wide.replace(path)


def _writer(path: Path, schema: pa.Schema, compression: str | None) -> pa.ipc.RecordBatchFileWriter:
    codec = None if compression in (None, "none") else compression
    options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
    return pa.ipc.new_file(str(path), schema, options=options)


def _copy(source: Path, writer: pa.ipc.RecordBatchFileWriter, schema: pa.Schema) -> None:
    with pa.OSFile(str(source), "rb") as opened:
        for batch in _batches(pa.ipc.open_file(opened)):
            writer.write_table(conform(pa.Table.from_batches([batch]), schema, what=source.name).combine_chunks())


def _repacked(table: pa.Table) -> pa.Table:
    """The same rows in one piece. What lies under a null and behind the last bit would tell how they came together."""
    return table.combine_chunks().take(pa.array(np.arange(table.num_rows)))


def _decoded(table: pa.Table) -> pa.Table:
    """Without dictionaries: a file holds one for each column, and batches come with theirs."""
    columns = [c.cast(c.type.value_type) if pa.types.is_dictionary(c.type) else c for c in table.columns]
    return pa.table(columns, names=table.column_names)
