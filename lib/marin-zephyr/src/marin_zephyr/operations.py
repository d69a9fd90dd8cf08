"""What each operation does to a stream of frames. A chain of them is one pass over a shard.

Every operation is a generator from frames to frames that counts its rows (`RowCounts`). Neighbouring row functions run
together over one decoding of the rows into dicts; a chain of row filters alone only selects, and nothing is encoded
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from marin_zephyr.context import Frames, TaskContext
from marin_zephyr.counters import RowCounts
from marin_zephyr.errors import FAILURES, RejectRow, SchemaError, UserCodeError, ZephyrError
from marin_zephyr.formats.rejects import Desk, place
from marin_zephyr.frames import as_row, batches_of_rows, concat, to_frame
from marin_zephyr.nodes import (
    RAW,
    Explode,
    FilterExpr,
    FilterRows,
    FlatMap,
    Map,
    MapBatches,
    MapShards,
    RejectWhere,
    Row,
    RowOp,
    Sample,
    Select,
    Window,
    WithColumns,
)
from marin_zephyr.positional.exploding import explode
from marin_zephyr.positional.sampling import sample
from marin_zephyr.positional.windows import map_shards, window
from marin_zephyr.specs import KeyedOp, StageOp

_TABLES = (pl.DataFrame, pa.Table)


def run_chain(frames: Frames, ops: Sequence[StageOp], labels: Sequence[str], context: TaskContext) -> Frames:
    """``frames`` through all operations, lazily. ``labels`` name them in errors and counts."""
    i = 0
    while i < len(ops):
        op = ops[i]
        if isinstance(op, (Map, FlatMap, FilterRows)):
            j = i
            while j < len(ops) and isinstance(ops[j], (Map, FlatMap, FilterRows)):
                j += 1
            steps = [_row_step(op, labels[k], context) for k, op in enumerate(ops[i:j], start=i)]  # pyrefly: ignore
            frames = _row_functions(frames, steps, labels[j - 1], all(isinstance(op, FilterRows) for op in ops[i:j]))
            i = j
            continue
        counts = context.counter(labels[i])
        if context.care is not None:
            frames = context.care.batches(frames, labels[i])
        if isinstance(op, KeyedOp):
            frames = op.apply(frames, labels[i], counts, context)
        else:
            frames = _OPERATIONS[type(op)](frames, op, labels[i], counts, context)
        i += 1
    return frames


def _filter(frames: Frames, op: FilterExpr, name: str, counts: RowCounts, context: TaskContext) -> Frames:
    for frame in frames:
        kept = _evaluated(frame, (op.expr,), lambda f: f.filter(op.expr), name, context)
        _count(counts, frame.height, passed=kept.height, filtered=frame.height - kept.height)
        yield kept


def _reject(frames: Frames, op: RejectWhere, name: str, counts: RowCounts, context: TaskContext) -> Frames:
    for frame in frames:
        verdict = _evaluated(frame, (op.expr,), lambda f: _broadcast(f, [op.expr.fill_null(False)]), name, context)
        bad = verdict.to_series()
        if bad.dtype not in (pl.Boolean, pl.Null):
            raise SchemaError(f"{name}: its expression must be of type Boolean, and is {bad.dtype}")
        bad = bad.cast(pl.Boolean)
        for row in frame.filter(bad).iter_rows(named=True):
            context.desk.row(row, operation=name, reason=op.reason)
        kept = frame.filter(~bad)
        _count(counts, frame.height, passed=kept.height, rejected=frame.height - kept.height)
        yield kept


def _project(frames: Frames, op: Select | WithColumns, name: str, counts: RowCounts, context: TaskContext) -> Frames:
    make = _broadcast if isinstance(op, Select) else pl.DataFrame.with_columns
    for frame in frames:
        made = _evaluated(frame, op.exprs, lambda f: make(f, op.exprs), name, context)
        _count(counts, frame.height, passed=made.height)
        yield made


def _broadcast(frame: pl.DataFrame, exprs: Sequence[pl.Expr]) -> pl.DataFrame:
    """``select`` in which a literal fills the frame's height, not one row."""
    return frame.select(pl.int_range(pl.len()).alias("\0row"), *exprs).drop("\0row")


def _evaluated(
    frame: pl.DataFrame,
    exprs: Sequence[pl.Expr],
    evaluate: Callable[[pl.DataFrame], pl.DataFrame],
    name: str,
    context: TaskContext,
) -> pl.DataFrame:
    """An expression over a frame in which a column that the batch lacks is null, as it is for a row that lacks it."""
    names = list(dict.fromkeys(root for expr in exprs for root in expr.meta.root_names()))
    frame = context.require(frame, names)
    try:
        return evaluate(frame)
    except pl.exceptions.PolarsError as e:
        untyped = [column for column in names if frame.schema.get(column) == pl.Null]
        if not untyped:
            raise SchemaError(f"{name}: {e}") from e
    # A batch of nothing but nulls has no type; Polars's string functions want one.
    try:
        return evaluate(frame.with_columns(pl.col(column).cast(pl.String) for column in untyped))
    except pl.exceptions.PolarsError as e:
        raise SchemaError(f"{name}: {e}") from e


