"""Functions of consecutive rows: of a few at a time (``window``), or of all rows of a shard (``map_shards``).

Rows go in and other rows come out, so all that are read are consumed and all that are made are produced. Windows do
not cross shards: where a shard ends is a function of the inputs, and the last window of one may be short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import batched
from typing import Any

from marin_zephyr.context import Frames, TaskContext
from marin_zephyr.counters import RowCounts
from marin_zephyr.errors import FAILURES, RejectRow, UserCodeError, ZephyrError
from marin_zephyr.formats.rejects import place
from marin_zephyr.frames import as_row, batches_made
from marin_zephyr.nodes import MapShards, Row, Window

_END: Any = object()


def window(frames: Frames, op: Window, name: str, counts: RowCounts, context: TaskContext) -> Frames:
    """The rows that the function makes of each window. One that it refuses (`RejectRow`) is refused row by row."""

    def made() -> Iterator[Row]:
        for rows in batched((row for frame in frames for row in frame.iter_rows(named=True)), op.size):
            counts.rows_in += len(rows)
            try:
                results = [as_row(row, name) for row in op.fn(list(rows))]
            except RejectRow as e:
                counts.rejected += len(rows)
                for row in rows:
                    context.desk.row(row, operation=name, reason=e.reason)
                continue
            except ZephyrError:
                raise
            except FAILURES as e:
                where = f"the window of {len(rows)} rows from {place(rows[0])}"
                raise UserCodeError(f"{name} failed on {where}: {type(e).__name__}: {e}") from e
            counts.consumed += len(rows)
            counts.produced += len(results)
            yield from results

    return batches_made(made(), name)


def map_shards(frames: Frames, op: MapShards, name: str, counts: RowCounts, context: TaskContext) -> Frames:
    """The rows that the function makes of the shard's. What it does not read is not read."""
    last: Row | None = None

    def given() -> Iterator[Row]:
        nonlocal last
        for frame in frames:
            counts.add(RowCounts(rows_in=frame.height, consumed=frame.height))
            for row in frame.iter_rows(named=True):
                last = row
                yield row

    def made() -> Iterator[Row]:
        results = _guarded(lambda: iter(op.fn(given())))
        while (row := _guarded(lambda: next(results, _END))) is not _END:
            counts.produced += 1
            yield as_row(row, name)

    def _guarded[T](call: Callable[[], T]) -> T:
        try:
            return call()
        except ZephyrError:
            raise
        except FAILURES as e:
            where = "before its first row" if last is None else f"at the row of {place(last)}"
            raise UserCodeError(f"{name} failed on shard {context.index} {where}: {type(e).__name__}: {e}") from e

    return batches_made(made(), name)
