"""One JSON value, parsed by Python and checked: the strict way, which says what is wrong with a line.

What is JSON is one question, what can be kept another. A line that is not UTF-8 or not JSON, that is nested more than
256 deep, or that holds a lone surrogate is refused whatever is asked of it. An integer of more than 64 bits, a value
nested more than 48 deep, and a value whose key stands twice in its object or holds a NUL cannot be kept: a line is
refused for one of those only where it is part of what was asked for.

Parsers recurse, so the nesting of a text with very many brackets is measured by a linear scan before any sees it. What
parsers survive is more than Arrow and parquet can keep: a parquet file of deeper columns is written, and cannot be read
again.

See: RFC 8259 (JSON).
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from marin_zephyr.formats.lines import Line
from marin_zephyr.formats.provenance import needed
from marin_zephyr.nodes import ReadOptions

MAX_DEPTH = 256  # of a line
MAX_KEPT_DEPTH = 48  # of a row; Arrow passes 64 levels on, parquet 100 with two for a list
_NEITHER_QUOTE_NOR_BRACKET = bytes(set(range(256)) - set(b'"[]{}'))


class RefusedLineError(ValueError):
    """The line is JSON by Python's lights, and still nothing we can keep."""


class _Unkeepable:
    """Stands where a value cannot be kept."""

    def __init__(self, reason: str, values: list[Any]) -> None:
        self.reason = reason
        self.values = values


class _Parser:
    """Python's parser, and whether it met anything that cannot be kept."""

    def __init__(self) -> None:
        self.doubtful = False

    def object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            several: dict[str, list[Any]] = {}
            for name, each in pairs:
                several.setdefault(name, []).append(each)
            for name, values in several.items():
                if len(values) > 1:
                    value[name] = self._unkeepable(f"key {name!r} stands twice in one object", values)
        for name in value:
            if "\0" in name:
                value[name] = self._unkeepable(f"key {name!r} holds a NUL, which no column's name can", [value[name]])
        return value

    def integer(self, digits: str) -> int | _Unkeepable:
        value = int(digits) if len(digits) <= 20 else 2**63  # Python refuses to convert thousands
        if -(2**63) <= value < 2**63:
            return value
        return self._unkeepable(f"an integer beyond 64 bits: {digits[:40]}", [])

    def _unkeepable(self, reason: str, values: list[Any]) -> _Unkeepable:
        self.doubtful = True
        return _Unkeepable(reason, values)


def parse(data: bytes) -> tuple[Any, bool]:
    """A JSON value, and whether it may hold anything that cannot be kept.

    NaN and Infinity, which JSON lacks and Python writes, are taken.

    Raises:
        ValueError: it is no JSON, or no UTF-8.
        RefusedLineError: it is nested too deep, or holds a lone surrogate.
        RecursionError: Python's parser gave up.
    """
    depth = measure_depth(data)
    if depth > MAX_DEPTH:
        raise RefusedLineError(f"nested more than {MAX_DEPTH} deep: {depth:,} levels")
    parser = _Parser()
    value = json.loads(
        data.decode("utf-8"),
        object_pairs_hook=parser.object,
        parse_int=parser.integer,
    )
    if b"\\ud" in data.lower():
        _check_surrogates(value)
    return value, parser.doubtful or depth > MAX_KEPT_DEPTH


def parse_object(data: bytes) -> tuple[dict[str, Any], bool]:
    """As `parse`, for a value that must be an object."""
    value, doubtful = parse(data)
    if not isinstance(value, dict):
        raise RefusedLineError(f"expected an object, found {type(value).__name__}")
    return value, doubtful


def taken(row: dict[str, Any], options: ReadOptions, *, doubtful: bool) -> dict[str, Any]:
    """Of an object what was asked for, if it is as was asked for and can be kept.

    Raises:
        RefusedLineError: it is not.
    """
    names = needed(options)
    asked = row if names is None else {name: row[name] for name in names if name in row}
    if doubtful:
        check_values({**asked, **{name: row.get(name) for name in options.string_columns}})
    for name in options.string_columns:
        if not isinstance(row.get(name), str | None):
            raise RefusedLineError(f"{name!r} is {type(row[name]).__name__}, not a string")
    return asked


def check_values(value: Any, depth: int = 0) -> None:
    """Refuses what cannot be kept, anywhere in a value.

    Raises:
        RefusedLineError: names the first such thing.
    """
    if isinstance(value, _Unkeepable):
        raise RefusedLineError(value.reason)
    if isinstance(value, dict | list):
        if depth == MAX_KEPT_DEPTH:
            raise RefusedLineError(f"a value nested more than {depth} deep")
        for inner in value.values() if isinstance(value, dict) else value:
            check_values(inner, depth + 1)


def refusal(error: Exception, line: Line) -> str:
    """Why a line was refused."""
    if isinstance(error, UnicodeDecodeError):
        byte = line.data[error.start]
        return f"not UTF-8: byte 0x{byte:02x} at offset {line.offset + error.start:,}"
    if isinstance(error, RecursionError):
        return "nested too deep for the parser"
    return f"not JSON: {error}" if isinstance(error, json.JSONDecodeError) else str(error)


def measure_depth(data: bytes) -> int:
    """How deep brackets that stand in no string are nested; 0 if there are too few to matter."""
    if data.count(b"[") + data.count(b"{") <= MAX_KEPT_DEPTH:
        return 0
    bare = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NEITHER_QUOTE_NOR_BRACKET)
    brackets = np.frombuffer(b"".join(bare.split(b'"')[::2]), dtype=np.uint8)
    steps = np.where((brackets | 0x20) == ord("{"), 1, -1)  # [ and ] differ from { and } in this one bit
    return max(0, int(steps.cumsum().max(initial=0)))


def _check_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False, default=lambda unkeepable: unkeepable.values).encode()
    except UnicodeEncodeError as e:
        raise RefusedLineError("lone surrogate, which is no text in UTF-8") from e


def encode(row: dict[str, Any]) -> bytes:
    """A row that was parsed, as JSON again, as far as it can be kept."""
    return json.dumps(row, ensure_ascii=False, default=lambda unkeepable: unkeepable.reason).encode()
