"""A look into an output file: its first rows, its picture, its text, or its first bytes.

A preview reads at most a megabyte, whatever the file's size (of a parquet file the footer and one batch, through
ranges). It goes by the file's name and checks by its bytes; what does not parse is said, with the text below it. A
picture is shown by an ``img`` element and never as markup, so that an SVG's scripts stay asleep.
"""

import csv
import io
import itertools
import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from marin_core.quantities import format_bytes, format_count
from marin_core.web.files import PrefixFiles, UnreadableFileError
from marin_core.web.logs import clean_line
from marin_core.web.markup import Markup, element, fragment, note
from marin_core.web.values import render_value

MAX_BYTES = 1_000_000
_MAX_ROWS = 50
_MAX_COLUMNS = 30
_MAX_CHARACTERS = 200_000
_MAX_CELL = 300
_HEX_BYTES = 512
_MAX_GROUP_BYTES = 64_000_000
"""The largest first row group of a parquet file, uncompressed, that is read for a few rows."""

IMAGES = {
    ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif", ".webp": "image/webp",
    ".svg": "image/svg+xml",
}  # fmt: skip
"""Suffixes of pictures -> their media types: the only ones that the server sends as anything but bytes to save."""


def render_preview(files: PrefixFiles, path: str, *, size: int, image: str | None) -> Markup:
    """A file, shown.

    Args:
        files: the prefix.
        path: the file, under the prefix.
        size: of the file in bytes.
        image: where the picture can be loaded from, if the file is one.

    Raises:
        UnreadableFileError: it cannot be read, or lies outside the prefix.
    """
    suffixes = [suffix.lower() for suffix in PurePosixPath(path).suffixes]
    suffix = suffixes[-1] if suffixes else ""
    if suffix in IMAGES and image is not None:
        return element("figure", element("img", src=image, alt=PurePosixPath(path).name), class_="output")
    if suffix == ".parquet":
        return _parquet(files, path, size=size)
    data = files.range(path, start=0, stop=MAX_BYTES)
    is_whole = len(data) >= size
    if suffix == ".gz":
        data, is_whole = _gunzipped(data)
        suffix = suffixes[-2] if len(suffixes) > 1 else ""
    if not data:
        return note("The file is empty." if size == 0 else "Nothing of it could be decompressed.")
    if b"\0" in data[:8192] or (suffix not in _KINDS and not _is_text(data)):
        return _hex(data, size=size)
    text = data.decode("utf-8", errors="replace")
    try:
        return _KINDS.get(suffix, _plain)(text, is_whole)
    except (ValueError, RecursionError, csv.Error) as e:
        return fragment(note(f"Not readable as {suffix[1:].upper()}: {e}. Here it is as text."), _plain(text, is_whole))


def _plain(text: str, is_whole: bool) -> Markup:
    shown = text[:_MAX_CHARACTERS]
    lines = "\n".join(clean_line(line) for line in shown.replace("\r\n", "\n").split("\n"))
    more = note("This is its beginning.") if not is_whole or len(shown) < len(text) else None
    return fragment(element("pre", lines, tabindex=0, class_="whole"), more)


def _json(text: str, is_whole: bool) -> Markup:
    if not is_whole:
        return fragment(note(f"Only the first {format_bytes(MAX_BYTES)} of it, as text."), _plain(text, is_whole))
    return _plain(json.dumps(json.loads(text), indent=2, ensure_ascii=False), is_whole)


def _jsonl(text: str, is_whole: bool) -> Markup:
    """The first lines as a table where they are objects; a line that does not parse is said with its number."""
    lines = text.split("\n")
    if not is_whole:
        lines.pop()  # it ends where the reading ended
    rows: list[Any] = []
    broken: list[int] = []
    for number, line in enumerate(lines, start=1):
        if len(rows) == _MAX_ROWS:
            break
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except (ValueError, RecursionError):
            broken.append(number)
    if not rows:
        raise ValueError("no line of its beginning is JSON")
    total = sum(1 for line in lines if line.strip())
    said = f"The first {format_count(len(rows), 'row')}{f' of {total:,}' if is_whole else ''}."
    skipped = f" Not JSON: line {', '.join(map(str, broken[:5]))}." if broken else ""
    if all(isinstance(row, Mapping) for row in rows):
        return fragment(note(said, skipped), _table(rows))
    return fragment(note(said, skipped), [render_value(row) for row in rows])


