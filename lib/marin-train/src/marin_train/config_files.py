"""Configurations as files: JSON or TOML in, ``a.b=c`` overrides on top, and the same plain values back out.

Strict, because a misspelt key that is ignored is an experiment that was not run: unknown keys, missing keys and
values of another type are refused by their dotted name. The types are read off the dataclasses, so that a field
added there is at once readable here.
"""

import dataclasses
import difflib
import json
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marin_train.configs import TrainConfig
from marin_train.errors import ConfigError

_SHOWN_CHARACTERS = 100


def load(path: str | Path, *, overrides: Sequence[str] = ()) -> TrainConfig:
    """Reads a run's configuration.

    Args:
        path: a ``.json`` or ``.toml`` file, nested like `TrainConfig`.
        overrides: ``dotted.name=value`` pairs, applied in order; list items go by number
            (``data.components.0.weight=2``), values are JSON, and what is not JSON is text.

    Raises:
        ConfigError: the file is absent or malformed, or a field is unknown, missing or of another type.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        if file.suffix == ".toml":
            values = tomllib.loads(text)
        elif file.suffix == ".json":
            values = json.loads(text)
        else:
            raise ConfigError(f"{file}: the name must end in .json or .toml")
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{file} is not {file.suffix[1:].upper()}: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{file} holds {type(values).__name__}, expected the fields of TrainConfig")
    for override in overrides:
        _override(values, override)
    return from_dict(TrainConfig, values)


def from_dict[C](cls: type[C], values: Mapping[str, Any], *, where: str = "") -> C:
    """Builds a configuration dataclass from plain values; the inverse of `marin_train.configs.to_dict`.

    Args:
        cls: the dataclass.
        values: field name -> value, nested.
        where: dotted name of ``values`` in its file, for messages.

    Raises:
        ConfigError: a field is unknown, missing or of another type.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where or cls.__name__} is {_shown(values)}, expected the fields of {cls.__name__}")
    kinds = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(typing.cast(Any, cls))}
    for name in values:
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"{cls.__name__} has {', '.join(fields)}"
            raise ConfigError(f"{_join(where, name)} is not a field of {cls.__name__}; {hint}")
    for name, entry in fields.items():
        optional = entry.default is not dataclasses.MISSING or entry.default_factory is not dataclasses.MISSING
        if name not in values and not optional:
            raise ConfigError(f"{_join(where, name)} is missing; {cls.__name__} has no default for it")
    return cls(**{name: _convert(kinds[name], value, _join(where, name)) for name, value in values.items()})


def _convert(kind: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return from_dict(typing.cast(type, kind), value, where=where)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _convert(next(a for a in arguments if a is not type(None)), value, where)
    if origin is typing.Literal:
        if value not in arguments:
            raise ConfigError(f"{where} is {_shown(value)}, expected one of {', '.join(map(repr, arguments))}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            tables = f"; in TOML its tables are headed [[{where}]]" if isinstance(value, Mapping) else ""
            raise ConfigError(f"{where} is {_shown(value)}, expected a list{tables}")
        return tuple(_convert(arguments[0], item, f"{where}.{i}") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where} is {_shown(value)}, expected names and values")
        return {name: _convert(arguments[1], item, _join(where, name)) for name, item in value.items()}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ConfigError(f"{where} is a number of {len(str(value))} digits, too large for a float") from None
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"{where} is {_shown(value)}, expected {kind.__name__}")
    return value


def _override(values: Any, override: str) -> None:
    """Sets one ``dotted.name=value`` in nested dicts and lists, in place."""
    name, equals, text = override.partition("=")
    if not equals or not name:
        raise ConfigError(f"override {_shown(override)} must look like optimizer.learning_rate=0.001")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    *parents, last = name.split(".")
    node = values
    for key in parents:
        if isinstance(node, list):
            node = node[_index(node, key, name)]
        else:
            if node.get(key) is None:
                node[key] = {}  # a group that is absent, or null as an optional one may be
            node = node[key]
        if not isinstance(node, dict | list):
            raise ConfigError(f"override {_shown(name)}: {_shown(key)} is a value, not a group of fields")
    if isinstance(node, list):
        node[_index(node, last, name)] = value
    else:
        node[last] = value


def _index(items: list[Any], key: str, name: str) -> int:
    if not key.isdecimal() or len(key) > 9 or int(key) >= len(items):
        raise ConfigError(f"override {_shown(name)}: {_shown(key)} must be a number below {len(items)}")
    return int(key)


def _shown(value: object) -> str:
    """A value in a message that is to fit on a screen."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


def _join(where: str, name: object) -> str:
    return f"{where}.{name}" if where else str(name)
