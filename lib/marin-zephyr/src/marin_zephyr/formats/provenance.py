"""What a reader does last: the rows and columns that were asked for, and where the rows came from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from marin_zephyr.errors import SchemaError
from marin_zephyr.evaluation import evaluated, with_nulls
from marin_zephyr.formats.files import InputFile
from marin_zephyr.formats.lines import Block
from marin_zephyr.formats.rejects import Desk
from marin_zephyr.nodes import RAW, ReadOptions

SOURCE = ("source", "source_row", "source_offset")
_VERDICT = "\0verdict"


def needed(options: ReadOptions) -> tuple[str, ...] | None:
    """The columns that a reader has to look at: those asked for, and those that the predicate names. None: all."""
    if options.columns is None:
        return None
    names = (*options.columns, *(() if options.predicate is None else options.predicate.meta.root_names()))
    provenance = SOURCE if options.with_source else ()
    return tuple(dict.fromkeys(name for name in names if name not in provenance))


def note_absent(present: Sequence[str], options: ReadOptions, desk: Desk) -> None:
    """Notes which columns of the predicate some rows have. Those that the caller asked for are there, if as nulls."""
    if options.predicate is None or (options.columns is not None and not options.pushed):
        return
    there = {*present, *(SOURCE if options.with_source else ())}
    for name in options.predicate.meta.root_names():
        desk.absent[name] = desk.absent.get(name, True) and name not in there


def project(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Exactly these columns, in this order; one that the frame lacks is null."""
    if not columns:
        return pl.DataFrame(height=frame.height)
    if frame.columns == [*columns]:
        return frame
    # In two steps: a `select` of nothing but literals would be one row high.
    return with_nulls(frame, columns).select(columns)


def finish(
    frame: pl.DataFrame,
    file: InputFile,
    options: ReadOptions,
    *,
    rows: Sequence[int] | np.ndarray | None,
    offsets: Sequence[int] | np.ndarray | None,
    desk: Desk | None = None,
) -> pl.DataFrame:
    """The asked-for columns (an absent one is null), and the provenance if asked for.

    Args:
        frame: the rows, with at least the columns that are `needed`.
        file: where they come from.
        options: what is asked for.
        rows: the number of each row in the file, if it can be known.
        offsets: the byte at which each starts, if there is such a thing.
        desk: is told how many rows the predicate leaves out; without it the predicate is not looked at.

    Raises:
        SchemaError: the predicate cannot be evaluated.
    """
    asked = None if options.columns is None else [*options.columns, *([RAW] if options.raw else [])]
    if options.with_source:
        frame = frame.with_columns(_provenance(frame.height, file, rows, offsets))
        asked = None if asked is None else [*asked, *SOURCE]
    if options.predicate is not None and desk is not None:
        note_absent(frame.columns, options, desk)
        frame = _kept(frame, options.predicate, file, desk)
    if asked is None:
        return frame
    if options.pushed:
        asked = [name for name in asked if name in frame.columns]
    return project(frame, tuple(dict.fromkeys(asked)))


def numbered(nths: np.ndarray, block: Block, options: ReadOptions) -> np.ndarray | None:
    """The numbers in the file of lines that are known by their numbers in a span, if they are asked for.

    None if they are not, or if damage before the span makes the lines uncountable.
    """
    before = block.before() if options.with_source else None
    return None if before is None else nths + before


def _provenance(
    height: int, file: InputFile, rows: Sequence[int] | np.ndarray | None, offsets: Sequence[int] | np.ndarray | None
) -> tuple[pl.Series, ...]:
    return (
        pl.Series("source", [file.name], dtype=pl.String).new_from_index(0, height),
        _places("source_row", rows, height),
        _places("source_offset", offsets, height),
    )


def _places(name: str, values: Sequence[int] | np.ndarray | None, height: int) -> pl.Series:
    if values is None:
        return pl.Series(name, [None], dtype=pl.Int64).new_from_index(0, height)
    return pl.Series(name, np.asarray(values, dtype=np.int64))


def _kept(frame: pl.DataFrame, predicate: pl.Expr, file: InputFile, desk: Desk) -> pl.DataFrame:
    """The rows for which the predicate is true; a column that the batch lacks is null, and null is not true."""
    names = list(dict.fromkeys(predicate.meta.root_names()))
    whole = with_nulls(frame, names)
    try:
        verdict = evaluated(whole, names, lambda f: f.with_columns(predicate.alias(_VERDICT))[_VERDICT])
    except pl.exceptions.PolarsError as e:
        raise SchemaError(f"{file.url}: filter: {e}") from e
    if verdict.dtype not in (pl.Boolean, pl.Null):
        raise SchemaError(f"{file.url}: filter: the expression gives {verdict.dtype}, not true or false; compare it")
    kept = frame.filter(verdict.cast(pl.Boolean))
    desk.num_filtered += frame.height - kept.height
    return kept
