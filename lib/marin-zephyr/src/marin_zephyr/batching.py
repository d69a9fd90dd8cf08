"""Batches: how many bytes frames hold, and where a stream of rows is cut into frames.

Two measures, for two purposes. `num_bytes` is what a frame takes in memory, by which it is decided what is held and
what is written to disk. `row_bytes` is a function of each row's values alone: so what is cut by it is cut in the same
places whatever frames the rows come in, and may be seen by a caller's function and in the output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import polars as pl

from marin_zephyr.frames import BATCH_BYTES, BATCH_ROWS, concat
from marin_zephyr.shuffle.keys import KEY


def batches(frames: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """The same rows in frames of at most 65,536 rows and, but for a single larger row, 8 MiB of values.

    Where the cuts lie depends on the rows alone and not on the frames that they come in.
    """
    held: list[pl.DataFrame] = []
    rows = size = 0
    for frame in frames:
        sizes = np.cumsum(row_bytes(frame))
        start = 0
        while start < frame.height:
            before = int(sizes[start - 1]) if start else 0
            fitting = int(np.searchsorted(sizes, BATCH_BYTES - size + before, side="right"))
            end = min(frame.height, start + BATCH_ROWS - rows, max(fitting, start + (not rows)))
            if end > start:
                held.append(frame[start:end])
                rows, size, start = rows + end - start, size + int(sizes[end - 1]) - before, end
            if start < frame.height:
                yield stack(held)
                rows = size = 0
    if held:
        yield stack(held)


def num_bytes(frame: pl.DataFrame) -> int:
    """Bytes in memory, the 16 that Polars spends on each string and does not count among them."""
    views = sum(dtype in (pl.String, pl.Binary) for dtype in frame.dtypes)
    return int(frame.estimated_size()) + 16 * views * frame.height


def stack(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """All rows in order, under one schema. Empties the list, so that what is copied can go."""
    if any(frame.schema != frames[0].schema for frame in frames):
        made = concat(frames, what="rows")
    else:
        made = pl.concat(frames, rechunk=True) if len(frames) > 1 else frames[0]
    frames.clear()
    return made


def row_bytes(frame: pl.DataFrame) -> np.ndarray:
    """Bytes of each row's values, about; a function of the row alone."""
    sizes = [_value_bytes(pl.col(name), dtype) for name, dtype in frame.schema.items() if name != KEY]
    return frame.select(pl.sum_horizontal(pl.repeat(0, pl.len(), dtype=pl.Int64), *sizes)).to_series().to_numpy()


def _value_bytes(value: pl.Expr, dtype: Any) -> pl.Expr:
    if dtype == pl.String:
        size = value.str.len_bytes().cast(pl.Int64)
    elif dtype == pl.Binary:
        size = value.bin.size().cast(pl.Int64)
    elif isinstance(dtype, pl.Struct):
        members = [_value_bytes(value.struct.field(field.name), field.dtype) for field in dtype.fields]
        size = pl.sum_horizontal(members) if members else pl.lit(0, pl.Int64)
    elif isinstance(dtype, pl.List):
        size = value.list.eval(_value_bytes(pl.element(), dtype.inner)).list.sum()
    else:
        return pl.lit(8, pl.Int64)
    return size.fill_null(0)
