"""Formats: one file a format, each a reader that yields frames and keeps account of every record it refuses.

- `files`        which files an input names, in which order, cut into shards of work
- `splits`       where one large file may be cut
- `archives`     zip archives as files of files
- `remote`       files behind URLs, and the clients that they need
- `streams`      decompression that notices a file which ends too early
- `lines`        blocks of whole lines with their line numbers and byte offsets
- `jsonl`, `text`, `csv`, `parquet`, `arrow`, `warc`   the readers
- `predicates`   rows left out by the reader, and row groups that need not be read for it
- `rejects`      what becomes of a record that cannot be read
- `writers`, `arrow`   the sinks: parquet, JSON lines, Arrow; `columnar` is what the first and the last share

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
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".warc": "warc",
    ".csv": "csv",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
}
# Format -> the module that reads it.
_READERS = {name: name for name in ("jsonl", "parquet", "arrow", "warc", "csv", "text")} | {"json": "jsonl"}


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
        known = ", ".join(sorted([*_FORMATS, ".zip"]))
        raise InputError(f'{name}: no known format in the name ({known}); pass format=, such as format="text"')
    return found, compression


def is_known(name: str) -> bool:
    """Whether a file's name tells its format."""
    try:
        infer(name)
    except InputError:
        return False
    return True


def reader(format: str) -> Callable[..., Any]:
    """The ``read`` function of a format; its module (and Arrow with it) loads now."""
    return import_module(f"marin_zephyr.formats.{_READERS[format]}").read
