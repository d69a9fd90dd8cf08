"""Rows to columns and back, and the one rule by which types unify: losslessly, or not at all.

A batch is a ``polars.DataFrame``. Rows are dicts; a key that a row lacks is a null, so one null semantics holds for
every format. Python values become columns through Arrow, whose conversion checks each value; Polars's own would turn
``1`` next to ``"x"`` into ``"1"`` without a word.

Invariant: no value changes on its way through a column. Integers join floats only where each is exactly representable;
anything else that does not unify is a `SchemaError` that names the column and both types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from marin_zephyr.errors import SchemaError, UserCodeError

BATCH_ROWS = 65_536
BATCH_BYTES = 64 << 20

_FIX = "map it to one type before this point"


def frame_from_rows(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Columns from dicts, in the order in which keys first appear.

    Raises:
        SchemaError: a column's values do not share a type.
    """
    names: dict[str, None] = {}
    for row in rows:
        if row.keys() != names.keys():
            names.update(dict.fromkeys(row))
    for name in names:
        check_name(name)
    if not names:
        return pl.DataFrame(height=len(rows))
    table = pa.table({name: _column(name, [row.get(name) for row in rows]) for name in names})
    return to_frame(table)


def check_name(name: Any) -> None:
    """Refuses what cannot name a column in Arrow."""
    if not isinstance(name, str):
        raise SchemaError(f"key {name!r} of a row is {type(name).__name__}, not a string; make it one")
    if "\0" in name or not _is_utf8(name):
        what = "a NUL" if "\0" in name else "a lone surrogate"
        raise SchemaError(f"key {name!r} of a row holds {what}, which no column's name can; rename it")


def _is_utf8(name: str) -> bool:
    return name.isascii() or name.encode("utf-8", "replace").decode() == name


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
    _check_kinds(name, values)
    try:
        column = pa.array(values)
    except UnicodeEncodeError as e:
        raise SchemaError(
            f"column {name!r} holds a lone surrogate, which is no text in UTF-8; replace or drop it"
        ) from e
    except OverflowError as e:
        raise SchemaError(f"column {name!r} holds an integer beyond 64 bits; make it a string") from e
    except (pa.ArrowInvalid, pa.ArrowTypeError) as e:
        raise SchemaError(f"column {name!r} holds values of more than one type ({e}); {_FIX}") from e
    _check_within(name, values, column.type)
    return column


def _check_kinds(name: str, values: Iterable[Any]) -> None:
    """Refuses kinds that Arrow would turn into each other: True into 1.0, "a" into b"a"."""
    kinds = set(map(type, values)) - {type(None)}
    if len(kinds) > 1 and not kinds <= {int, float} and not kinds <= {list, tuple}:
        shown = " and ".join(sorted(k.__name__ for k in kinds))
        raise SchemaError(f"column {name!r} holds {shown}; {_FIX}")


def _check_within(name: str, values: list[Any], kind: pa.DataType) -> None:
    """The same within lists and structs; and moments with and without a zone, which are one kind to Python."""
    if pa.types.is_list(kind):
        inner = [each for value in values if isinstance(value, (list, tuple)) for each in value]
        _check_kinds(f"{name}[]", inner)
        _check_within(f"{name}[]", inner, kind.value_type)
    elif pa.types.is_struct(kind):
        rows = [value for value in values if isinstance(value, dict)]
        for field in kind:
            inner = [row.get(field.name) for row in rows]
            _check_kinds(f"{name}.{field.name}", inner)
            _check_within(f"{name}.{field.name}", inner, field.type)
    elif pa.types.is_timestamp(kind) and len({v.tzinfo is None for v in values if hasattr(v, "tzinfo")}) > 1:
        raise SchemaError(f"column {name!r} holds datetimes with a zone and without; {_FIX}")
