"""Checks that the configurations share: each names the field, its value and what it must be."""

import dataclasses
import math
import typing
from collections.abc import Collection
from typing import Any

from marin_train.errors import ConfigError

COUNTED_ON_DEVICE = 30
"""Bits of a number that devices count to, or that arrays are shaped by: theirs have 32, with room for sums."""


def positive(config: Any, name: str, *, bits: int = 62) -> None:
    """Refuses what is not above 0 and finite."""
    value = getattr(config, name)
    if not 0 < value < math.inf:
        raise ConfigError(f"{told(config, name)} must be positive and finite")
    _countable(config, name, bits)


def not_negative(config: Any, name: str, *, bits: int = 62) -> None:
    """Refuses what is below 0, or infinite."""
    value = getattr(config, name)
    if not value >= 0:
        raise ConfigError(f"{told(config, name)} must not be negative")
    if value == math.inf:
        raise ConfigError(f"{told(config, name)} must be finite")
    _countable(config, name, bits)


def _countable(config: Any, name: str, bits: int) -> None:
    """Refuses a count that so many bits do not hold."""
    value = getattr(config, name)
    if isinstance(value, int) and value > 2**bits:
        raise ConfigError(f"{told(config, name)} must not be more than 2**{bits}")


def told(config: Any, name: str) -> str:
    """A field and its value, and of a component which one."""
    which = f" of {config.name!r}" if type(config).__name__ == "Component" else ""
    return f"{type(config).__name__}.{name}={getattr(config, name)!r}{which}"


def fraction(config: Any, name: str) -> None:
    """Refuses what is not at least 0 and below 1."""
    value = getattr(config, name)
    if not 0 <= value < 1:
        raise ConfigError(f"{told(config, name)} must be at least 0 and below 1")


def choices(config: Any) -> None:
    """Refuses what is not one of the values that a field's ``Literal`` names."""
    for name, kind in typing.get_type_hints(type(config)).items():
        allowed = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()
        if allowed and getattr(config, name) not in allowed:
            raise ConfigError(f"{told(config, name)} is not one of: {', '.join(map(repr, allowed))}")


def no_effect(config: Any, names: Collection[str], *, when: str) -> None:
    """Refuses fields that change nothing, unless they are as they are by default."""
    for field in dataclasses.fields(config):
        if field.name in names and getattr(config, field.name) != field.default:
            raise ConfigError(f"{told(config, field.name)} changes nothing {when}; leave it out")
