"""The states of aggregates: made from rows, joined to one another, turned into values.

A state is one or two columns of a frame with one row a key. `states` makes them from rows, `joined` makes one state of
each key's several (in their order), `values` makes the results. Joining is associative, so it does not matter where
batches, shards or spilled runs end; only float sums round, and those are added one after the other.

Sums of integers are carried as decimals of 38 digits, which 2^63 rows cannot exceed; whether the total fits 64 bits is
asked once, at the end, and so does not depend on the order of addition. Float sums are taken by numpy's ``bincount``,
which adds row after row; Polars's own ``sum`` cuts a group among its threads, and so rounds differently on machines
with different numbers of cores.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from marin_zephyr.columns import Aggregate
from marin_zephyr.errors import SchemaError
from marin_zephyr.shuffle.keys import key_digests

_INTEGER_SUM = pl.Decimal(38, 0)
_SMALLEST = 2048


def states(frame: pl.DataFrame, by: Sequence[str], aggregates: Sequence[Aggregate], *, name: str) -> pl.DataFrame:
    """One row a key of ``by``, in the order of first appearance, with the state of each aggregate.

    Args:
        frame: rows; holds every column that is named.
        by: key columns.
        aggregates: what to compute.
        name: the operation, for errors.

    Raises:
        SchemaError: a column's type has no such aggregate.
    """
    hashed = [_hashes(frame, a) for a in aggregates if a.kind == "approx_distinct"]
    frame = frame.with_columns(hashed) if hashed else frame
    exprs, sums = [], []
    for a in aggregates:
        dtype = pl.Null() if a.column is None else frame.schema[a.column]
        _check_type(a, dtype, name)
        if a.kind in ("sum", "mean") and dtype.is_float():
            sums.append(a.name)
        exprs += _state(a, dtype)
    return _grouped(frame, by, exprs, sums)


def joined(frame: pl.DataFrame, by: Sequence[str], aggregates: Sequence[Aggregate]) -> pl.DataFrame:
    """One row a key of ``by`` with the states of each key's rows made one, in the order of first appearance."""
    exprs, sums = [], []
    for a in aggregates:
        state = pl.col(a.name)
        match a.kind:
            case "sum" | "mean" if frame.schema[a.name].is_float():
                exprs.append(state)
                sums.append(a.name)
            case "sum" | "mean":
                exprs.append(_sum(state, frame.schema[a.name]))
            case "count":
                exprs.append(state.sum())
            case "collect":
                exprs.append(state.explode())
            case "approx_distinct":
                exprs.append(_least(state.explode()))
            case kind:
                exprs.append(_value(state, kind))
        if a.kind == "mean":
            exprs.append(pl.col(_count_name(a)).sum())
    return _grouped(frame, by, exprs, sums)


def values(frame: pl.DataFrame, by: Sequence[str], aggregates: Sequence[Aggregate], *, name: str) -> pl.DataFrame:
    """The key columns and each aggregate's result, from its state.

    Raises:
        SchemaError: a sum of integers is beyond 64 bits.
    """
    made = [frame.select(by)]
    for a in aggregates:
        try:
            made.append(frame.select(_result(a, frame.schema[a.name])))
        except pl.exceptions.InvalidOperationError as e:
            raise SchemaError(f"{name}: a sum of {a.column!r} is beyond 64 bits; make it a float first") from e
    return pl.concat(made, how="horizontal")


def _state(a: Aggregate, dtype: pl.DataType) -> list[pl.Expr]:
    if a.column is None:
        return [pl.len().cast(pl.Int64).alias(a.name)]
    column = pl.col(a.column)
    num = column.count().cast(pl.Int64)
    match a.kind:
        case "count":
            return [num.alias(a.name)]
        case "sum" | "mean":
            total = column.cast(pl.Float64) if dtype.is_float() else _sum(column, dtype)
            return [total.alias(a.name), *([num.alias(_count_name(a))] if a.kind == "mean" else [])]
        case "collect":
            return [column.alias(a.name)]
        case "approx_distinct":
            return [_least(pl.col(_hash_name(a))).alias(a.name)]
    return [_value(column, a.kind).alias(a.name)]


