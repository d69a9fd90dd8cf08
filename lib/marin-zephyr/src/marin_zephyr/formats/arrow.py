"""Arrow IPC: files (Feather's second version is one) and streams, read batch by batch; and the sink that writes files.

A file and a stream differ at their ends, so the first bytes tell which it is. What cannot be read, be it a damaged
batch or the end of a stream that breaks off, loses all rows from there on, and the desk is told from which. Arrow
trusts offsets and text as they lie in the file; here each batch is checked before anyone touches it. The format lets a
stream end without a mark, every writer sets one, and without it a cut between two batches could not be seen: so a
stream without it is refused after its last row.

The sink writes equal bytes for equal rows: batches of fixed size (`columnar`), compressed one after another.

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
from marin_zephyr.formats.columnar import ColumnarPart
from marin_zephyr.formats.files import InputFile
from marin_zephyr.formats.parquet import is_text
from marin_zephyr.formats.provenance import finish, needed
from marin_zephyr.formats.rejects import Desk
from marin_zephyr.formats.streams import blocks, open_random
from marin_zephyr.frames import BATCH_BYTES, BATCH_ROWS, to_frame
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


class ArrowPart(ColumnarPart):
    """One Arrow file, a record batch a group; ``zstd``, ``lz4`` or nothing compresses its columns."""

    def _table(self, frame: pl.DataFrame) -> pa.Table:
        return _decoded(frame.to_arrow())

    def _open(self, path: Path, schema: pa.Schema) -> pa.ipc.RecordBatchFileWriter:
        options = pa.ipc.IpcWriteOptions(compression=self._compression, use_threads=False)
        return pa.ipc.new_file(str(path), schema, options=options)

    def _append(self, writer: pa.ipc.RecordBatchFileWriter, group: pa.Table) -> None:
        # What lies under a null and behind the last bit would tell how the rows came together.
        writer.write_table(group.take(pa.array(np.arange(group.num_rows))))

    def _groups(self, path: Path) -> Iterator[pa.Table]:
        with pa.OSFile(str(path), "rb") as opened:
            for batch in _batches(pa.ipc.open_file(opened)):
                yield pa.Table.from_batches([batch])


def _decoded(table: pa.Table) -> pa.Table:
    """Without dictionaries: a file holds one for each column, and batches come with theirs."""
    columns = [c.cast(c.type.value_type) if pa.types.is_dictionary(c.type) else c for c in table.columns]
    return pa.table(columns, names=table.column_names)
