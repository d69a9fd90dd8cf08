"""JSON lines (and ``.json``: lines, one array of objects, or one object spread over lines).

A block of lines is parsed at full speed by Arrow's JSON reader, which is strict where others guess: it refuses a number
among strings, a key given twice, a lone surrogate. (Polars's reader turns ``1`` beside ``"x"`` into ``"1"`` and a lone
surrogate into NUL.) What it would guess is taken from it: strings that look like dates are declared strings from the
lines themselves, and a block where it guessed all the same, where a large integer would be rounded into a float, or
which it refuses, is read again line by line. Dirt costs only where it is.

Parsers recurse, and Arrow's falls with the process where the nesting is too deep. So a line with very many brackets is
measured by a linear scan before any parser sees it. What parsers survive is more than Arrow and parquet can keep: a
parquet file of deeper columns is written, and cannot be read again.

Whether a line is JSON does not depend on the columns that are asked for; whether a value can be kept (an integer of
more than 64 bits cannot, nor can deep nesting), and whether columns agree in type, matters only for those that are.

See: RFC 8259 (JSON), https://jsonlines.org.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from marin_zephyr.errors import InputError, SchemaError
from marin_zephyr.formats.files import InputFile
from marin_zephyr.formats.lines import Block, Line, file_blocks
from marin_zephyr.formats.provenance import finish, numbered, project
from marin_zephyr.formats.rejects import Desk
from marin_zephyr.formats.streams import blocks
from marin_zephyr.frames import BATCH_ROWS, frame_from_rows, to_frame, unify
from marin_zephyr.nodes import ReadOptions

_SAMPLE_LINES = 20
_BOM = b"\xef\xbb\xbf"
_EXACT_FLOAT = 2.0**53
_MAX_DEPTH = 256  # of a line
_MAX_KEPT_DEPTH = 48  # of a value; Arrow passes 64 levels on, parquet 100 with two for a list
_NEITHER_QUOTE_NOR_BRACKET = bytes(set(range(256)) - set(b'"[]{}'))
_LONG_INTEGER = re.compile(rb"[0-9]{19}")


class _RefusedLineError(ValueError):
    """The line is JSON by Python's lights, and still nothing we can keep."""


class _BeyondInt64:
    """Stands for an integer of more than 64 bits, of which these are the first digits."""

    def __init__(self, digits: str) -> None:
        self.digits = digits[:40]


def read(file: InputFile, options: ReadOptions, desk: Desk) -> Iterator[pl.DataFrame]:
    """Frames of a file's objects. Blank lines are not records."""
    known: pa.Schema | None = None
    first = True
    for block in file_blocks(file, desk):
        if first and file.format == "json" and _is_one_document(block):
            yield from _read_document(file, options, desk)
            return
        first = False
        known = _declared(block, options) if known is None else known
        parsed = _parse_fast(block, known, options) or _parse_lines(block, file, options, desk)
        if parsed is None:
            continue
        frame, rows, offsets = parsed
        known = _widened(known, frame, file)
        for start in range(0, frame.height, BATCH_ROWS):
            cut = slice(start, start + BATCH_ROWS)
            piece = frame.slice(start, BATCH_ROWS)  # an index would forget the height of a frame without columns
            yield finish(piece, file, options, rows=numbered(rows[cut], block, options), offsets=offsets[cut])


type _Parsed = tuple[pl.DataFrame, np.ndarray, np.ndarray]


def _parse_fast(block: Block, known: pa.Schema | None, options: ReadOptions) -> _Parsed | None:
    """The block as a whole, or None if anything about it is doubtful."""
    if known is None or not _is_utf8(block.data) or _may_be_deep(block.data):
        return None
    if block.data.startswith(_BOM):  # Arrow would pass over it; the file's own is not in a block
        return None
    try:
        table = pj.read_json(
            io.BytesIO(block.data),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(block.data) + 1),
            parse_options=pj.ParseOptions(explicit_schema=known, newlines_in_values=False),
        )
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    numbers, offsets = _places(block)
    if table.num_rows != len(numbers) or any(_is_guess(table.column(i)) for i in range(table.num_columns)):
        return None
    frame = to_frame(table)
    return frame if options.columns is None else project(frame, options.columns), numbers, offsets


def _parse_lines(block: Block, file: InputFile, options: ReadOptions, desk: Desk) -> _Parsed | None:
    """Line by line; the lines that are no records go to the desk. None if no line is left."""
    rows: list[dict[str, Any]] = []
    numbers: list[int] = []
    offsets: list[int] = []
    for line in block.lines():
        if not line.data.strip():
            continue
        try:
            rows.append(_taken(_parse_line(line.data), options, doubtful=_is_doubtful(line.data)))
        except (ValueError, RecursionError) as e:
            desk.record(file, line=line.number, offset=line.offset, reason=_reason(e, line), raw=line.data)
            continue
        numbers.append(line.nth)
        offsets.append(line.offset)
    if not rows:
        return None
    try:
        frame = frame_from_rows(rows)
    except SchemaError as e:
        before = block.before()
        place = "" if before is None else f", lines {before + numbers[0]:,} to {before + numbers[-1]:,}"
        raise SchemaError(f"{file.url}{place}: {e}") from e
    return frame, np.array(numbers, dtype=np.int64), np.array(offsets, dtype=np.int64)


