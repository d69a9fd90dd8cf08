"""What a reader does last: exactly the columns that were asked for, and where the rows came from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from marin_zephyr.formats.files import InputFile
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
    rows: Sequence[int] | np.ndarray,
    offsets: Sequence[int] | np.ndarray | None,
) -> pl.DataFrame:
    """The asked-for columns (an absent one is null), and the provenance if asked for."""
    if options.columns is not None:
        frame = project(frame, options.columns)
    if not options.with_source:
        return frame
    columns = (
        pl.Series("source", [file.name], dtype=pl.String).new_from_index(0, frame.height),
        pl.Series("source_row", np.asarray(rows, dtype=np.int64)),
        pl.Series("source_offset", [None] * frame.height, dtype=pl.Int64)
        if offsets is None
        else pl.Series("source_offset", np.asarray(offsets, dtype=np.int64)),
    )
    return frame.with_columns(columns)
