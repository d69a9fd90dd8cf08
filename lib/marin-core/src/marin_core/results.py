"""Results: a recorded value, which is plain JSON, becomes again what the step's return annotation says it is.

Every reader gets a value this way, in the process that made it and in any later one, so all see the same: dataclasses
(nested, generic, with fields that their constructor does not take), named tuples, tuples, enums, paths, floats that
are not finite, optionals and unions of them. What the annotation does not speak of stays plain JSON. A value that does
not fit its annotation is an error that names the path, never a guess: a subclass of the annotated dataclass has fields
that would be lost, and a union of two dataclasses with the same fields cannot be told apart.
"""

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

from marin_core.errors import UsageError

_NOT_FINITE = ("NaN", "Infinity", "-Infinity")
_hints = functools.cache(typing.get_type_hints)


def restore(kind: Any, data: Any, *, where: str) -> Any:
    """A value of the type ``kind`` from plain JSON.

    Args:
        kind: an annotation; None or a string says nothing, and the data is returned as it is.
        data: what was recorded.
        where: the path to the value, for the error.

    Raises:
        UsageError: the data does not fit.
    """
    kind, known = _opened(kind, {})
    return _restored(kind, data, where, known)


def form(kind: Any, *, name: Callable[[type], str]) -> str:
    """What `restore` makes of plain JSON by an annotation, as text; empty where it leaves it as it is.

    Args:
        kind: an annotation.
        name: what a class is called.
    """
    kind, _ = _opened(kind, {})
    origin, args = typing.get_origin(kind) or kind, typing.get_args(kind)
    inner = [form(a, name=name) for a in args]
    if origin in (typing.Union, types.UnionType):
        # What stays plain JSON in one arm decides what the others can be.
        arms = sorted(i or getattr(a, "__name__", str(a)) for i, a in zip(inner, args, strict=True))
        return " | ".join(arms) if any(inner) else ""
    if origin is float:
        return "float"
    if not isinstance(origin, type):
        return ""
    made = dataclasses.is_dataclass(origin) or issubclass(origin, enum.Enum | PurePath | tuple)
    if not made and not (any(inner) and len(args) <= 2):
        return ""
    return f"{name(origin)}[{', '.join(inner)}]" if inner else name(origin)


def classes_in(kind: Any) -> Iterator[type]:
    """The classes that an annotation mentions; code that gets such a value may run their methods."""
    opened, _ = _opened(kind, {})
    origin = typing.get_origin(opened)
    for part in (origin, *typing.get_args(opened)) if origin is not None else ():
        yield from classes_in(part)
    if isinstance(opened, type) and (dataclasses.is_dataclass(opened) or issubclass(opened, enum.Enum | tuple)):
        yield opened


def _opened(kind: Any, known: Mapping[Any, Any]) -> tuple[Any, Mapping[Any, Any]]:
    """An annotation without the names around it: type variables, aliases, ``Annotated``, ``NewType``."""
    while True:
        if isinstance(kind, typing.TypeVar):
            kind = known.get(kind, Any)
        elif isinstance(kind, typing.TypeAliasType):
            kind = kind.__value__
        elif isinstance(kind, typing.NewType):
            kind = kind.__supertype__
        elif typing.get_origin(kind) is typing.Annotated:
            kind = typing.get_args(kind)[0]
        else:
            return kind, known


