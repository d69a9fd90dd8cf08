"""Rows to columns and back, and the one rule by which types unify: losslessly, or not at all.

A batch is a ``polars.DataFrame``. Rows are dicts; a key that a row lacks is a null, so one null semantics holds for
every format. Python values become columns through Arrow, whose conversion checks each value; Polars's own would turn
``1`` next to ``"x"`` into ``"1"`` without a word.

Invariant: no value changes on its way through a column. Integers join floats only where each is exactly representable;
anything else that does not unify is a `SchemaError` that names the column and both types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any

import polars as pl
import pyarrow as pa

from marin_zephyr.errors import SchemaError, UserCodeError
from marin_zephyr.names import check_name
from marin_zephyr.values import array, check_names

BATCH_ROWS = 65_536
BATCH_BYTES = 8 << 20
"""Bounds of a batch, whatever the memory: so a worker holds a few copies of one, and its least need follows from it."""
_DECODED_ROWS = 512

_FIX = "map it to one type before this point"


def frame_from_rows(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Columns from dicts, in the order in which keys first appear.

    Raises:
        SchemaError: a column's values do not share a type, or cannot be kept as they are (see `marin_zephyr.values`).
    """
    columns = _same_keys(rows)
    if columns is None:
        names: dict[str, None] = {}
        for row in rows:
            if row.keys() != names.keys():
                names.update(dict.fromkeys(row))
        columns = {name: [row.get(name) for row in rows] for name in names}
    if not columns:
        return pl.DataFrame(height=len(rows))
    for name in columns:
        check_name(name)
    return to_frame(pa.table({name: array(name, values) for name, values in columns.items()}))


def _same_keys(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]] | None:
    """The columns of rows that all have the same keys, without a step of Python's a row; None if they do not."""
    if not rows or set(map(type, rows)) != {dict} or set(map(len, rows)) != {len(rows[0])}:
        return None
    try:
        return {name: list(map(itemgetter(name), rows)) for name in rows[0]}
    except KeyError:
        return None


