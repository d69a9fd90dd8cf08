"""Evaluation of expressions over one batch, as over its rows: a column that the batch lacks is null.

Which columns a batch has depends on its rows alone, and so does whether a column holds anything but nulls. Neither may
decide whether an expression can be evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import polars as pl


def root_names(exprs: Iterable[pl.Expr]) -> list[str]:
    """The columns that expressions read, each once."""
    return list(dict.fromkeys(root for expr in exprs for root in expr.meta.root_names()))


def with_nulls(frame: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """The frame, with a column of nulls for each name that it lacks."""
    lacking = [name for name in names if name not in frame.columns]
    return frame.with_columns(pl.lit(None).alias(name) for name in lacking) if lacking else frame


def evaluated[T](frame: pl.DataFrame, names: Sequence[str], evaluate: Callable[[pl.DataFrame], T]) -> T:
    """What ``evaluate`` makes of a frame that has all the columns named.

    A column of nothing but nulls has no type, and Polars's string functions want one: what fails is tried once more
    with such columns as strings.

    Raises:
        polars.exceptions.PolarsError: it cannot be evaluated.
    """
    try:
        return evaluate(frame)
    except pl.exceptions.PolarsError:
        untyped = [name for name in names if frame.schema.get(name) == pl.Null]
        if not untyped:
            raise
    return evaluate(frame.with_columns(pl.col(name).cast(pl.String) for name in untyped))
