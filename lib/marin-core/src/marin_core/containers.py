"""Containers: what may hold a step or a literal, looked into in one way wherever steps are found, replaced or copied.

Lists, tuples, named tuples, mappings, dataclasses and partials are containers; everything else is a leaf. A container
is rebuilt from its members without its constructor, so what a dataclass computed when it was made stays as it is.
"""

import copy
import dataclasses
import functools
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from marin_core.errors import UsageError

MOST_LEVELS = 64
"""Containers within containers. Deeper ones are mistakes, and would meet the interpreter's own limit in records."""

ATOMS = frozenset({type(None), bool, int, float, str, bytes})
"""Types of the frequent leaves, so that a list of a million numbers is passed over quickly."""

_CONTAINERS = frozenset({list, tuple, dict, OrderedDict, defaultdict, functools.partial})


def members(value: Any) -> Sequence[Any]:
    """What a container holds, in its order; nothing for a leaf. Keys of mappings are no members."""
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, Mapping):
        return list(value.values())
    if is_record(value):
        return [getattr(value, f.name) for f in dataclasses.fields(value) if hasattr(value, f.name)]
    if type(value) is functools.partial:
        return [*value.args, *value.keywords.values()]
    return ()


def with_members(value: Any, new: Sequence[Any]) -> Any:
    """A container like ``value`` with other members."""
    kind = type(value)
    if isinstance(value, Mapping):
        pairs = zip(value, new, strict=True)
        if isinstance(value, defaultdict):
            return defaultdict(value.default_factory, pairs)
        return OrderedDict(pairs) if kind is OrderedDict else dict(pairs)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*new)
    if isinstance(value, list | tuple):
        return kind(new)
    if kind is functools.partial:
        num_args = len(value.args)
        return functools.partial(value.func, *new[:num_args], **dict(zip(value.keywords, new[num_args:], strict=True)))
    made = copy.copy(value)
    names = [f.name for f in dataclasses.fields(value) if hasattr(value, f.name)]
    for name, member in zip(names, new, strict=True):
        object.__setattr__(made, name, member)
    return made


def is_record(value: Any) -> bool:
    """True for an instance of a dataclass."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def snapshot(value: Any, *, leaf: type, where: str) -> Any:
    """A copy that later changes to the original do not reach. Dicts come out in the order of their keys: two dicts
    that are equal have one identity, so a body must not be able to tell them apart by their order.

    Args:
        value: any value.
        leaf: a class whose instances are kept as they are.
        where: what the value is, for the error.

    Raises:
        UsageError: the value contains itself, or is nested too deeply.
    """
    return _copied(value, leaf, where, {}, {})


def _copied(value: Any, leaf: type, where: str, around: dict[int, None], done: dict[int, Any]) -> Any:
    if type(value) in ATOMS or isinstance(value, leaf):
        return value
    if type(value) is set or _is_array(value):
        return value.copy()
    if not _is_copied(value):
        return value
    inner = members(value)
    key = id(value)
    if key in done:
        return done[key]
    if key in around:
        raise UsageError(f"{where}: a {type(value).__name__} contains itself; pass a value without a cycle")
    if len(around) >= MOST_LEVELS:
        raise UsageError(f"{where} is nested more than {MOST_LEVELS} levels deep; pass something flatter")
    around[key] = None
    made = with_members(value, [v if type(v) in ATOMS else _copied(v, leaf, where, around, done) for v in inner])
    del around[key]
    done[key] = made = _in_order(made) if type(made) is dict else made
    return made


def _is_copied(value: Any) -> bool:
    """True for what has an identity and can change. A subclass of a container has none: what it adds is not known."""
    if type(value) in _CONTAINERS or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return True
    return is_record(value) and not isinstance(value, Mapping | list | tuple)


def _in_order(mapping: dict[Any, Any]) -> dict[Any, Any]:
    keys = list(mapping)
    of_one_kind = {type(k) for k in keys} <= {str} or {type(k) for k in keys} <= {int}
    ordered = sorted(keys) if of_one_kind else sorted(keys, key=lambda k: (type(k).__name__, repr(k)))
    return {k: mapping[k] for k in ordered}


def _is_array(value: Any) -> bool:
    kind = type(value)
    return kind.__name__ == "ndarray" and kind.__module__ == "numpy"