def rows_of(frame: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """The rows as dicts, some hundred of them decoded at a time."""
    names = frame.columns
    if not names:
        yield from ({} for _ in range(frame.height))
        return
    for part in frame.iter_slices(_DECODED_ROWS):
        yield from map(dict, map(zip, repeat(names), part.rows()))


def to_frame(table: pa.Table) -> pl.DataFrame:
    """An Arrow table as a Polars frame, sharing memory where the layouts agree.

    Raises:
        SchemaError: a column's name holds a NUL, over which Arrow and Polars fall.
    """
    if table.num_columns == 0:
        return pl.DataFrame(height=table.num_rows)
    check_names(table.schema)
    names = table.column_names
    if "" in names:  # Polars calls it `column_0`, which another may be
        table = table.rename_columns([f"{name}\1" for name in names])
    frame = pl.from_arrow(table, rechunk=False)
    assert isinstance(frame, pl.DataFrame)
    frame.columns = names
    return frame


def named(frame: pl.DataFrame) -> pl.DataFrame:
    """``frame``, if its columns may be called as they are (see `marin_zephyr.names`).

    Raises:
        SchemaError: names the column that may not.
    """
    for name, dtype in frame.schema.items():
        check_name(name)
        if dtype.is_nested():
            _check_names_in(dtype)
    return frame


def batches_of_rows(rows: Iterable[dict[str, Any]]) -> Iterator[pl.DataFrame]:
    """Frames that end with the row that fills them: with `BATCH_ROWS` rows or `BATCH_BYTES` of texts and the like."""
    pending: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        pending.append(row)
        for value in row.values():
            kind = type(value)
            if kind is str:
                size += len(value)
            elif kind in _SIZED:
                size += _value_bytes(value)
        if size >= BATCH_BYTES or len(pending) == BATCH_ROWS:
            yield frame_from_rows(pending)
            pending, size = [], 0
    if pending:
        yield frame_from_rows(pending)


def batches_made(rows: Iterable[dict[str, Any]], name: str) -> Iterator[pl.DataFrame]:
    """`batches_of_rows` of what the operation ``name`` makes; an error says who made them.

    Raises:
        SchemaError: a column's values do not share a type.
    """
    try:
        yield from batches_of_rows(rows)
    except SchemaError as e:
        raise SchemaError(f"rows from {name}: {e}") from e


_SIZED = frozenset({bytes, list, tuple, dict})


def _value_bytes(value: Any) -> int:
    """About the bytes of a value, by what it holds: how Python stores it may differ from process to process."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_value_bytes, value.values()))
    if isinstance(value, (list, tuple)):
        plain = not value or type(value[0]) in (int, float)
        return 8 * len(value) if plain else sum(map(_value_bytes, value))
    return 8


def as_row(value: Any, name: str) -> dict[str, Any]:
    """``value`` if it is a row.

    Raises:
        UserCodeError: the function ``name`` gave something else.
    """
    if not isinstance(value, dict):
        raise UserCodeError(
            f"{name} returned {type(value).__name__}; return a dict (a row), or raise RejectRow(reason)"
        )
    return value


def unify(schemas: Iterable[pa.Schema], *, what: str) -> pa.Schema:
    """The narrowest schema that holds every value of all: new columns are appended, numbers widen, null fits anything.

    Args:
        schemas: in input order.
        what: what is being unified, for the error.

    Raises:
        SchemaError: two types of one column do not unify.
    """
    known: dict[str, pa.DataType] = {}
    for schema in schemas:
        for field in schema:
            before = known.get(field.name)
            if before is None or before == field.type:
                known[field.name] = field.type
                continue
            message = f"{what}: column {field.name!r} is {before} in one place and {field.type} in another; {_FIX}"
            try:
                both = [pa.schema({field.name: before}), pa.schema({field.name: field.type})]
                made = pa.unify_schemas(both, promote_options="permissive").field(0).type
            except (pa.ArrowInvalid, pa.ArrowTypeError) as e:
                raise SchemaError(message) from e
            if pa.types.is_decimal256(made):  # Polars has none
                raise SchemaError(message)
            known[field.name] = made
    return pa.schema(known)


def conform(table: pa.Table, schema: pa.Schema, *, what: str) -> pa.Table:
    """``table`` with exactly the columns and types of ``schema`` (as `unify` gave it); absent columns become null.

    Raises:
        SchemaError: a value does not survive the widening (an integer above 2^53 that would have to become a float).
    """
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        column = table.column(field.name)
        try:
            columns.append(column if column.type == field.type else column.cast(field.type, safe=True))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
            message = f"{what}: column {field.name!r} cannot become {field.type} without loss ({e}); {_FIX}"
            raise SchemaError(message) from e
    return pa.table(columns, schema=schema)


def conformed(frame: pl.DataFrame, like: pl.DataFrame, *, what: str) -> pl.DataFrame:
    """The frame under the schema of another, which is wider or the same; see `conform`."""
    if frame.schema == like.schema:
        return frame
    return to_frame(conform(frame.to_arrow(), like.to_arrow().schema, what=what))


class Schemas:
    """The schemas of a stream of frames, to be made one when all of it has been seen."""

    def __init__(self) -> None:
        self._seen: dict[tuple[tuple[str, pl.DataType], ...], pa.Schema] = {}

    def note(self, frame: pl.DataFrame) -> None:
        """Takes a frame's schema into account, whether it has rows or not."""
        key = tuple(frame.schema.items())
        if key not in self._seen:
            self._seen[key] = frame.clear().to_arrow().schema

    def unified(self, *, what: str) -> pa.Schema:
        """The schema that holds the values of all frames; see `unify`.

        Raises:
            SchemaError: two types of one column do not unify.
        """
        return unify(self._seen.values(), what=what)


def concat(frames: Sequence[pl.DataFrame], *, what: str) -> pl.DataFrame:
    """All rows in order, under the unified schema."""
    names = next((frame.columns for frame in frames if frame.width), None)
    if names is None:
        return pl.DataFrame(height=sum(frame.height for frame in frames))
    # An Arrow table without columns does not know how many rows it has.
    tables = [(f if f.width else pl.DataFrame({names[0]: [None] * f.height})).to_arrow() for f in frames]
    schema = unify([t.schema for t in tables], what=what)
    return to_frame(pa.concat_tables([conform(t, schema, what=what) for t in tables]))


def _check_names_in(dtype: Any) -> None:
    if isinstance(dtype, pl.Struct):
        for field in dtype.fields:
            check_name(field.name)
            _check_names_in(field.dtype)
    elif isinstance(dtype, pl.List | pl.Array):
        _check_names_in(dtype.inner)
