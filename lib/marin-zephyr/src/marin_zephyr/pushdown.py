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

import polars as pl

from marin_zephyr.fingerprints import fingerprint
from marin_zephyr.inputs import FilesInput
from marin_zephyr.nodes import FilterExpr, FilterRows, ReadOptions, Select, WithColumns
from marin_zephyr.outputs import Counted, Parts
from marin_zephyr.specs import Output, StageOp, TaskInput

_PROVENANCE = frozenset(("source", "source_row", "source_offset"))


def push_down(
    inputs: tuple[TaskInput, ...], ops: tuple[StageOp, ...], output: Output
) -> tuple[tuple[TaskInput, ...], tuple[StageOp, ...]]:
    """The inputs with what their readers may leave out, and the operations that are left."""
    if not inputs or not all(isinstance(i, FilesInput) for i in inputs):
        return inputs, ops
    files = [i for i in inputs if isinstance(i, FilesInput)]
    options = files[0].options
    if any(fingerprint(i.options) != fingerprint(options) for i in files):  # the union of several sources
        return inputs, ops
    if options.string_columns:  # a record may be refused for what one of these holds: each must be looked at
        return inputs, ops
    first = _leading_filters(ops)
    pushed = replace(
        options,
        columns=_columns(options, ops, output),
        predicate=pl.all_horizontal(op.expr for op in first) if first else None,
        raw=_is_only_filtered(files, ops, output),
        pushed=options.columns is None,
    )
    return tuple(replace(i, options=pushed) for i in files), ops[len(first) :]


def _leading_filters(ops: Sequence[StageOp]) -> list[FilterExpr]:
    first = []
    for op in ops:
        if not isinstance(op, FilterExpr) or not _names(op.expr) or set(_names(op.expr)) & _PROVENANCE:
            break
        first.append(op)
    return first


def _names(expr: pl.Expr) -> list[str]:
    """The columns that an expression reads; none if it does not say (``pl.all()``)."""
    return [] if expr.meta.has_multiple_outputs() else expr.meta.root_names()


def _columns(options: ReadOptions, ops: Sequence[StageOp], output: Output) -> tuple[str, ...] | None:
    """The columns to read, or None for all that were asked for."""
    needed = needed_columns(ops, output)
    if not needed:
        return options.columns
    if options.columns is not None:
        return tuple(c for c in options.columns if c in needed) or options.columns
    return tuple(sorted(needed - _PROVENANCE if options.with_source else needed)) or None


def needed_columns(ops: Sequence[StageOp], output: Output) -> set[str] | None:
    """The columns that operations and output look at; None if that may be any."""
    needed: set[str] | None = set() if isinstance(output, Counted) else None
    for op in reversed(ops):
        if isinstance(op, Select):
            exprs = [_names(e) for e in op.exprs]
            if not all(exprs):
                return None
            needed = {name for names in exprs for name in names}
        elif isinstance(op, WithColumns):
            exprs = [_names(e) for e in op.exprs]
            if needed is None or not all(exprs):
                needed = None
                continue
            needed = (needed - {e.meta.output_name() for e in op.exprs}) | {n for names in exprs for n in names}
        elif isinstance(op, FilterExpr):
            needed = None if needed is None or not _names(op.expr) else needed | set(_names(op.expr))
        elif columns := getattr(op, "columns", None):
            needed = set(columns)
        else:
            needed = None
    return needed


def _is_only_filtered(inputs: Sequence[FilesInput], ops: Sequence[StageOp], output: Output) -> bool:
    """Whether JSON lines go from files to files with nothing but filters between them."""
    options = inputs[0].options
    if not isinstance(output, Parts) or output.format != "jsonl" or options.columns or options.with_source:
        return False
    is_jsonl = all(file.format == "jsonl" for i in inputs for file in i.files)
    return is_jsonl and all(isinstance(op, (FilterExpr, FilterRows)) for op in ops)
