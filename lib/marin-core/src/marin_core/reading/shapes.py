"""Shapes: whether a record holds what its annotations say.

`records.from_json` follows the annotations where it has something to build and lets everything else through, since a
plan reads ten thousand records that this very package has written. A reader shows any record that it finds, so there a
time that is a list, or a name that is a number, is damage like any other and is said as such.
"""

import functools
import types
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, Literal

from marin_core.errors import CorruptRecordError

type Test = Callable[[Any], bool]


def checked[T](record: T, *, where: str) -> T:
    """The record, if every field of it is of its kind.

    Raises:
        CorruptRecordError: names the field.
    """
    for name, holds in _tests(type(record)):
        if not holds(value := getattr(record, name)):
            raise CorruptRecordError(f"{where}: not a readable {type(record).__name__} ({name} is {_brief(value)})")
    return record


@functools.cache
def _tests(kind: type) -> tuple[tuple[str, Test], ...]:
    hints = typing.get_type_hints(kind)
    return tuple((f.name, test) for f in fields(kind) if (test := _test(hints[f.name])) is not None)


def _test(kind: Any) -> Test | None:
    """What tells a value of a kind from others; None where anything will do."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return None
    if kind is float:
        return lambda v: isinstance(v, int | float) and not isinstance(v, bool)
    if kind is int:
        return lambda v: isinstance(v, int) and not isinstance(v, bool)
    if origin is Literal:  # a later version may know more of them
        return lambda v: isinstance(v, str)
    if origin in (types.UnionType, typing.Union):
        tests = [_test(a) for a in args]
        return lambda v: any(holds is None or holds(v) for holds in tests)
    if origin is tuple:
        holds = _test(args[0])
        return lambda v: isinstance(v, tuple) and (holds is None or all(map(holds, v)))
    if origin is dict:
        holds = _test(args[1])
        return lambda v: isinstance(v, dict) and (holds is None or all(map(holds, v.values())))
    if is_dataclass(kind):
        return lambda v: isinstance(v, kind) and all(holds(getattr(v, name)) for name, holds in _tests(kind))
    return lambda v: isinstance(v, kind)


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
