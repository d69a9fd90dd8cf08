"""Checks that the configurations share: each names the field, its value and what it must be."""

import math
from typing import Any

from marin_train.errors import ConfigError


def positive(config: Any, name: str) -> None:
    """Refuses what is not above 0 and finite."""
    value = getattr(config, name)
    if not 0 < value < math.inf:
        raise ConfigError(f"{told(config, name)} must be positive and finite")
    countable(config, name)


def not_negative(config: Any, name: str) -> None:
    """Refuses what is below 0."""
    value = getattr(config, name)
    if not value >= 0:
        raise ConfigError(f"{told(config, name)} must not be negative")
    countable(config, name)


def countable(config: Any, name: str) -> None:
    """Refuses a count that 64 bits do not hold with room for sums."""
    value = getattr(config, name)
    if isinstance(value, int) and value > 2**62:
        raise ConfigError(f"{told(config, name)} must not be more than 2**62")


def told(config: Any, name: str) -> str:
    """A field and its value, and of a component which one."""
    which = f" of {config.name!r}" if type(config).__name__ == "Component" else ""
    return f"{type(config).__name__}.{name}={getattr(config, name)}{which}"


def fraction(config: Any, name: str) -> None:
    """Refuses what is not at least 0 and below 1."""
    value = getattr(config, name)
    if not 0 <= value < 1:
        raise ConfigError(f"{told(config, name)} must be at least 0 and below 1")