def _may_be_deep(data: bytes) -> bool:
    """Whether a line is nested deeper than can be kept. Only lines of many opening brackets are looked at closely."""
    view = np.frombuffer(data, dtype=np.uint8)
    ends = np.append(np.flatnonzero(view == ord("\n")), len(view))
    counts = np.diff(np.searchsorted(np.flatnonzero((view | 0x20) == ord("{")), ends), prepend=0)
    for i in np.flatnonzero(counts > _MAX_KEPT_DEPTH).tolist():
        if _depth(data[ends[i - 1] if i else 0 : ends[i]]) > _MAX_KEPT_DEPTH:
            return True
    return False


def _depth(data: bytes) -> int:
    """How deep brackets that stand in no string are nested; 0 if there are too few to matter."""
    if data.count(b"[") + data.count(b"{") <= _MAX_KEPT_DEPTH:
        return 0
    bare = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NEITHER_QUOTE_NOR_BRACKET)
    brackets = np.frombuffer(b"".join(bare.split(b'"')[::2]), dtype=np.uint8)
    steps = np.where((brackets | 0x20) == ord("{"), 1, -1)  # [ and ] differ from { and } in this one bit
    return max(0, int(steps.cumsum().max(initial=0)))


def _check_depth(data: bytes) -> None:
    depth = _depth(data)
    if depth > _MAX_DEPTH:
        raise _RefusedLineError(f"nested more than {_MAX_DEPTH} deep: {depth:,} levels")


def _parse_line(data: bytes) -> dict[str, Any]:
    _check_depth(data)
    value = json.loads(data.decode("utf-8"), object_pairs_hook=_object, parse_int=_int64)
    if not isinstance(value, dict):
        raise _RefusedLineError(f"expected an object, found {type(value).__name__}")
    if b"\\ud" in data.lower():
        _check_surrogates(value)
    return value


def _taken(row: dict[str, Any], options: ReadOptions, *, doubtful: bool) -> dict[str, Any]:
    """Of an object what was asked for, if it is as was asked for and can be kept."""
    for name in options.string_columns:
        if not isinstance(row.get(name), str | None):
            raise _RefusedLineError(f"{name!r} is {type(row[name]).__name__}, not a string")
    taken = row if options.columns is None else {name: row.get(name) for name in options.columns}
    if doubtful:
        _check_values(taken)
    return taken


def _is_doubtful(data: bytes) -> bool:
    """Whether what is parsed from these bytes may hold a value that cannot be kept."""
    return bool(_LONG_INTEGER.search(data)) or _depth(data) > _MAX_KEPT_DEPTH


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        raise _RefusedLineError(f"key {next(n for n in names if names.count(n) > 1)!r} stands twice in one object")
    return value


def _int64(digits: str) -> int | _BeyondInt64:
    if len(digits) > 20:  # Python refuses to convert thousands
        return _BeyondInt64(digits)
    value = int(digits)
    return value if -(2**63) <= value < 2**63 else _BeyondInt64(digits)


def _check_values(value: Any, depth: int = 0) -> None:
    if isinstance(value, _BeyondInt64):
        raise _RefusedLineError(f"an integer beyond 64 bits: {value.digits}")
    if isinstance(value, dict | list):
        if depth == _MAX_KEPT_DEPTH:
            raise _RefusedLineError(f"a value nested more than {depth} deep")
        for inner in value.values() if isinstance(value, dict) else value:
            _check_values(inner, depth + 1)


def _check_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as e:
        raise _RefusedLineError("lone surrogate, which is no text in UTF-8") from e


def _reason(error: Exception, line: Line) -> str:
    if isinstance(error, UnicodeDecodeError):
        byte = line.data[error.start]
        return f"not UTF-8: byte 0x{byte:02x} at offset {line.offset + error.start:,}"
    if isinstance(error, RecursionError):
        return "nested too deep for the parser"
    return f"not JSON: {error}" if isinstance(error, json.JSONDecodeError) else str(error)


def _declared(block: Block, options: ReadOptions) -> pa.Schema | None:
    """Types of the first lines' columns, found by Python's parser, so that Arrow guesses none of them."""
    rows: list[dict[str, Any]] = []
    for line in block.lines():
        try:
            row = _parse_line(line.data)
            _check_values(row)
            rows.append(row)
        except (ValueError, RecursionError):
            continue
        if len(rows) == _SAMPLE_LINES:
            break
    if not rows:
        return None
    fields = []
    for name in dict.fromkeys(name for row in rows for name in row if name not in options.string_columns):
        # What does not unify is left for Arrow to refuse.
        with contextlib.suppress(SchemaError):
            fields += frame_from_rows([{name: row.get(name)} for row in rows]).to_arrow().schema
    return _without_nulls(pa.schema([*((name, pa.string()) for name in options.string_columns), *fields]))