def _map_batches(frames: Frames, op: MapBatches, name: str, counts: RowCounts, context: TaskContext) -> Frames:
    for frame in frames if op.batch_rows is None else _resized(frames, op.batch_rows):
        try:
            made = op.fn(frame if op.batch_format == "polars" else frame.to_arrow())
            # As a list, so that a generator that raises half-way has given nothing yet.
            outs = list(made) if isinstance(made, Iterable) and not isinstance(made, _TABLES) else [made]
        except ZephyrError:
            raise
        except FAILURES as e:
            raise UserCodeError(f"{name} failed on a batch of {frame.height:,} rows: {type(e).__name__}: {e}") from e
        _count(counts, frame.height, consumed=frame.height)
        for out in outs:
            if not isinstance(out, _TABLES):
                raise UserCodeError(
                    f"{name} returned {type(out).__name__}; return a polars.DataFrame or a pyarrow.Table"
                )
            result = out if isinstance(out, pl.DataFrame) else to_frame(out)
            counts.produced += result.height
            yield result


def _resized(frames: Frames, size: int) -> Frames:
    """Batches of exactly ``size`` rows, the last excepted."""
    held: list[pl.DataFrame] = []
    rows = 0
    for frame in frames:
        held.append(frame)
        rows += frame.height
        if rows < size:
            continue
        whole = concat(held, what="map_batches")
        full = rows - rows % size
        for start in range(0, full, size):
            yield whole[start : start + size]
        held, rows = [whole[full:]], rows % size
    if rows:
        yield concat(held, what="map_batches")


type _Step = Callable[[Iterable[Row]], Iterator[Row]]


def _row_functions(frames: Frames, steps: Sequence[_Step], name: str, only_filters: bool) -> Frames:
    for frame in frames:
        if only_filters:
            yield _selected(frame, steps)
            continue
        rows: Iterable[Row] = frame.iter_rows(named=True)
        for step in steps:
            rows = step(rows)
        try:
            yield from batches_of_rows(rows)
        except SchemaError as e:
            raise SchemaError(f"rows from {name}: {e}") from e


def _selected(frame: pl.DataFrame, steps: Sequence[_Step]) -> pl.DataFrame:
    """Row filters alone: the rows that come through, taken from the frame as they are."""
    position = -1

    def numbered() -> Iterator[Row]:
        nonlocal position
        for position, row in enumerate(frame.drop(RAW, strict=False).iter_rows(named=True)):  # noqa: B007  read by the loop below
            yield row

    rows: Iterable[Row] = numbered()
    for step in steps:
        rows = step(rows)
    kept = [position for _ in rows]
    return frame if len(kept) == frame.height else frame[np.array(kept, dtype=np.int64)]


def _row_step(op: RowOp, name: str, context: TaskContext) -> _Step:
    counts, desk = context.counter(name), context.desk
    # As a list, so that a generator that raises half-way has given nothing yet.
    fn = (lambda row: list(op.fn(row))) if isinstance(op, FlatMap) else op.fn
    if context.care is not None:
        fn = context.care.row_function(fn, operation=len(context.counts) - 1, name=name)
    if isinstance(op, Map):
        return lambda rows: _mapped(_called(fn, rows, counts, desk, name), counts, name)
    if isinstance(op, FilterRows):
        return lambda rows: _filtered(_called(fn, rows, counts, desk, name), counts)
    return lambda rows: _flattened(_called(fn, rows, counts, desk, name), counts, name)


def _called(
    fn: Callable[[Row], Any], rows: Iterable[Row], counts: RowCounts, desk: Desk, name: str
) -> Iterator[tuple[Row, Any]]:
    """Each row with what the function made of it; refused rows go to the desk."""
    for row in rows:
        counts.rows_in += 1
        try:
            result = fn(row)
        except RejectRow as e:
            counts.rejected += 1
            desk.row(row, operation=name, reason=e.reason)
            continue
        except ZephyrError:
            raise
        except FAILURES as e:
            raise UserCodeError(f"{name} failed on the row of {place(row)}: {type(e).__name__}: {e}") from e
        yield row, result


def _mapped(called: Iterator[tuple[Row, Any]], counts: RowCounts, name: str) -> Iterator[Row]:
    for _, made in called:
        counts.passed += 1
        yield as_row(made, name)


def _flattened(called: Iterator[tuple[Row, Any]], counts: RowCounts, name: str) -> Iterator[Row]:
    for _, made in called:
        counts.consumed += 1
        for row in made:
            counts.produced += 1
            yield as_row(row, name)


def _filtered(called: Iterator[tuple[Row, Any]], counts: RowCounts) -> Iterator[Row]:
    for row, keep in called:
        if keep:
            counts.passed += 1
            yield row
        else:
            counts.filtered += 1


def _count(counts: RowCounts, rows_in: int, **what: int) -> None:
    counts.rows_in += rows_in
    for name, n in what.items():
        setattr(counts, name, getattr(counts, name) + n)


type _Operation = Callable[[Frames, Any, str, RowCounts, TaskContext], Frames]

_OPERATIONS: dict[type, _Operation] = {
    FilterExpr: _filter,
    RejectWhere: _reject,
    Select: _project,
    WithColumns: _project,
    MapBatches: _map_batches,
    Explode: explode,
    Sample: sample,
    Window: window,
    MapShards: map_shards,
}
