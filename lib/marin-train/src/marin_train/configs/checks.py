"""Checks that the configurations share: each names the field, its value and what it must be."""

import math
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
    return f"{type(config).__name__}.{name}={getattr(config, name)}{which}"


def fraction(config: Any, name: str) -> None:
    """Refuses what is not at least 0 and below 1."""
    value = getattr(config, name)
    if not 0 <= value < 1:
        raise ConfigError(f"{told(config, name)} must be at least 0 and below 1")
