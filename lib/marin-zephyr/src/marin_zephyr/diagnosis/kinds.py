"""Where in JSON lines a column first holds a value of which kind: the place behind "column 'n' holds int and str".

A reader meets a block of thousands of lines and knows that two kinds are in it; which line is the first of its kind
takes a walk over the lines, with Python's parser. It is made only when something is wrong or worth a remark, and ends
as soon as it has found what it is for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from marin_zephyr.errors import InputError
from marin_zephyr.formats.files import InputFile
from marin_zephyr.formats.lines import line_blocks
from marin_zephyr.formats.streams import blocks

type Kinds = dict[str, dict[str, Place]]
"""Column (``a.b`` within structs, ``a[]`` within lists) -> kind of value -> where it first stands."""

_NAMES = {bool: "booleans", int: "integers", float: "floats", str: "strings", list: "lists", dict: "objects"}
_NUMBERS = frozenset(("integers", "floats"))


@dataclass(frozen=True)
class Place:
    """A line from 1, and the offset of its first byte in the uncompressed file."""

    line: int
    offset: int


def find_kinds(file: InputFile, *, until: Callable[[Kinds], bool] | None = None) -> Kinds:
    """The kinds of values of a JSON lines file. Lines that are not JSON are passed over.

    Args:
        file: the file.
        until: ends the walk when true of what is known; asked whenever something new is.
    """
    kinds: Kinds = {}
    try:
        for block in line_blocks(blocks(file.url, file.compression)):
            for line in block.lines():
                try:
                    value = json.loads(line.data)
                except (ValueError, RecursionError):
                    continue
                if not isinstance(value, dict):
                    continue
                found = False
                for name, inner in value.items():
                    found |= _visit(name, inner, Place(line.nth, line.offset), kinds)
                if found and until is not None and until(kinds):
                    return kinds
    except InputError:
        pass  # the readers tell it
    return kinds


def conflicts(kinds: Kinds) -> list[tuple[str, str, str, Place]]:
    """Columns whose kinds do not unify: column, its first kind, the first other one, where that stands."""
    found = []
    for column, places in kinds.items():
        (first, _), *others = places.items()
        for kind, place in others:
            if not {first, kind} <= _NUMBERS:
                found.append((column, first, kind, place))
                break
    return sorted(found, key=lambda entry: entry[3].offset)


def _visit(path: str, value: Any, place: Place, kinds: Kinds) -> bool:
    """Notes a value's kind; whether it was new."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return False
    places = kinds.setdefault(path, {})
    kind = _NAMES[type(value)]
    is_new = kind not in places
    if is_new:
        places[kind] = place
    inner = ((f"{path}.{n}", v) for n, v in value.items()) if isinstance(value, dict) else ()
    if isinstance(value, list):
        inner = ((f"{path}[]", v) for v in value)
    for name, each in inner:
        is_new |= _visit(name, each, place, kinds)
    return is_new
