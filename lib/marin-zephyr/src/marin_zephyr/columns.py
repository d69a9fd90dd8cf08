"""Aggregates that combine across shards (as ``agg``); expressions on columns are Polars's own ``col`` and ``lit``.

An aggregate has a *state* for each key: small, made from the rows of one batch, and joined to that of the next in input
order (`marin_zephyr.keyed.aggregating`). So a shard sends one row a key, however many rows it holds, and a result does
not depend on how rows were spread, except by the rounding of float sums, whose order of addition is fixed.

Nulls are skipped by all but ``count()`` and ``collect``, as in SQL; an aggregate of nothing but nulls is null, a count
0. A sum of integers or booleans is an integer, exact, and an error beyond 64 bits. ``min`` and ``max`` pass over NaN as
long as there is another value; ``sum`` and ``mean`` do not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from marin_zephyr.errors import UsageError

__all__ = ["Aggregate", "approx_distinct", "collect", "count", "first", "last", "max", "mean", "min", "sum"]


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """One aggregate: which, of which column, under which name."""

    kind: str
    column: str | None
    name: str = ""

    def named(self, name: str) -> Aggregate:
        """The same under the name of an output column."""
        return replace(self, name=name)


def count(column: str | None = None) -> Aggregate:
    """Rows of the key; with a column, its values that are not null."""
    return Aggregate(kind="count", column=column)


def sum(column: str) -> Aggregate:
    """Sum of the values: of integers and booleans exact, of floats added in input order."""
    return _of("sum", column)


def min(column: str) -> Aggregate:
    """Least value; of strings by code points, of bytes by bytes."""
    return _of("min", column)


def max(column: str) -> Aggregate:
    """Greatest value; of strings by code points, of bytes by bytes."""
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


def collect(column: str) -> Aggregate:
    """All values in input order, nulls included, as a list. One key's values must fit in memory."""
    return _of("collect", column)


def approx_distinct(column: str) -> Aggregate:
    """How many different values there are: exact below 2,048, else an estimate with a standard error of 2.2%.

    Kept are the 2,048 least of the values' 64-bit hashes (16 KiB a key). Which values are equal is said by
    `shuffle.keys`.

    See: Bar-Yossef et al., Counting distinct elements in a data stream (RANDOM 2002); the unbiased estimator
    (k - 1) / U_k and its error 1 / sqrt(k - 2) from Beyer et al., On synopses for distinct-value estimation under
    multiset operations (SIGMOD 2007).
    """
    return _of("approx_distinct", column)


def _of(kind: str, column: Any) -> Aggregate:
    if not isinstance(column, str):
        raise UsageError(f"agg.{kind}: {column!r} must be the name of a column")
    return Aggregate(kind=kind, column=column)
