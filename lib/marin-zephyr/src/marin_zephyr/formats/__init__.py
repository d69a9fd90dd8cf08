"""Formats: one file a format, each a reader that yields frames and keeps account of every record it refuses.

- `files`        which files an input names, in which order, cut into shards of work
- `streams`      decompression that notices a file which ends too early
- `lines`        blocks of whole lines with their line numbers and byte offsets
- `jsonl`, `text`, `csv`, `parquet`   the readers
- `rejects`      what becomes of a record that cannot be read
- `writers`      the sinks: parquet and JSON lines

A reader is a function ``read(file, options, desk) -> Iterator[polars.DataFrame]``; `reader` finds it by format name.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from marin_zephyr.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

_COMPRESSIONS = {".gz": "gz", ".bgz": "gz", ".zst": "zst", ".zstd": "zst", ".xz": "xz", ".bz2": "bz2"}
_FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
}
_READERS = {"jsonl": "jsonl", "json": "jsonl", "parquet": "parquet", "csv": "csv", "text": "text"}


def infer(name: str, *, format: str | None = None) -> tuple[str, str | None]:
    """Format and compression from a file's name.

    Args:
        name: the file's name or path.
        format: the format, if the caller has said it.

    Raises:
        InputError: the name tells no known format.
    """
    base = name.rsplit("/", 1)[-1].lower()
    compression = next((c for suffix, c in _COMPRESSIONS.items() if base.endswith(suffix)), None)
    if compression:
        base = base.rsplit(".", 1)[0]
    if format is not None:
        return format, compression
    found = next((f for suffix, f in _FORMATS.items() if base.endswith(suffix)), None)
    if found is None:
        known = ", ".join(sorted(_FORMATS))
        raise InputError(f'{name}: no known format in the name ({known}); pass format=, such as format="text"')
    return found, compression


def reader(format: str) -> Callable[..., Any]:
    """The ``read`` function of a format; its module (and Arrow with it) loads now."""
    return import_module(f"marin_zephyr.formats.{_READERS[format]}").read
