"""Parquet: batches of whole rows, cut by the file's own statistics so that none passes 64 MiB.

A footer that cannot be read means the file is damaged or was never finished: there is no record to set aside, so the
whole file goes to the desk.

See: https://parquet.apache.org/docs/file-format/
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from marin_zephyr.formats.files import InputFile
from marin_zephyr.formats.provenance import ReadOptions, finish
from marin_zephyr.formats.rejects import Desk
from marin_zephyr.frames import BATCH_BYTES, BATCH_ROWS, to_frame


def read(file: InputFile, options: ReadOptions, desk: Desk) -> Iterator[pl.DataFrame]:
    """Frames of a file's rows, in order."""
    row = 1
    try:
        with _open(file) as opened:
            parquet = pq.ParquetFile(opened)
            names = None
            if options.columns is not None:
                names = [c for c in options.columns if c in parquet.schema_arrow.names]
            for batch in parquet.iter_batches(batch_size=_batch_rows(parquet), columns=names, use_threads=False):
                frame = to_frame(pa.Table.from_batches([batch]))
                yield finish(frame, file, options, rows=np.arange(row, row + frame.height), offsets=None)
                row += frame.height
    except (pa.ArrowInvalid, OSError) as e:
        reason = f"not a readable parquet file from row {row:,} on ({e})"
        desk.record(file, line=None, offset=None, reason=reason, raw=b"")


def _open(file: InputFile) -> Any:
    if "://" not in file.url:
        return pa.OSFile(file.url, "rb")
    import fsspec

    return fsspec.url_to_fs(file.url)[0].open(file.url, "rb")


def _batch_rows(parquet: pq.ParquetFile) -> int:
    """Rows a batch, such that the widest row group's average row keeps it within half the limit."""
    meta = parquet.metadata
    widths = [
        meta.row_group(i).total_byte_size / max(1, meta.row_group(i).num_rows) for i in range(meta.num_row_groups)
    ]
    return max(1, min(BATCH_ROWS, int(BATCH_BYTES / 2 / max(1.0, *widths, 1.0))))
