"""Explode: one row for each member of a list; the other columns are repeated.

A row whose list is null or empty stays, with a null: no row is lost because it has nothing to unfold. A frame is cut
before it is unfolded, so that what comes of it has the size of a batch, unless one row alone makes more.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from marin_zephyr.batching import batches
from marin_zephyr.context import Frames, TaskContext
from marin_zephyr.counters import RowCounts
from marin_zephyr.errors import SchemaError
from marin_zephyr.frames import BATCH_ROWS
from marin_zephyr.nodes import Explode


def explode(frames: Frames, op: Explode, name: str, counts: RowCounts, context: TaskContext) -> Frames:
    """The rows that the lists make.

    Raises:
        SchemaError: the column holds no lists.
    """
    for frame in frames:
        frame = context.require(frame, (op.column,), name)
        kind = frame.schema[op.column]
        if kind == pl.Null:
            counts.add(RowCounts(rows_in=frame.height, consumed=frame.height, produced=frame.height))
            yield frame
            continue
        if not isinstance(kind, (pl.List, pl.Array)):
            raise SchemaError(f"{name}: column {op.column!r} is {kind}, not a list; map it to lists before this point")
        if isinstance(kind, pl.Array):
            frame = frame.with_columns(pl.col(op.column).arr.to_list())
        for piece in _cut(frame, op.column):
            made = piece.explode(op.column, empty_as_null=True, keep_nulls=True)
            counts.add(RowCounts(rows_in=piece.height, consumed=piece.height, produced=made.height))
            yield from batches([made])


def _cut(frame: pl.DataFrame, column: str) -> list[pl.DataFrame]:
    """Runs of rows that make at most a batch each; a row that makes more is a run of its own."""
    lengths = frame.get_column(column).list.len().fill_null(1).clip(1).to_numpy().astype(np.int64)
    ends = np.cumsum(lengths)
    pieces, start, made = [], 0, 0
    while start < frame.height:
        stop = max(start + 1, int(np.searchsorted(ends, made + BATCH_ROWS, side="right")))
        pieces.append(frame[start:stop])
        start, made = stop, int(ends[stop - 1])
    return pieces
