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

BATCH_ROWS = 65_536
BATCH_BYTES = 64 << 20
_DECODED_ROWS = 512

_FIX = "map it to one type before this point"


def frame_from_rows(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Columns from dicts, in the order in which keys first appear.

    Raises:
        SchemaError: a column's values do not share a type.
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
    return to_frame(pa.table({name: _column(name, values) for name, values in columns.items()}))


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
    for part in frame.iter_slices(_DECODED_ROWS):
        yield from map(dict, map(zip, repeat(names), part.rows()))


def to_frame(table: pa.Table) -> pl.DataFrame:
    """An Arrow table as a Polars frame, sharing memory where the layouts agree."""
    if table.num_columns == 0:
        return pl.DataFrame(height=table.num_rows)
    frame = pl.from_arrow(table, rechunk=False)
    assert isinstance(frame, pl.DataFrame)
    frame.columns = table.column_names  # Polars calls a column without a name `column_0`
    return frame


def batches_of_rows(rows: Iterable[dict[str, Any]], *, limit: int = BATCH_ROWS) -> Iterator[pl.DataFrame]:
    """Frames of at most ``limit`` rows each."""
    pending: list[dict[str, Any]] = []
    for row in rows:
        pending.append(row)
        if len(pending) == limit:
            yield frame_from_rows(pending)
            pending = []
    if pending:
        yield frame_from_rows(pending)


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


def concat(frames: Sequence[pl.DataFrame], *, what: str) -> pl.DataFrame:
    """All rows in order, under the unified schema."""
    names = next((frame.columns for frame in frames if frame.width), None)
    if names is None:
        return pl.DataFrame(height=sum(frame.height for frame in frames))
    # An Arrow table without columns does not know how many rows it has.
    tables = [(f if f.width else pl.DataFrame({names[0]: [None] * f.height})).to_arrow() for f in frames]
    schema = unify([t.schema for t in tables], what=what)
    return to_frame(pa.concat_tables([conform(t, schema, what=what) for t in tables]))


def _column(name: str, values: list[Any]) -> pa.Array:
    kinds = set(map(type, values)) - {type(None)}
    if len(kinds) > 1 and not kinds <= {int, float} and not kinds <= {list, tuple}:
        # Arrow would take True for 1.0 and "a" for b"a".
        shown = " and ".join(sorted(k.__name__ for k in kinds))
        raise SchemaError(f"column {name!r} holds {shown}; {_FIX}")
    try:
        return pa.array(values)
    except UnicodeEncodeError as e:
        raise SchemaError(
            f"column {name!r} holds a lone surrogate, which is no text in UTF-8; replace or drop it"
        ) from e
    except OverflowError as e:
        raise SchemaError(f"column {name!r} holds an integer beyond 64 bits; make it a string") from e
    except (pa.ArrowInvalid, pa.ArrowTypeError) as e:
        raise SchemaError(f"column {name!r} holds values of more than one type ({e}); {_FIX}") from e