def _delimited(delimiter: str) -> Callable[[str, bool], Markup]:
    def render(text: str, is_whole: bool) -> Markup:
        lines = io.StringIO(text if is_whole else text.rpartition("\n")[0] or text, newline="")
        rows = list(itertools.islice(csv.reader(lines, delimiter=delimiter, strict=True), _MAX_ROWS + 1))
        if not rows or not any(rows):
            raise ValueError("it has no rows")
        head = [name or f"column {i}" for i, name in enumerate(rows[0], start=1)]
        body = [
            {head[i] if i < len(head) else f"column {i + 1}": cell for i, cell in enumerate(row)} for row in rows[1:]
        ]
        return fragment(note(f"The first {format_count(len(body), 'row')}."), _table(body, columns=head))

    return render


def _table(rows: list[Any], *, columns: list[str] | None = None) -> Markup:
    names = list(dict.fromkeys(itertools.chain(columns or (), (str(key) for row in rows for key in row))))
    shown = names[:_MAX_COLUMNS]
    head = element("tr", [element("th", name, scope="col") for name in shown])
    body = [element("tr", [element("td", _cell(row, name)) for name in shown]) for row in rows]
    table = element("table", element("thead", head), element("tbody", body), class_="data rows")
    more = len(names) - len(shown)
    left_out = note(f"Left out: {format_count(more, 'more column')}.") if more else None
    return fragment(element("div", table, class_="scroll", tabindex=0), left_out)


def _cell(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_CELL else f"{text[:_MAX_CELL]}…"


def _gunzipped(data: bytes) -> tuple[bytes, bool]:
    """The beginning of what was compressed, and whether it is all of it; a damaged stream gives what precedes it."""
    unpack = zlib.decompressobj(wbits=31)
    try:
        found = unpack.decompress(data, MAX_BYTES)
    except zlib.error:
        return b"", False
    return found, unpack.eof and not unpack.unused_data


def _is_text(data: bytes) -> bool:
    """UTF-8, but for a character that the end of reading may have cut."""
    try:
        data[:8192].decode("utf-8")
    except UnicodeDecodeError as e:
        return e.start >= min(len(data), 8192) - 3
    return True


def _hex(data: bytes, *, size: int) -> Markup:
    lines = []
    for at in range(0, min(len(data), _HEX_BYTES), 16):
        row = data[at : at + 16]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in row)
        lines.append(f"{at:08x}  {row.hex(' '):<47}  {letters}")
    shown = min(len(data), _HEX_BYTES)
    return fragment(
        note(f"Not text; its first {shown:,} of {size:,} bytes."), element("pre", "\n".join(lines), tabindex=0)
    )


def _parquet(files: PrefixFiles, path: str, *, size: int) -> Markup:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        return note(f"A parquet file of {format_bytes(size)}; its rows are shown where pyarrow is installed.")
    try:
        file: Any = parquet.ParquetFile(io.BufferedReader(_Ranges(files, path, size=size)))
        columns = [f"{field.name}: {field.type}" for field in file.schema_arrow]
        count = file.metadata.num_rows
        said = note(f"{format_count(count, 'row')} in {format_count(file.num_row_groups, 'row group')}.")
        names = note(", ".join(columns[:_MAX_COLUMNS]))
        if count == 0 or file.metadata.row_group(0).total_byte_size > _MAX_GROUP_BYTES:
            return fragment(said, names)
        wanted = file.schema_arrow.names[:_MAX_COLUMNS]
        batch = next(file.iter_batches(batch_size=_MAX_ROWS, row_groups=[0], columns=wanted))
        return fragment(said, names, _table(batch.to_pylist()[:_MAX_ROWS], columns=wanted))
    except UnreadableFileError:
        raise
    except Exception as e:  # pyarrow raises many kinds, and a damaged file must not cost the page
        return note(f"Not readable as parquet: {e}")


class _Ranges(io.RawIOBase):
    """A file of the prefix that is read where it is asked for."""

    def __init__(self, files: PrefixFiles, path: str, *, size: int) -> None:
        self._files, self._path, self._size, self._at = files, path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self._files.range(self._path, start=self._at, stop=self._at + len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


_KINDS: dict[str, Callable[[str, bool], Markup]] = {
    ".json": _json,
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".csv": _delimited(","),
    ".tsv": _delimited("\t"),
}
