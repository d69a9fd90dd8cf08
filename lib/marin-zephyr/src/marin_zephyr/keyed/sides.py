"""The two sides of a join: whether their keys can be equal, how their columns are called, and rows put side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa

from marin_zephyr.errors import SchemaError
from marin_zephyr.keyed.matching import NULL, Pairs
from marin_zephyr.shuffle.keys import KEY, encode

ONLY_LEFT = ("semi", "anti")


def coded(frame: pl.DataFrame, on: Sequence[str]) -> pl.DataFrame:
    """The frame with the code of each row's key and whether a part of it is null."""
    return frame.with_columns(encode(frame, on), pl.any_horizontal(pl.col(on).is_null()).alias(NULL))


def renamed_columns(
    left: Sequence[str], right: Sequence[str], *, on: Sequence[str], suffix: str, name: str
) -> dict[str, str]:
    """The right columns that the result has, and what they are called there."""
    others = [column for column in right if column not in (*on, KEY, NULL)]
    renamed = {column: column + suffix if column in left else column for column in others}
    taken = [*left, *(column for column in others if renamed[column] == column)]
    for column, new in renamed.items():
        if column != new and new in taken:
            raise SchemaError(f"{name}: column {column!r} is in both, and there is a {new!r} already; choose a suffix")
    return renamed


def beside(pairs: Pairs, renamed: dict[str, str], *, left_on: Sequence[str], right_on: Sequence[str]) -> pl.DataFrame:
    """Pairs as rows: the left's columns, its keys taken from the right where there is no left row; then the right's."""
    left = _taken(pairs.left.drop(KEY, NULL), pairs.left_rows)
    if (pairs.left_rows < 0).any():
        keys = _taken(pairs.right.select(right_on), pairs.right_rows)
        is_alone = pl.Series(pairs.left_rows < 0)
        left = left.with_columns(
            pl.when(is_alone).then(keys.get_column(other)).otherwise(pl.col(mine)).alias(mine)
            for mine, other in zip(left_on, right_on, strict=True)
        )
    if not renamed:
        return left
    return left.hstack(_taken(pairs.right.select(list(renamed)), pairs.right_rows).rename(renamed))


def _taken(frame: pl.DataFrame, rows: np.ndarray) -> pl.DataFrame:
    """The rows at these positions; all null for -1."""
    if not (rows < 0).any():
        is_range = len(rows) > 0 and bool((np.diff(rows) == 1).all())
        return frame[int(rows[0]) : int(rows[-1]) + 1] if is_range else frame[rows]  # a slice copies nothing
    where = pl.Series(rows).replace(-1, None)
    if not frame.height:
        return frame.clear(len(rows))
    return frame.select(pl.all().gather(where))


def check_comparable(left: tuple[str, pa.DataType], right: tuple[str, pa.DataType]) -> None:
    """Refuses a pair of key columns, each a name and a type, of which no values can be equal."""
    kinds = [_kind(dtype) for _, dtype in (left, right)]
    if kinds[0] != kinds[1] and None not in kinds:
        raise SchemaError(
            f"join: key {left[0]!r} of the left is {left[1]}, {right[0]!r} of the right is {right[1]}, and no value of "
            "one equals one of the other; convert one of them"
        )


def _kind(dtype: pa.DataType) -> str | None:
    """What values of a type may be equal to; None for a column of nothing but nulls."""
    made = pl.Series(values=pa.array([], dtype)).dtype
    if made == pl.Null:
        return None
    if made.is_numeric():
        return "number"
    if made in (pl.String, pl.Categorical, pl.Enum):
        return "string"
    if isinstance(made, pl.Datetime):
        return "instant" if made.time_zone else "datetime"
    return "list" if made.is_nested() and not isinstance(made, pl.Struct) else made.base_type().__name__
