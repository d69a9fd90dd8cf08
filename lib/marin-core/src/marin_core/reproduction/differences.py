"""Differences between two outputs: which files, from which byte, and in JSON which fields.

A manifest says that a file differs; this says where, as far as the files can be read. A file or value that only holds
the path of the prefix it was made under is told apart, because such an output is the same in all but its place.
"""

import contextlib
import itertools
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marin_core.records import FileEntry

_BLOCK = 1 << 20
_TEXT_BYTES = 1 << 22
"""Most bytes of a file that is looked into, rather than compared."""
_MOST_FIELDS = 20
_ATTEMPT = re.compile(rb"(?<=attempts/)\d+(?=/out)")


@dataclass(frozen=True, kw_only=True)
class FileDifference:
    """A file that differs between two outputs; ``None`` for the side that has no such file."""

    path: str
    old: FileEntry | None
    new: FileEntry | None
    first_byte: int | None = None
    """Offset of the first byte that differs, when both files could be read."""
    fields: tuple[str, ...] = ()
    """Of JSON and JSON lines the first fields that differ, as ``field: old -> new``."""
    holds_prefix: bool = False
    """Whether the files are the same but for the path of the prefix in them."""


@dataclass(frozen=True, kw_only=True)
class Output:
    """One of the two outputs."""

    files: tuple[FileEntry, ...]
    prefix: str
    directory: Path | None
    """Where the files lie; None if they cannot be read here."""


def file_differences(old: Output, new: Output) -> Iterator[FileDifference]:
    """The files that differ, in order of path."""
    before, after = ({f.path: f for f in side.files} for side in (old, new))
    for path in sorted({*before, *after}):
        a, b = before.get(path), after.get(path)
        if a == b:
            continue
        if a and b and old.directory is not None and new.directory is not None:
            yield _looked_into(a, b, old, new)
        else:
            yield FileDifference(path=path, old=a, new=b)


def _looked_into(a: FileEntry, b: FileEntry, old: Output, new: Output) -> FileDifference:
    was, is_ = ((side.directory or Path()) / a.path for side in (old, new))
    offset = first_difference(was, is_)
    if offset is None or max(a.size, b.size) > _TEXT_BYTES:
        return FileDifference(path=a.path, old=a, new=b, first_byte=offset)
    before, after = was.read_bytes(), is_.read_bytes()
    fields = itertools.islice(_json_differences(a.path, before, after), _MOST_FIELDS)
    held = unplaced(before, old.prefix) == unplaced(after, new.prefix)
    return FileDifference(path=a.path, old=a, new=b, first_byte=offset, fields=tuple(fields), holds_prefix=held)


def first_difference(a: Path, b: Path) -> int | None:
    """Offset of the first byte in which two files differ, the end of the shorter one included; None if none does, or
    if one cannot be read."""
    at = 0
    try:
        with a.open("rb") as f, b.open("rb") as g:
            while True:
                x, y = f.read(_BLOCK), g.read(_BLOCK)
                if x != y:
                    pairs = enumerate(zip(x, y, strict=False))
                    return at + next((i for i, (p, q) in pairs if p != q), min(len(x), len(y)))
                if not x:
                    return None
                at += len(x)
    except OSError:
        return None


def _json_differences(path: str, before: bytes, after: bytes) -> Iterator[str]:
    read = json.loads if path.endswith(".json") else _json_lines if path.endswith((".jsonl", ".ndjson")) else None
    if read is not None:
        with contextlib.suppress(ValueError, RecursionError):  # what is no JSON differs by its bytes alone
            yield from value_differences(read(before), read(after))


def _json_lines(text: bytes) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def value_differences(old: Any, new: Any, at: str = "") -> Iterator[str]:
    """The leaves in which two JSON values differ, as ``field: old -> new``."""
    if isinstance(old, dict) and isinstance(new, dict):
        for k in dict.fromkeys((*old, *new)):
            yield from value_differences(old.get(k, _ABSENT), new.get(k, _ABSENT), f"{at}.{k}" if at else k)
    elif isinstance(old, list) and isinstance(new, list):
        for i, (a, b) in enumerate(itertools.zip_longest(old, new, fillvalue=_ABSENT)):
            yield from value_differences(a, b, f"{at}[{i}]")
    elif repr(old) != repr(new):
        yield f"{at or 'value'}: {_shown(old)} -> {_shown(new)}"


class _Absent:
    def __repr__(self) -> str:
        return "absent"


_ABSENT = _Absent()


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def unplaced(text: bytes, prefix: str) -> bytes:
    """A text without what in it only says where outputs lie: the prefix, and the number of an attempt."""
    return _ATTEMPT.sub(b"", text.replace(os.fsencode(prefix), b""))


def same_but_for_prefix(old: Any, new: Any, *, prefixes: tuple[str, str]) -> bool:
    """Whether two JSON values differ only by the paths of their prefixes."""
    texts = (json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace") for value in (old, new))
    before, after = (unplaced(text, prefix) for text, prefix in zip(texts, prefixes, strict=True))
    return old != new and before == after
