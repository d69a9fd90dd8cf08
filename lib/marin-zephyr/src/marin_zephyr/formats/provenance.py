"""What a reader does last: exactly the columns that were asked for, and where the rows came from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from marin_zephyr.formats.files import InputFile
from marin_zephyr.formats.lines import Block
from marin_zephyr.nodes import ReadOptions


def project(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Exactly these columns, in this order; one that the frame lacks is null."""
    absent = [name for name in columns if name not in frame.columns]
    # In two steps: a `select` of nothing but literals would be one row high.
    return frame.with_columns(pl.lit(None).alias(name) for name in absent).select(columns)


def finish(
    frame: pl.DataFrame,
    file: InputFile,
    options: ReadOptions,
    *,
    rows: Sequence[int] | np.ndarray | None,
    offsets: Sequence[int] | np.ndarray | None,
) -> pl.DataFrame:
    """The asked-for columns (an absent one is null), and the provenance if asked for."""
    if options.columns is not None:
        frame = project(frame, options.columns)
    if not options.with_source:
        return frame
    columns = (
        pl.Series("source", [file.name], dtype=pl.String).new_from_index(0, frame.height),
        _places("source_row", rows, frame.height),
        _places("source_offset", offsets, frame.height),
    )
    return frame.with_columns(columns)


def numbered(nths: Sequence[int] | np.ndarray, block: Block, options: ReadOptions) -> np.ndarray | None:
    """The numbers in the file of lines of a block that are known by their numbers in the span, if they are asked for.

    None if they are not, or if damage before the span makes the lines uncountable.
    """
    before = block.before() if options.with_source else None
    return None if before is None else np.asarray(nths, dtype=np.int64) + before


def _places(name: str, values: Sequence[int] | np.ndarray | None, height: int) -> pl.Series:
    if values is None:
        return pl.Series(name, [None], dtype=pl.Int64).new_from_index(0, height)
    return pl.Series(name, np.asarray(values, dtype=np.int64))
