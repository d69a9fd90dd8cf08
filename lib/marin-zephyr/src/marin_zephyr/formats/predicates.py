"""Rows that a reader leaves out, and groups of rows that it need not read to know that it would leave all of them out.

Invariant: the rows that come are those of which the predicate is true, as if all were read and then filtered; a null is
not true. What statistics rule out is less than what the predicate would: only comparisons of a column with a value,
``is_in``, ``is_null`` and ``is_not_null``, under ``&`` and ``|``, are understood, and anything else may hold.

A predicate is taken apart with Polars's own means: an expression is recognised by putting its parts together again and
comparing. And it is Polars that compares the bounds with the value, so that types meet as they do in the rows. NaN
stands in no statistics and is greater than all for Polars, so of a column of floats only what NaN does not satisfy is
ruled out.

See: https://parquet.apache.org/docs/file-format/metadata/ and the comments on ``Statistics`` in parquet.thrift.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import wraps

import polars as pl

from marin_zephyr.errors import SchemaError
from marin_zephyr.formats.files import InputFile
from marin_zephyr.formats.rejects import Desk
from marin_zephyr.nodes import ReadOptions

type Read = Callable[[InputFile, ReadOptions, Desk], Iterator[pl.DataFrame]]

SOURCE_COLUMNS = ("source", "source_row", "source_offset")


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What a file tells of one column of a group of rows.

    ``ends`` holds its least and its greatest value that is not null (NaN excepted); None where they are not known,
    empty where there is none.
    """

    num_nulls: int | None
    num_rows: int
    ends: pl.Series | None


def filtering(read: Read) -> Read:
    """A reader that leaves out the rows of which the predicate is not true, and tells the desk how many."""

    @wraps(read)
    def read_filtered(file: InputFile, options: ReadOptions, desk: Desk) -> Iterator[pl.DataFrame]:
        predicate = options.predicate
        if predicate is None:
            yield from read(file, options, desk)
            return
        wanted = options.columns
        added = () if wanted is None else tuple(c for c in _roots(predicate, options) if c not in wanted)
        if wanted is not None:
            options = replace(options, columns=(*wanted, *added))
        for frame in read(file, options, desk):
            kept = keep(frame, predicate, where=file.url)
            desk.num_filtered += frame.height - kept.height
            yield kept.drop(added)

    return read_filtered


def _roots(predicate: pl.Expr, options: ReadOptions) -> list[str]:
    """The columns of the file that it names."""
    own = SOURCE_COLUMNS if options.with_source else ()
    return [name for name in dict.fromkeys(predicate.meta.root_names()) if name not in own]


def keep(frame: pl.DataFrame, predicate: pl.Expr, *, where: str) -> pl.DataFrame:
    """The rows of which the predicate is true. A column that the frame lacks is null.

    Raises:
        SchemaError: the predicate does not fit the types of the columns.
    """
    absent = [name for name in dict.fromkeys(predicate.meta.root_names()) if name not in frame.columns]
    wide = frame.with_columns(pl.lit(None).alias(name) for name in absent)
    # A batch of nothing but nulls has no type; Polars's string functions want one.
    untyped = [pl.col(name).cast(pl.String) for name, kind in wide.schema.items() if kind == pl.Null]
    try:
        try:
            mask = wide.select(predicate).to_series()
        except pl.exceptions.PolarsError:
            if not untyped:
                raise
            mask = wide.with_columns(untyped).select(predicate).to_series()
        mask = mask.cast(pl.Boolean).fill_null(False)
        return frame.filter(mask if len(mask) == frame.height else mask.new_from_index(0, frame.height))
    except pl.exceptions.PolarsError as e:
        raise SchemaError(f"{where}: filter({predicate}): {e}") from e


def may_hold(predicate: pl.Expr, bounds: Mapping[str, Bounds]) -> bool:
    """Whether the predicate can be true of any of a group of rows.

    Args:
        predicate: an expression of which each row's value depends on that row alone.
        bounds: of the columns of which something is known.
    """
    parts = predicate.meta.pop()
    if len(parts) == 1:
        return _unary(predicate, parts[0], bounds)
    if len(parts) != 2:
        return True
    right, left = parts
    if predicate.meta.eq(left & right):
        return may_hold(left, bounds) and may_hold(right, bounds)
    if predicate.meta.eq(left | right):
        return may_hold(left, bounds) or may_hold(right, bounds)
    for column, value, is_turned in ((left, right, False), (right, left, True)):
        if column.meta.is_column() and value.meta.is_literal():
            known = bounds.get(column.meta.output_name())
            if known is not None:
                return _comparison(predicate, column, value, known, is_turned=is_turned)
    return True


def _unary(predicate: pl.Expr, part: pl.Expr, bounds: Mapping[str, Bounds]) -> bool:
    known = bounds.get(part.meta.output_name()) if part.meta.is_column() else None
    if known is None or known.num_nulls is None:
        return True
    if predicate.meta.eq(part.is_null()):
        return known.num_nulls > 0
    if predicate.meta.eq(part.is_not_null()):
        return known.num_nulls < known.num_rows
    return True


def _comparison(predicate: pl.Expr, column: pl.Expr, value: pl.Expr, known: Bounds, *, is_turned: bool) -> bool:
    left, right = (value, column) if is_turned else (column, value)
    if known.ends is None:
        return True
    ends = known.ends.alias(column.meta.output_name()).to_frame()
    is_float = known.ends.dtype.is_float()
    try:
        with warnings.catch_warnings(action="ignore"):  # a comparison with None is one that is never true
            given = pl.select(value).to_series()
            if not is_turned and predicate.meta.eq(column.is_in(value)):
                return _may_be_in(ends, column, given)
            if len(given) != 1 or _has_nan(given):
                return True
            below = [left <= right, left < right] if not is_turned else [left >= right, left > right]
            above = [left >= right, left > right] if not is_turned else [left <= right, left < right]
            if any(map(predicate.meta.eq, below)):
                return _any(ends, predicate)
            if any(map(predicate.meta.eq, above)):
                return is_float or _any(ends, predicate)
            if predicate.meta.eq(left == right):
                return _any(ends, column <= value) and _any(ends, column >= value)
    except (pl.exceptions.PolarsError, TypeError, ValueError):
        pass  # types that do not meet: the rows will tell
    return True


def _may_be_in(ends: pl.DataFrame, column: pl.Expr, given: pl.Series) -> bool:
    values = (given.explode() if isinstance(given.dtype, pl.List) else given).drop_nulls()
    if _has_nan(values):
        return True
    return any(_any(ends, column <= v) and _any(ends, column >= v) for v in map(pl.lit, values.to_list()))


def _any(ends: pl.DataFrame, predicate: pl.Expr) -> bool:
    return bool(ends.select(predicate).to_series().any())


def _has_nan(values: pl.Series) -> bool:
    return any(isinstance(v, float) and math.isnan(v) for v in values.to_list())