def _restored(kind: Any, data: Any, where: str, known: Mapping[Any, Any]) -> Any:
    kind, known = _opened(kind, known)
    origin, args = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _of_union(args, data, where, known)
    if isinstance(data, str) and origin is float and data in _NOT_FINITE:
        return float(data)
    if not isinstance(origin, type):
        return data
    if dataclasses.is_dataclass(origin) and isinstance(data, dict):
        variables = getattr(origin, "__parameters__", ())
        return _record(origin, data, where, dict(zip(variables, (known.get(a, a) for a in args), strict=False)))
    if issubclass(origin, enum.Enum):
        return _member(origin, data, where)
    if issubclass(origin, PurePath) and isinstance(data, str):
        return origin(data)
    if isinstance(data, list) and issubclass(origin, tuple):
        return _tuple(origin, args, data, where, known)
    if isinstance(data, list) and args and len(args) == 1:
        return [_restored(args[0], item, f"{where}[{i}]", known) for i, item in enumerate(data)]
    if isinstance(data, dict) and len(args) == 2:
        return {k: _restored(args[1], item, f"{where}[{k!r}]", known) for k, item in data.items()}
    return data


def _record(kind: Any, data: dict[str, Any], where: str, known: Mapping[Any, Any]) -> Any:
    fields, hints = {f.name: f for f in dataclasses.fields(kind)}, _hints(kind)
    if unknown := [n for n in data if n not in fields]:
        raise UsageError(
            f"{where} was recorded with a field {unknown[0]!r}, which {kind.__qualname__} does not have; annotate the "
            "step with the class that it returns, or make it again with --force"
        )
    parts = {n: _restored(hints[n], item, f"{where}.{n}", known) for n, item in data.items()}
    try:
        made = kind(**{n: part for n, part in parts.items() if fields[n].init})
    except TypeError as e:
        raise UsageError(f"{where} cannot be read back as a {kind.__qualname__}: {e}") from e
    for name, part in parts.items():
        if not fields[name].init:
            object.__setattr__(made, name, part)
    return made


def _tuple(kind: Any, args: tuple[Any, ...], data: list[Any], where: str, known: Mapping[Any, Any]) -> Any:
    if hasattr(kind, "_fields"):
        hints = _hints(kind)
        named = zip(kind._fields, data, strict=True)
        return kind(*(_restored(hints.get(name), item, f"{where}.{name}", known) for name, item in named))
    if len(args) == 2 and args[1] is Ellipsis:
        args = (args[0],) * len(data)
    if not args:
        return tuple(data)
    if len(args) != len(data):
        raise UsageError(f"{where} has {len(data)} items, but its annotation {len(args)}")
    return tuple(_restored(a, d, f"{where}[{i}]", known) for i, (a, d) in enumerate(zip(args, data, strict=True)))


def _member(kind: Any, data: Any, where: str) -> Any:
    for value in (data, tuple(data) if isinstance(data, list) else data):
        try:
            return kind(value)
        except (ValueError, TypeError):
            continue
    raise UsageError(f"{where} is {data!r}, which is no value of {kind.__qualname__}; make it again with --force")


def _of_union(args: tuple[Any, ...], data: Any, where: str, known: Mapping[Any, Any]) -> Any:
    """The arm that the data is of as it stands, or else the only one that it can be made into."""
    arms = [_opened(a, known)[0] for a in args]
    if data is None or type(data) in arms:
        return data
    fitting = [a for a in arms if _fits(a, data)]
    if len(fitting) > 1:
        names = " and ".join(getattr(a, "__qualname__", str(a)) for a in fitting)
        raise UsageError(f"{where} may be each of {names}; return types whose JSON differs, or a field that tells")
    return _restored(fitting[0], data, where, known) if fitting else data


def _fits(kind: Any, data: Any) -> bool:
    origin: Any = typing.get_origin(kind) or kind
    if dataclasses.is_dataclass(origin):
        return isinstance(data, dict) and {f.name for f in dataclasses.fields(origin)} == set(data)
    if _inherits(origin, enum.Enum):
        return any(_plain(member.value) == data for member in origin)
    if _inherits(origin, list | tuple):
        return isinstance(data, list)
    if _inherits(origin, PurePath):
        return isinstance(data, str)
    if _inherits(origin, Mapping):
        return isinstance(data, dict)
    return origin is float and isinstance(data, str) and data in _NOT_FINITE


def _inherits(kind: Any, base: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, base)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
