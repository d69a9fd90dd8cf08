"""Aggregates that combine across shards (as ``agg``); expressions on columns are Polars's own ``col`` and ``lit``.

An aggregate is three expressions: ``partial`` over the rows of one key in one shard, ``combine`` over partial results
in the order of the shards, and the final value of that. So a shard sends one row a key, however many rows it holds, and
a result does not depend on how rows were spread, except by the rounding of float sums, whose order of addition is
fixed.

Nulls are skipped by all but ``count()``, as in SQL; an aggregate of nothing but nulls is null, a count 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from marin_zephyr.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Aggregate", "count", "first", "last", "max", "mean", "min", "sum"]


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """One aggregate: which, of which column, under which name."""

    kind: str
    column: str | None
    name: str = ""

    def named(self, name: str) -> Aggregate:
        """The same under the name of an output column."""
        return replace(self, name=name)

    def partial(self) -> list[pl.Expr]:
        """Expressions over the rows of one key in one shard; columns are named ``name`` and ``name.n``."""
        import polars as pl

        if self.column is None:
            return [pl.len().cast(pl.Int64).alias(self.name)]
        column = pl.col(self.column)
        n = column.count().cast(pl.Int64)
        match self.kind:
            case "count":
                return [n.alias(self.name)]
            case "sum":
                return [_sum(column).alias(self.name)]
            case "mean":
                return [_sum(column.cast(pl.Float64)).alias(self.name), n.alias(f"{self.name}.n")]
            case "first" | "last":
                return [getattr(column.drop_nulls(), self.kind)().alias(self.name)]
        return [getattr(column, self.kind)().alias(self.name)]

    def combine(self) -> list[pl.Expr]:
        """Expressions over partial results, in the order of the shards; one column ``name``."""
        import polars as pl

        column = pl.col(self.name)
        match self.kind:
            case "count":
                return [column.sum()]
            case "sum":
                return [_sum(column).alias(self.name)]
            case "mean":
                n = pl.col(f"{self.name}.n").sum()
                return [pl.when(n > 0).then(_sum(column) / n).alias(self.name)]
            case "first" | "last":
                return [getattr(column.drop_nulls(), self.kind)().alias(self.name)]
        return [getattr(column, self.kind)()]


def count(column: str | None = None) -> Aggregate:
    """Rows of the key; with a column, its values that are not null."""
    return Aggregate(kind="count", column=column)


def sum(column: str) -> Aggregate:
    """Sum of the values."""
    return _of("sum", column)


def min(column: str) -> Aggregate:
    """Least value."""
    return _of("min", column)


def max(column: str) -> Aggregate:
    """Greatest value."""
    return _of("max", column)


def mean(column: str) -> Aggregate:
    """Arithmetic mean, as a float."""
    return _of("mean", column)


def first(column: str) -> Aggregate:
    """First value that is not null, in input order."""
    return _of("first", column)


def last(column: str) -> Aggregate:
    """Last value that is not null, in input order."""
    return _of("last", column)


def _of(kind: str, column: Any) -> Aggregate:
    if not isinstance(column, str):
        raise UsageError(f"agg.{kind}: {column!r} must be the name of a column")
    return Aggregate(kind=kind, column=column)


def _sum(column: pl.Expr) -> pl.Expr:
    """The sum, null if there is nothing to add.

    Added row after row: Polars's own ``sum`` cuts a group among its threads, and so rounds floats differently on
    machines with different numbers of cores.
    """
    import polars as pl

    return pl.when(column.count() > 0).then(column.fill_null(0).cum_sum().last())