def _widened(known: pa.Schema | None, frame: pl.DataFrame, file: InputFile) -> pa.Schema:
    found = _without_nulls(frame.to_arrow().schema)
    return found if known is None else unify([known, found], what=file.url)


def _without_nulls(schema: pa.Schema) -> pa.Schema:
    """A column of nulls is not declared: its type is to come. Arrow's reader knows plain strings and lists only."""
    return pa.schema([pa.field(f.name, _plain(f.type)) for f in schema if not _holds_null(f.type)])


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _plain(f.type)) for f in kind])
    return kind


def _holds_null(kind: pa.DataType) -> bool:
    if pa.types.is_null(kind):
        return True
    return any(_holds_null(kind.field(i).type) for i in range(kind.num_fields))


def _is_guess(column: pa.ChunkedArray | pa.StructArray | pa.Array) -> bool:
    """Whether Arrow may have changed a value: a string taken for a time, an integer rounded into a float."""
    kind = column.type
    if pa.types.is_temporal(kind):
        return True
    if pa.types.is_floating(kind):
        largest = pc.call_function("max", [pc.call_function("abs", [column])]).as_py()
        return largest is not None and largest >= _EXACT_FLOAT
    if pa.types.is_list(kind):
        return _is_guess(pc.call_function("list_flatten", [column]))
    if pa.types.is_struct(kind):
        return any(_is_guess(_field(column, i)) for i in range(kind.num_fields))
    return False


def _field(column: pa.ChunkedArray | pa.Array, i: int) -> pa.ChunkedArray:
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return pa.chunked_array([chunk.field(i) for chunk in chunks], type=column.type.field(i).type)


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _places(block: Block) -> tuple[np.ndarray, np.ndarray]:
    """Number, within the span, and offset of each line that is not blank."""
    data = np.frombuffer(block.data, dtype=np.uint8)
    starts = np.concatenate(([0], np.flatnonzero(data == 10) + 1))
    if starts[-1] == len(data):
        starts = starts[:-1]
    numbers = block.nth + np.arange(len(starts))
    lengths = np.diff(np.append(starts, len(data)))
    if (lengths <= 2).any():
        blank = [n <= 2 and not block.data[s : s + n].strip() for s, n in zip(starts, lengths, strict=True)]
        keep = ~np.array(blank)
        starts, numbers = starts[keep], numbers[keep]
    return numbers, block.offset + starts


def _is_one_document(block: Block) -> bool:
    """A top-level array, or an object that is spread over lines."""
    head = block.data.lstrip()
    if not head.startswith(b"{"):
        return head.startswith(b"[")
    try:
        _parse_line(head.split(b"\n", 1)[0])
    except _RefusedLineError:
        return False
    except (ValueError, RecursionError):
        return True
    return False


def _read_document(file: InputFile, options: ReadOptions, desk: Desk) -> Iterator[pl.DataFrame]:
    pieces: list[bytes] = []
    try:
        pieces.extend(blocks(file.url, file.compression))
    except InputError as e:
        if desk.policy == "raise":
            raise
        reason = str(e).removeprefix(f"{file.url}: ")
        desk.record(file, line=None, offset=0, reason=reason, raw=b"".join(pieces))
        return
    data = b"".join(pieces).removeprefix(b"\xef\xbb\xbf")
    try:
        _check_depth(data)
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_object, parse_int=_int64)
        objects = value if isinstance(value, list) else [value]
        if not all(isinstance(row, dict) for row in objects):
            raise _RefusedLineError("expected an array of objects")
        if b"\\ud" in data.lower():
            _check_surrogates(value)
    except (ValueError, RecursionError) as e:
        desk.record(file, line=1, offset=0, reason=_reason(e, Line(data, 1, 0)), raw=data)
        return
    doubtful = _is_doubtful(data)
    rows: list[dict[str, Any]] = []
    numbers: list[int] = []
    for number, row in enumerate(objects, 1):
        try:
            rows.append(_taken(row, options, doubtful=doubtful))
            numbers.append(number)
        except _RefusedLineError as e:
            raw = json.dumps(row, ensure_ascii=False, default=lambda value: value.digits).encode()
            desk.record(file, line=None, offset=None, reason=f"object {number:,}: {e}", raw=raw)
    frame = _frame(rows, file.url)
    for start in range(0, frame.height, BATCH_ROWS):
        cut = slice(start, start + BATCH_ROWS)
        yield finish(frame.slice(start, BATCH_ROWS), file, options, rows=numbers[cut], offsets=None)


def _frame(rows: list[dict[str, Any]], where: str) -> pl.DataFrame:
    try:
        return frame_from_rows(rows)
    except SchemaError as e:
        raise SchemaError(f"{where}: {e}") from e
