"""What each operation does to a stream of frames. A chain of them is one pass over a shard.

Every operation is a generator from frames to frames that counts its rows (`RowCounts`). Neighbouring row functions run
together over one decoding of the rows into dicts; a chain of row filters alone only selects, and nothing is encoded
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from marin_zephyr.context import Frames, TaskContext
from marin_zephyr.counters import RowCounts
from marin_zephyr.errors import FAILURES, RejectRow, SchemaError, UserCodeError, ZephyrError
from marin_zephyr.evaluation import evaluated, root_names
from marin_zephyr.formats.rejects import Desk, place
from marin_zephyr.frames import as_row, batches_made, concat, named, rows_of, to_frame
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
            functions = [_row_function(op, labels[k], context) for k, op in enumerate(ops[i:j], start=i)]  # pyrefly: ignore
            frames = _row_functions(frames, functions, context.desk)
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
        kept = kept.drop(kept.columns[frame.width :])  # those that the batch lacks: a filter makes no columns
        counts.add(RowCounts(rows_in=frame.height, passed=kept.height, filtered=frame.height - kept.height))
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
        counts.add(RowCounts(rows_in=frame.height, passed=kept.height, rejected=frame.height - kept.height))
        yield kept


def _project(frames: Frames, op: Select | WithColumns, name: str, counts: RowCounts, context: TaskContext) -> Frames:
    make = _broadcast if isinstance(op, Select) else pl.DataFrame.with_columns
    for frame in frames:
        made = named(_evaluated(frame, op.exprs, lambda f: make(f, op.exprs), name, context))
        counts.add(RowCounts(rows_in=frame.height, passed=made.height))
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
    """`evaluation.evaluated`, with a note of columns that no batch has had, and its failure as ours."""
    names = root_names(exprs)
    try:
        return evaluated(context.require(frame, names, name), names, evaluate)
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
        counts.add(RowCounts(rows_in=frame.height, consumed=frame.height))
        for out in outs:
            if not isinstance(out, _TABLES):
                raise UserCodeError(
                    f"{name} returned {type(out).__name__}; return a polars.DataFrame or a pyarrow.Table"
                )
            result = named(out if isinstance(out, pl.DataFrame) else to_frame(out))
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


@dataclass(frozen=True, kw_only=True)
class _RowFunction:
    """One of the row functions that run together."""

    op: RowOp
    fn: Callable[[Row], Any]
    name: str
    counts: RowCounts


def _row_function(op: RowOp, name: str, context: TaskContext) -> _RowFunction:
    counts = context.counter(name)
    # As a list, so that a generator that raises half-way has given nothing yet.
    fn = (lambda row: list(op.fn(row))) if isinstance(op, FlatMap) else op.fn
    if context.care is not None:
        fn = context.care.row_function(fn, operation=len(context.counts) - 1, name=name)
    return _RowFunction(op=op, fn=fn, name=name, counts=counts)


def _row_functions(frames: Frames, functions: Sequence[_RowFunction], desk: Desk) -> Frames:
    only_filters = all(isinstance(function.op, FilterRows) for function in functions)
    for frame in frames:
        if only_filters:
            yield _selected(frame, functions, desk)
            continue
        before = functions[0].counts.rows_in
        try:
            yield from batches_made(_through(rows_of(frame), functions, desk), functions[-1].name)
        except GeneratorExit:  # whoever takes the rows has enough, and the others of the frame go nowhere
            left = frame.height - (functions[0].counts.rows_in - before)
            functions[0].counts.add(RowCounts(rows_in=left, filtered=left))
            raise


def _selected(frame: pl.DataFrame, filters: Sequence[_RowFunction], desk: Desk) -> pl.DataFrame:
    """Row filters alone: the rows that come through, taken from the frame as they are."""
    position = -1

    def numbered() -> Iterator[Row]:
        nonlocal position
        for position, row in enumerate(rows_of(frame.drop(RAW, strict=False))):  # noqa: B007  read by the loop below
            yield row

    kept = [position for _ in _through(numbered(), filters, desk)]
    return frame if len(kept) == frame.height else frame[np.array(kept, dtype=np.int64)]


def _through(rows: Iterable[Row], functions: Sequence[_RowFunction], desk: Desk) -> Iterable[Row]:
    """Each row through all functions, before the next row goes through the first of them."""
    for is_flat, run in groupby(functions, key=lambda function: isinstance(function.op, FlatMap)):
        if is_flat:
            for function in run:
                rows = _flattened(rows, function, desk)
        else:
            rows = _mapped(rows, list(run), desk)
    return rows


def _mapped(rows: Iterable[Row], functions: Sequence[_RowFunction], desk: Desk) -> Iterator[Row]:
    """Maps and filters, in one loop: to hand rows from generator to generator costs as much as a short function.

    Only what ends a row's way is counted as it happens, and the rest follows from it in the end.
    """
    steps = [(i, f.fn, isinstance(f.op, FilterRows)) for i, f in enumerate(functions)]
    taken, filtered, rejected = 0, [0] * len(steps), [0] * len(steps)
    failed: int | None = None
    i = 0
    try:
        for row in rows:
            taken += 1
            try:
                for i, fn, is_filter in steps:
                    made = fn(row)
                    if not is_filter:
                        row = made if type(made) is dict else as_row(made, functions[i].name)
                    elif not made:
                        filtered[i] += 1
                        break
                else:
                    yield row
            except FAILURES as e:
                if not isinstance(e, RejectRow):
                    failed = i
                _refuse(e, row, functions[i].name, desk)
                rejected[i] += 1
    finally:
        for i, function in enumerate(functions):
            lost = filtered[i] + rejected[i] + (i == failed)
            function.counts.add(
                RowCounts(rows_in=taken, passed=taken - lost, filtered=filtered[i], rejected=rejected[i])
            )
            taken -= lost


def _flattened(rows: Iterable[Row], function: _RowFunction, desk: Desk) -> Iterator[Row]:
    counts, fn, name = function.counts, function.fn, function.name
    for row in rows:
        counts.rows_in += 1
        try:
            made = fn(row)
        except FAILURES as e:
            _refuse(e, row, name, desk)
            counts.rejected += 1
            continue
        counts.consumed += 1
        for each in made:
            counts.produced += 1
            yield as_row(each, name)


def _refuse(error: BaseException, row: Row, name: str, desk: Desk) -> None:
    """A row that its function refuses goes to the desk; any other error is raised."""
    if isinstance(error, RejectRow):
        desk.row(row, operation=name, reason=error.reason)
    elif isinstance(error, ZephyrError):
        raise error
    else:
        raise UserCodeError(f"{name} failed on the row of {place(row)}: {type(error).__name__}: {error}") from error


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
