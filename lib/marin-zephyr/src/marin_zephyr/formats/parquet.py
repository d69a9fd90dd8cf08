"""Parquet: batches of whole rows, cut by the file's own statistics so that none passes 64 MiB.

A footer that cannot be read means the file is damaged or was never finished: there is no record to set aside, so the
whole file goes to the desk. So it does if a column that should hold strings is of another type, and so do the rows from
a damaged batch on. Where the footer can be read, the desk is told how many rows that are.

See: https://parquet.apache.org/docs/file-format/
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from marin_zephyr.formats.files import InputFile
from marin_zephyr.formats.provenance import finish
from marin_zephyr.formats.rejects import Desk
from marin_zephyr.frames import BATCH_BYTES, BATCH_ROWS, to_frame
from marin_zephyr.nodes import ReadOptions


def read(file: InputFile, options: ReadOptions, desk: Desk) -> Iterator[pl.DataFrame]:
    """Frames of a file's rows, in order."""
    row, num_rows = 1, 1
    try:
        with _open(file) as opened:
            parquet = pq.ParquetFile(opened)
            schema, num_rows = parquet.schema_arrow, parquet.metadata.num_rows
            for name in options.string_columns:
                if name in schema.names and not _is_text(schema.field(name).type):
                    reason = f"column {name!r} is {schema.field(name).type}, not a string"
                    desk.record(file, line=None, offset=None, reason=reason, raw=b"", rows=max(1, num_rows))
                    return
            names = schema.names
            if options.columns is not None:  # one at least: a batch without columns forgets its rows
                names = [c for c in options.columns if c in names] or names[:1]
            texts = [pl.col(c).cast(pl.String) for c in options.string_columns if c in names]
            for batch in parquet.iter_batches(batch_size=_batch_rows(parquet), columns=names, use_threads=False):
                frame = to_frame(pa.Table.from_batches([batch])).with_columns(texts)
                yield finish(frame, file, options, rows=np.arange(row, row + frame.height), offsets=None)
                row += frame.height
    except (pa.ArrowException, OSError) as e:
        reason = f"not a readable parquet file: from row {row:,} on ({' '.join(str(e).split())})"
        desk.record(file, line=None, offset=None, reason=reason, raw=b"", rows=max(1, num_rows - row + 1))


def _open(file: InputFile) -> Any:
    if "://" not in file.url:
        return pa.OSFile(os.fsencode(file.url), "rb")
    import fsspec

    return fsspec.url_to_fs(file.url)[0].open(file.url, "rb")


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return kind in (pa.null(), pa.string(), pa.large_string(), pa.string_view())


def _batch_rows(parquet: pq.ParquetFile) -> int:
    """Rows a batch, such that the widest row group's average row keeps it within half the limit."""
    meta = parquet.metadata
    widths = [
        meta.row_group(i).total_byte_size / max(1, meta.row_group(i).num_rows) for i in range(meta.num_row_groups)
    ]
    return max(1, min(BATCH_ROWS, int(BATCH_BYTES / 2 / max(1.0, *widths, 1.0))))
