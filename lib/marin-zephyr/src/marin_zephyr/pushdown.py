"""Pushdown: what a reader may leave out, because no operation of the stage would look at it.

- *columns* that neither an operation nor the output reads
- *rows* that the first filters of the chain drop at once (one predicate, handed to the reader)
- *decoding*, where JSON lines are only filtered on their way to JSON lines: the lines are passed on as they stand

The result is the same rows. What differs is which dirt is looked at: a value of a column that is not read is not
checked beyond being JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import and_
from typing import Any

import polars as pl

from marin_zephyr.formats.predicates import is_comparison
from marin_zephyr.formats.provenance import SOURCE
from marin_zephyr.inputs import FilesInput
from marin_zephyr.nodes import FilterExpr, FilterRows, ReadOptions, Sample, Select, WithColumns
from marin_zephyr.outputs import Counted, Parts
from marin_zephyr.specs import Output, StageOp, TaskInput


def push_down(
    inputs: tuple[TaskInput, ...], ops: tuple[StageOp, ...], output: Output
) -> tuple[tuple[TaskInput, ...], tuple[StageOp, ...]]:
    """The inputs with what their readers may leave out, and the operations that are left."""
    files = [i for i in inputs if isinstance(i, FilesInput)]
    if not files or len(files) < len(inputs) or len({i.options for i in files}) > 1:
        return inputs, ops
    options = files[0].options
    if options.string_columns:  # a record may be refused for what one of these holds: each must be looked at
        return inputs, ops
    first = _leading_filters(ops, options)
    ops = ops[len(first) :]
    raw = _is_only_filtered(files, ops, output)
    needed = set() if raw and not ops else needed_columns(ops, output)
    pushed = replace(
        options,
        predicate=reduce(and_, (op.expr for op in first)) if first else None,
        raw=raw,
        **_columns(options, needed),
    )
    return tuple(replace(i, options=pushed) for i in files), ops


def _leading_filters(ops: Sequence[StageOp], options: ReadOptions) -> list[FilterExpr]:
    known = None if options.columns is None else {*options.columns, *(SOURCE if options.with_source else ())}
    first: list[FilterExpr] = []
    for op in ops:
        if not isinstance(op, FilterExpr) or not (names := _names(op.expr)):
            break
        if known is not None and not known.issuperset(names):  # what the caller did not ask for is not there
            break
        # Together they must do what they do one by one, and a function may fail on rows that a filter before it drops.
        if first and not (is_comparison(first[-1].expr) and is_comparison(op.expr)):
            break
        first.append(op)
    return first


def _names(expr: pl.Expr) -> list[str]:
    """The columns that an expression reads; none if it does not say (``pl.all()``)."""
    return [] if expr.meta.has_multiple_outputs() else expr.meta.root_names()


def _columns(options: ReadOptions, needed: set[str] | None) -> dict[str, Any]:
    """The options that say which columns to read."""
    if needed is None:
        return {}
    if options.columns is not None:
        return {"columns": tuple(name for name in options.columns if name in needed)}
    return {"columns": tuple(sorted(needed)), "pushed": True}


def needed_columns(ops: Sequence[StageOp], output: Output) -> set[str] | None:
    """The columns that operations and output look at; None if that may be any."""
    needed: set[str] | None = set() if isinstance(output, Counted) else None
    for op in reversed(ops):
        if isinstance(op, (FilterExpr, WithColumns, Select)):
            exprs = (op.expr,) if isinstance(op, FilterExpr) else op.exprs
            names = [_names(expr) or _literal(expr) for expr in exprs]
            if None in names:
                needed = None
                continue
            read = {name for found in names for name in found or ()}
            if isinstance(op, Select):
                needed = read
            elif needed is not None:
                made = set() if isinstance(op, FilterExpr) else {expr.meta.output_name() for expr in exprs}
                needed = (needed - made) | read
        elif isinstance(op, Sample):
            continue
        elif columns := getattr(op, "columns", None):
            needed = set(columns)
        else:
            needed = None
    return needed


def _literal(expr: pl.Expr) -> list[str] | None:
    """No columns, if the expression is known to read none."""
    return [] if expr.meta.is_literal(allow_aliasing=True) else None


def _is_only_filtered(inputs: Sequence[FilesInput], ops: Sequence[StageOp], output: Output) -> bool:
    """Whether JSON lines go from files to files with nothing but filters between them."""
    options = inputs[0].options
    if not isinstance(output, Parts) or output.format != "jsonl" or options.columns or options.with_source:
        return False
    is_jsonl = all(file.format == "jsonl" for i in inputs for file in i.files)
    return is_jsonl and all(isinstance(op, (FilterExpr, FilterRows, Sample)) for op in ops)