def _result(a: Aggregate, dtype: pl.DataType) -> pl.Expr:
    state = pl.col(a.name)
    match a.kind:
        case "sum" if dtype == _INTEGER_SUM:
            return state.cast(pl.Int64)
        case "mean":
            return pl.struct(state.cast(pl.Float64), pl.col(_count_name(a))).map_batches(_quotient, pl.Float64)
        case "approx_distinct":
            num = state.list.len().cast(pl.Int64)
            estimate = (_SMALLEST - 1) * 2.0**64 / state.list.max().cast(pl.Float64)
            return pl.when(num < _SMALLEST).then(num).otherwise(estimate.round().cast(pl.Int64)).alias(a.name)
    return state


def _grouped(frame: pl.DataFrame, by: Sequence[str], exprs: Sequence[pl.Expr], sums: Sequence[str]) -> pl.DataFrame:
    """One row a key; the columns ``sums`` come as lists of floats and are added up."""
    made = frame.group_by(by, maintain_order=True).agg(exprs)
    return made.with_columns(_added(made.get_column(name)) for name in sums) if sums else made


def _added(lists: pl.Series) -> pl.Series:
    """The sum of each list of floats, from left to right; null where there is nothing to add."""
    groups = np.repeat(np.arange(len(lists)), lists.list.len().to_numpy())
    members = lists.explode()
    total = np.bincount(groups, weights=members.fill_null(0.0).to_numpy(), minlength=len(lists))
    num = np.bincount(groups, weights=members.is_not_null().to_numpy(), minlength=len(lists))
    made = pl.DataFrame({"total": total, "num": num})
    return made.select(pl.when(pl.col("num") > 0).then("total")).to_series().alias(lists.name)


def _sum(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """The exact sum, null if there is nothing to add."""
    if dtype == pl.Null:
        return column.first()
    if not dtype.is_decimal():
        column = (column.cast(pl.Int64) if dtype == pl.Boolean else column).cast(_INTEGER_SUM)
    return pl.when(column.count() > 0).then(column.sum())


def _value(column: pl.Expr, kind: str) -> pl.Expr:
    """``first``, ``last``, ``min`` or ``max``; the joined state of each is that of the states."""
    return getattr(column.drop_nulls() if kind in ("first", "last") else column, kind)()


def _least(hashes: pl.Expr) -> pl.Expr:
    return hashes.drop_nulls().unique().sort().head(_SMALLEST)


def _hashes(frame: pl.DataFrame, a: Aggregate) -> pl.Series:
    assert a.column is not None
    hashes = pl.Series(_hash_name(a), key_digests(frame, [a.column])[:, 0])
    return pl.select(pl.when(frame.get_column(a.column).is_not_null()).then(hashes)).to_series().alias(_hash_name(a))


def _quotient(pairs: pl.Series) -> pl.Series:
    """Sum by number, null where the sum is. Polars may multiply by a reciprocal, which rounds twice."""
    totals, numbers = pairs.struct.unnest()
    made = totals.fill_null(0.0).to_numpy() / np.maximum(numbers.to_numpy(), 1)
    return pl.select(pl.when(totals.is_not_null()).then(pl.Series(totals.name, made))).to_series()


def _check_type(a: Aggregate, dtype: pl.DataType, name: str) -> None:
    if a.kind in ("sum", "mean"):
        fits = dtype.is_numeric() or dtype in (pl.Boolean, pl.Null)
    else:
        fits = a.kind not in ("min", "max") or not dtype.is_nested()
    if not fits:
        raise SchemaError(f"{name}: column {a.column!r} is of type {dtype}, which has no {a.kind}; convert it first")


def _count_name(a: Aggregate) -> str:
    return f"\1count:{a.name}"


def _hash_name(a: Aggregate) -> str:
    return f"\1hash:{a.name}"
