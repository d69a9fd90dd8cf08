"""Groups of rows that need not be read, because a predicate is true of none of them.

Invariant: what is ruled out is never more than the predicate would leave out of the rows themselves. Only comparisons
of a column with a value, ``is_in``, ``is_null`` and ``is_not_null``, under ``&`` and ``|``, are understood; of anything
else nothing is ruled out.

A predicate is taken apart with Polars's own means: an expression is recognised by putting its parts together again and
comparing. And it is Polars that compares the bounds with the value, so that types meet as they do in the rows. NaN
stands in no statistics and is greater than all for Polars, so of a column of floats only what NaN does not satisfy is
ruled out.

See: https://parquet.apache.org/docs/file-format/metadata/ and the comments on ``Statistics`` in parquet.thrift.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

# Of a longer list only the least and the greatest value are looked at.
_MOST_VALUES = 32


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What a file tells of one column, of each of its groups of rows.

    ``low`` and ``high`` are its least and greatest value that is neither null nor NaN; null where ``is_known`` is
    false, and where all is null. ``num_nulls`` is -1 where it is not known.
    """

    low: pl.Series
    high: pl.Series
    is_known: np.ndarray
    num_nulls: np.ndarray
    num_rows: np.ndarray


def may_hold(predicate: pl.Expr, bounds: Mapping[str, Bounds], num_groups: int) -> np.ndarray:
    """In which groups of rows the predicate can be true of any row.

    Args:
        predicate: an expression of which each row's value depends on that row alone.
        bounds: of the columns of which something is known.
        num_groups: how many groups there are.

    Returns:
        bool[num_groups]
    """
    parts = predicate.meta.pop()
    if len(parts) == 1:
        found = _unary(predicate, parts[0], bounds)
    elif len(parts) == 2:
        right, left = parts
        if predicate.meta.eq(left & right):
            return may_hold(left, bounds, num_groups) & may_hold(right, bounds, num_groups)
        if predicate.meta.eq(left | right):
            return may_hold(left, bounds, num_groups) | may_hold(right, bounds, num_groups)
        found = _binary(predicate, left, right, bounds)
    else:
        found = None
    return np.ones(num_groups, dtype=bool) if found is None else found


def is_comparison(predicate: pl.Expr) -> bool:
    """Whether it is made of nothing but what `may_hold` understands: types alone say whether it can be evaluated."""
    parts = predicate.meta.pop()
    if len(parts) == 1:
        (part,) = parts
        return part.meta.is_column() and any(map(predicate.meta.eq, (part.is_null(), part.is_not_null())))
    if len(parts) != 2:
        return False
    right, left = parts
    if any(map(predicate.meta.eq, (left & right, left | right))):
        return is_comparison(left) and is_comparison(right)
    if {left.meta.is_column(), right.meta.is_column()} != {True, False} or not (
        left.meta.is_literal() or right.meta.is_literal()
    ):
        return False
    known = [left == right, left != right, left < right, left <= right, left > right, left >= right, left.is_in(right)]
    return any(map(predicate.meta.eq, known))


def _unary(predicate: pl.Expr, part: pl.Expr, bounds: Mapping[str, Bounds]) -> np.ndarray | None:
    known = bounds.get(part.meta.output_name()) if part.meta.is_column() else None
    if known is None:
        return None
    if predicate.meta.eq(part.is_null()):
        return known.num_nulls != 0
    if predicate.meta.eq(part.is_not_null()):
        return known.num_nulls < known.num_rows
    return None


def _binary(predicate: pl.Expr, left: pl.Expr, right: pl.Expr, bounds: Mapping[str, Bounds]) -> np.ndarray | None:
    """A comparison of a column with a value; None if it is nothing of the kind."""
    column, value = (right, left) if left.meta.is_literal() else (left, right)
    if not (column.meta.is_column() and value.meta.is_literal()):
        return None
    name = column.meta.output_name()
    known = bounds.get(name)
    if known is None:
        return None
    try:
        with warnings.catch_warnings(action="ignore"):  # a comparison with None is one that is never true
            tests = _tests(predicate, left, right, is_float=known.low.dtype.is_float())
            if tests is None:
                return None
            found = ~known.is_known
            for of_low, of_high in tests:
                found = found | (_true(known.low.alias(name), of_low) & _true(known.high.alias(name), of_high))
            return found
    except (pl.exceptions.PolarsError, TypeError, ValueError):
        return None  # types that do not meet: the rows will tell


def _tests(
    predicate: pl.Expr, left: pl.Expr, right: pl.Expr, *, is_float: bool
) -> list[tuple[pl.Expr, pl.Expr]] | None:
    """What must be true of the least and of the greatest value, if the predicate is true of any between: one pair."""
    anything, is_turned = pl.lit(True), left.meta.is_literal()
    column, value = (right, left) if is_turned else (left, right)
    given = pl.select(value).to_series()
    if not is_turned and predicate.meta.eq(column.is_in(value)):
        values = (given.explode() if isinstance(given.dtype, pl.List) else given).drop_nulls()
        if _has_nan(values):
            return None
        ends = zip(values, values, strict=True) if len(values) <= _MOST_VALUES else [(values.min(), values.max())]
        return [(column <= pl.lit(last), column >= pl.lit(first)) for first, last in ends]
    if len(given) != 1 or _has_nan(given):
        return None
    if predicate.meta.eq(left == right):
        return [(column <= value, column >= value)]
    below, above = [left <= right, left < right], [left >= right, left > right]
    if any(map(predicate.meta.eq, above if is_turned else below)):
        return [(predicate, anything)]
    if any(map(predicate.meta.eq, below if is_turned else above)) and not is_float:  # NaN is greater than any value
        return [(anything, predicate)]
    return None


def _true(ends: pl.Series, test: pl.Expr) -> np.ndarray:
    frame = ends.to_frame()
    return frame.with_columns(test.fill_null(False).alias("\0true"))["\0true"].to_numpy()


def _has_nan(values: pl.Series) -> bool:
    return any(isinstance(v, float) and math.isnan(v) for v in values.to_list())
