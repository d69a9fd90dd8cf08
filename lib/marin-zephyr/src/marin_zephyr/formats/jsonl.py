"""JSON lines (and ``.json``: lines, one array of objects, or one object spread over lines).

A block of lines is parsed at full speed by Arrow's JSON reader, which is strict where others guess: it refuses a number
among strings, a key given twice, a lone surrogate. (Polars's reader turns ``1`` beside ``"x"`` into ``"1"`` and a lone
surrogate into NUL.) What it would guess is taken from it: strings that look like dates are declared strings from the
lines themselves, and a block where it guessed all the same, where a large integer would be rounded into a float, or
which it refuses, is read again line by line. Dirt costs only where it is.

Whether a line is a record does not depend on the columns that are asked for; whether columns agree in type matters only
for those that are.

See: RFC 8259 (JSON), https://jsonlines.org.
"""

from __future__ import annotations

import contextlib
import io
import json
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
from marin_zephyr.formats.provenance import finish, project
from marin_zephyr.formats.rejects import Desk
from marin_zephyr.formats.streams import blocks
from marin_zephyr.frames import BATCH_ROWS, frame_from_rows, to_frame, unify
from marin_zephyr.nodes import ReadOptions

_SAMPLE_LINES = 20
_EXACT_FLOAT = 2.0**53


class _RefusedLineError(ValueError):
    """The line is JSON by Python's lights, and still nothing we can keep."""


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
            yield finish(frame[cut], file, options, rows=rows[cut], offsets=offsets[cut])


type _Parsed = tuple[pl.DataFrame, np.ndarray, np.ndarray]


def _parse_fast(block: Block, known: pa.Schema | None, options: ReadOptions) -> _Parsed | None:
    """The block as a whole, or None if anything about it is doubtful."""
    if known is None or not _is_utf8(block.data):
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
            rows.append(_taken(_parse_line(line.data), options))
        except (ValueError, RecursionError) as e:
            desk.record(file, line=line.number, offset=line.offset, reason=_reason(e, line), raw=line.data)
            continue
        numbers.append(line.number)
        offsets.append(line.offset)
    if not rows:
        return None
    frame = _frame(rows, f"{file.url}, lines {numbers[0]:,} to {numbers[-1]:,}")
    return frame, np.array(numbers, dtype=np.int64), np.array(offsets, dtype=np.int64)


def _parse_line(data: bytes) -> dict[str, Any]:
    value = json.loads(data.decode("utf-8"), object_pairs_hook=_object, parse_int=_int64)
    if not isinstance(value, dict):
        raise _RefusedLineError(f"expected an object, found {type(value).__name__}")
    if b"\\ud" in data.lower():
        _check_surrogates(value)
    return value


def _taken(row: dict[str, Any], options: ReadOptions) -> dict[str, Any]:
    """Of an object what was asked for, if it is as was asked for."""
    for name in options.string_columns:
        if not isinstance(row.get(name), str | None):
            raise _RefusedLineError(f"{name!r} is {type(row[name]).__name__}, not a string")
    return row if options.columns is None else {name: row.get(name) for name in options.columns}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        raise _RefusedLineError(f"key {next(n for n in names if names.count(n) > 1)!r} stands twice in one object")
    return value


def _int64(digits: str) -> int:
    value = int(digits)
    if not -(2**63) <= value < 2**63:
        raise _RefusedLineError(f"integer {digits[:40]} is beyond 64 bits")
    return value


def _check_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as e:
        raise _RefusedLineError("lone surrogate, which is no text in UTF-8") from e


def _reason(error: Exception, line: Line) -> str:
    if isinstance(error, UnicodeDecodeError):
        byte = line.data[error.start]
        return f"not UTF-8: byte 0x{byte:02x} at offset {line.offset + error.start:,}"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return f"not JSON: {error}" if isinstance(error, json.JSONDecodeError) else str(error)


def _declared(block: Block, options: ReadOptions) -> pa.Schema | None:
    """Types of the first lines' columns, found by Python's parser, so that Arrow guesses none of them."""
    rows: list[dict[str, Any]] = []
    for line in block.lines():
        try:
            rows.append(_parse_line(line.data))
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
    """Line number and offset of each line that is not blank."""
    data = np.frombuffer(block.data, dtype=np.uint8)
    starts = np.concatenate(([0], np.flatnonzero(data == 10) + 1))
    if starts[-1] == len(data):
        starts = starts[:-1]
    numbers = block.first_line + np.arange(len(starts))
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
        json.loads(head.split(b"\n", 1)[0])
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
        desk.record(file, line=None, offset=0, reason=str(e), raw=b"".join(pieces))
        return
    data = b"".join(pieces).removeprefix(b"\xef\xbb\xbf")
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_object, parse_int=_int64)
        objects = value if isinstance(value, list) else [value]
        if not all(isinstance(row, dict) for row in objects):
            raise _RefusedLineError("expected an array of objects")
        if b"\\ud" in data.lower():
            _check_surrogates(value)
    except (ValueError, RecursionError) as e:
        desk.record(file, line=1, offset=0, reason=_reason(e, Line(data, 1, 0)), raw=data)
        return
    rows: list[dict[str, Any]] = []
    numbers: list[int] = []
    for number, row in enumerate(objects, 1):
        try:
            rows.append(_taken(row, options))
            numbers.append(number)
        except _RefusedLineError as e:
            raw = json.dumps(row, ensure_ascii=False).encode()
            desk.record(file, line=None, offset=None, reason=f"object {number:,}: {e}", raw=raw)
    frame = _frame(rows, file.url)
    for start in range(0, frame.height, BATCH_ROWS):
        cut = slice(start, start + BATCH_ROWS)
        yield finish(frame[cut], file, options, rows=numbers[cut], offsets=None)


def _frame(rows: list[dict[str, Any]], where: str) -> pl.DataFrame:
    try:
        return frame_from_rows(rows)
    except SchemaError as e:
        raise SchemaError(f"{where}: {e}") from e
