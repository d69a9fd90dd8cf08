"""Python values as an Arrow array: each comes back equal, or its column is refused by name.

Taken are what JSON knows, bytes and their like, dates, times, durations, decimals, NumPy's scalars and arrays of one
dimension, lists, tuples (as lists) and dicts with string keys; subclasses of these by their value. Moments with a zone
are instants: a fixed offset becomes UTC.

Arrow's own conversion takes more, and some of it quietly changes: a set comes in the order of its hashes, bytes among
strings turn into strings, a moment without a zone among those with one gets one, a time of day loses its own. So where
a column holds more than plain scalars, its values are walked once more along the type that Arrow gave them; of lists of
integers only the lists.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from marin_zephyr.errors import SchemaError
from marin_zephyr.names import check_name

_FIX = "map it to one type before this point"
_PLAIN = frozenset((bool, int, float, str, bytes))
_SHOWN = 200


def array(name: str, values: Sequence[Any]) -> pa.Array:
    """A column.

    Args:
        name: the column, for errors.
        values: its values; None is a null.

    Raises:
        SchemaError: the values do not share a type, or have none that keeps them as they are.
    """
    kinds = _kinds(values)
    if len(kinds) > 1 and not kinds <= {int, float} and not kinds <= {list, tuple}:
        # Arrow would take True for 1.0 and "a" for b"a".
        raise SchemaError(f"column {name!r} holds {_shown(kinds)}; {_FIX}")
    try:
        made = pa.array(values)
    except UnicodeEncodeError as e:
        raise SchemaError(
            f"column {name!r} holds a lone surrogate, which is no text in UTF-8; replace or drop it"
        ) from e
    except OverflowError as e:
        raise SchemaError(f"column {name!r} holds an integer beyond 64 bits; make it a string") from e
    except (TypeError, ValueError, NotImplementedError) as e:  # Arrow's own are among them
        _check_sets(name, kinds)
        reason = " ".join(str(e).split())[:_SHOWN]
        what = (
            "values of more than one type"
            if kinds <= {list, tuple, dict}
            else f"{_shown(kinds)} values that fit no column"
        )
        raise SchemaError(f"column {name!r} holds {what} ({reason}); {_FIX}") from e
    if kinds <= _PLAIN:
        return made
    _check(name, values, made.type)
    settled = _settled(made.type)
    return made if settled == made.type else made.cast(settled)


def check_names(fields: Iterable[pa.Field]) -> None:
    """Refuses a NUL in the name of a field, or of one within a struct: Polars would not give it to Arrow again."""
    for field in fields:
        if "\0" in field.name:
            check_name(field.name)
        if field.type.num_fields:
            check_names(field.type.field(i) for i in range(field.type.num_fields))


def _check(name: str, values: Iterable[Any], made: pa.DataType) -> None:
    """Refuses values that Arrow has changed on the way to this type."""
    values = [value for value in values if value is not None]
    kinds = _kinds(values)
    _check_sets(name, kinds)
    if pa.types.is_list(made):
        _require(name, kinds, list, tuple, np.ndarray)
        if not (pa.types.is_integer(made.value_type) or pa.types.is_boolean(made.value_type)):
            _check(name, chain.from_iterable(values), made.value_type)
    elif pa.types.is_struct(made):
        _require(name, kinds, dict)
        for key in dict.fromkeys(chain.from_iterable(values)):
            check_name(key)
        for i in range(made.num_fields):
            field = made.field(i)
            _check(name, (value.get(field.name) for value in values), field.type)
    elif pa.types.is_string(made):
        _require(name, kinds, str)
    elif pa.types.is_binary(made):
        _require(name, kinds, bytes, bytearray, memoryview)
    elif pa.types.is_floating(made) and any(issubclass(kind, (bool, np.bool_)) for kind in kinds):
        _require(name, kinds, float)
    elif pa.types.is_time(made) and any(value.tzinfo is not None for value in values):
        raise SchemaError(f"column {name!r} holds a time of day with a zone, which no column keeps; {_FIX}")
    elif (pa.types.is_date(made) or pa.types.is_timestamp(made)) and len(
        kinds & {datetime.date, datetime.datetime}
    ) > 1:
        raise SchemaError(f"column {name!r} holds {_shown(kinds)}; {_FIX}")
    elif pa.types.is_timestamp(made):
        zoned = {isinstance(value, datetime.datetime) and value.utcoffset() is not None for value in values}
        if len(zoned) > 1:
            raise SchemaError(f"column {name!r} holds moments with and without a zone; give all of them one")
    elif isinstance(made, pa.BaseExtensionType) or pa.types.is_decimal256(made):
        raise SchemaError(f"column {name!r} holds {_shown(kinds)} values that fit no column; make them strings")


def _check_sets(name: str, kinds: set[type]) -> None:
    if any(issubclass(kind, (set, frozenset)) for kind in kinds):
        raise SchemaError(f"column {name!r} holds a set, whose order is no one's; make it a list, such as sorted(...)")


def _require(name: str, kinds: set[type], *allowed: type) -> None:
    if not all(issubclass(kind, allowed) for kind in kinds):
        raise SchemaError(f"column {name!r} holds {_shown(kinds)}, which one column cannot keep; {_FIX}")


def _settled(kind: pa.DataType) -> pa.DataType:
    """The type with UTC for fixed offsets, of which Polars knows only some."""
    if pa.types.is_timestamp(kind) and kind.tz is not None and kind.tz[0] in "+-":
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_list(kind):
        return pa.list_(_settled(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(kind.field(i).name, _settled(kind.field(i).type)) for i in range(kind.num_fields)])
    return kind


def _kinds(values: Iterable[Any]) -> set[type]:
    return set(map(type, values)) - {type(None)}


def _shown(kinds: set[type]) -> str:
    return " and ".join(sorted(kind.__name__ for kind in kinds))
