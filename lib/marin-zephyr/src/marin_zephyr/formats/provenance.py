"""Where rows came from, as columns, and what a reader is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from marin_zephyr.formats.files import InputFile

SOURCE_COLUMNS = ("source", "source_row", "source_offset")


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What of `marin_zephyr.dataset.FileSource` concerns a reader."""

    unit: str = "line"
    with_source: bool = False
    columns: tuple[str, ...] | None = None


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
        present = set(frame.columns)
        frame = frame.select(pl.col(c) if c in present else pl.lit(None).alias(c) for c in options.columns)
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
