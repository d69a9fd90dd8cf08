"""JSON lines (and ``.json``: lines, one array of objects, or one object spread over lines).

A block of lines is parsed at full speed by Arrow's JSON reader, which is strict where others guess: it refuses a number
among strings, a key given twice, a lone surrogate. (Polars's reader turns ``1`` beside ``"x"`` into ``"1"`` and a lone
surrogate into NUL.) What it would guess is taken from it: strings that look like dates are declared strings from the
lines themselves. What it would pass is looked for beforehand: bytes that are no UTF-8, a line of two objects or an
object of two lines, nesting that fells its recursive parser. A block in which anything is doubtful, where it guessed
all the same, where a large integer would be rounded into a float, or which it refuses, is read again in smaller parts,
and the smallest of those line by line (`objects`). So dirt costs only where it is.

Whether a line is JSON does not depend on the columns that are asked for; whether a value can be kept (an integer of
more than 64 bits cannot, nor can deep nesting, nor one of two values under one key), and whether columns agree in type,
matters only for those that are. Of the others Arrow converts none, once it knows the types of those that are. NaN and
Infinity are taken, as Python writes them; so, in what Arrow reads, is -NaN, and in what it passes over Inf.

A predicate is applied to what was read: the rows and the rejects are those of reading everything and filtering.

See: RFC 8259 (JSON), https://jsonlines.org.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from marin_zephyr.errors import SchemaError
from marin_zephyr.formats.documents import read_document
from marin_zephyr.formats.files import InputFile
from marin_zephyr.formats.lines import Block, file_blocks
from marin_zephyr.formats.objects import (
    MAX_DEPTH,
    MAX_KEPT_DEPTH,
    RefusedLineError,
    check_values,
    measure_depth,
    parse_object,
    refusal,
    taken,
)
from marin_zephyr.formats.provenance import finish, needed, numbered
from marin_zephyr.formats.rejects import Desk
from marin_zephyr.frames import BATCH_ROWS, concat, frame_from_rows, to_frame, unify
from marin_zephyr.nodes import RAW, ReadOptions

_SAMPLE_LINES = 20
_SAMPLE_BYTES = 1 << 16  # of a line
_EXACT_FLOAT = 2.0**53
_ARROW_LIMIT = 2**31 - 2  # bytes of a block; its sizes are 32 bits wide
_PARTS = 8  # of a block in which something is wrong
_SMALLEST_PART = 1 << 16
_WHITESPACE = b" \t\r"
_SCALARS = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
_CELL = 1 << 10  # bytes in which brackets are counted together; 8 counters of a byte each must hold them
_SCAN_BYTES = 1 << 18  # what is scanned at once, to stay in the processor's cache


@dataclass(frozen=True)
class _Parsed:
    """Rows of a block, and the index of the line that each comes from."""

    frame: pl.DataFrame
    lines: np.ndarray


def read(file: InputFile, options: ReadOptions, desk: Desk) -> Iterator[pl.DataFrame]:
    """Frames of a file's objects. Blank lines are not records."""
    known: pa.Schema | None = None
    first = True
    for block in file_blocks(file, desk):
        if first and file.format == "json" and _is_one_document(block):
            yield from read_document(file, options, desk)
            return
        first = False
        known = _declared(block, options) if known is None else known
        parsed = _parse(block, known, file, options, desk)
        if parsed is None:
            continue
        known = _widened(known, parsed.frame, file)
        yield from _finished(parsed, block, file, options, desk)


def _finished(
    parsed: _Parsed, block: Block, file: InputFile, options: ReadOptions, desk: Desk
) -> Iterator[pl.DataFrame]:
    """What was asked for of a block's rows, in batches."""
    frame, lines = parsed.frame, parsed.lines
    if options.raw:
        raw = block.raw()
        frame = frame.with_columns((raw if len(raw) == len(lines) else raw[lines]).alias(RAW))
    offsets = block.offset + block.bounds()[0][lines] if options.with_source else lines
    for start in range(0, frame.height, BATCH_ROWS):
        cut = slice(start, start + BATCH_ROWS)
        # Of a frame of one row Polars copies all that it touches, and that row may be a document of any length.
        batch = frame if frame.height <= BATCH_ROWS else frame.slice(start, BATCH_ROWS)
        rows = numbered(block.nth + lines[cut], block, options)
        yield finish(batch, file, options, rows=rows, offsets=offsets[cut], desk=desk)


def _parse(block: Block, known: pa.Schema | None, file: InputFile, options: ReadOptions, desk: Desk) -> _Parsed | None:
    """The rows of a block, as fast as it allows; what is no record goes to the desk. None if no row is left."""
    fast = _parse_fast(block, known, options)
    if fast is not None:
        return fast if len(fast.lines) else None
    if len(block.data) <= _SMALLEST_PART or block.num_lines == 1:
        return _parse_lines(block, file, options, desk)
    parts = [
        (first, parsed)
        for first, part in block.parts(max(_SMALLEST_PART, len(block.data) // _PARTS))
        if (parsed := _parse(part, known, file, options, desk)) is not None
    ]
    if not parts:
        return None
    where = _where(file, block, 0, block.num_lines - 1)
    frame = concat([parsed.frame for _, parsed in parts], what=where)
    return _Parsed(frame, np.concatenate([first + parsed.lines for first, parsed in parts]))


def _parse_fast(block: Block, known: pa.Schema, options: ReadOptions) -> _Parsed | None:
    """The block as a whole, or None if anything about it is doubtful."""
    if len(block.data) > _ARROW_LIMIT or not _is_utf8(block.data):
        return None
    lines = _lines_of_objects(block)
    if lines is None or _may_be_deep(block):
        return None
    names = needed(options)
    wanted = None if names is None else {*names, *options.string_columns}
    # Arrow passes over what is not declared, or guesses its type: so only what is declared can be all that is read.
    narrow = wanted is not None and wanted <= set(known.names)
    declared = pa.schema([field for field in known if field.name in wanted]) if narrow else known
    try:
        table = pj.read_json(
            pa.BufferReader(block.data),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(block.data) + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=declared,
                newlines_in_values=False,
                unexpected_field_behavior="ignore" if narrow else "infer",
            ),
        )
        table.validate()  # of lists of nothing but nulls Arrow forgets how long they are
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    if table.num_rows != len(lines):
        return None
    if names is not None:
        table = table.select([name for name in table.column_names if name in names])
    if any(_nesting(column.type) >= MAX_KEPT_DEPTH or _is_guess(column) for column in table.columns):
        return None
    if _names_hold_nul(table.schema):
        return None
    return _Parsed(to_frame(table), lines)


def _parse_lines(block: Block, file: InputFile, options: ReadOptions, desk: Desk) -> _Parsed | None:
    """Line by line; the lines that are no records go to the desk. None if no line is left."""
    rows: list[dict[str, Any]] = []
    indices: list[int] = []
    for i, line in enumerate(block.lines()):
        if not line.data.strip():
            continue
        try:
            row, doubtful = parse_object(line.data)
            rows.append(taken(row, options, doubtful=doubtful))
        except (ValueError, RecursionError) as e:
            desk.record(file, line=line.number, offset=line.offset, reason=refusal(e, line), raw=line.data)
            continue
        indices.append(i)
    if not rows:
        return None
    return _Parsed(_frame(rows, _where(file, block, indices[0], indices[-1])), np.array(indices, dtype=np.int64))


def _where(file: InputFile, block: Block, first: int, last: int) -> str:
    """Lines of a block, for a message that may never be needed: so those of a span are not counted for it."""
    if file.span is None:
        return f"{file.url}, lines {block.nth + first:,} to {block.nth + last:,}"
    return f"{file.url}, {last - first + 1:,} lines after byte offset {block.offset:,}"


def _is_utf8(data: bytes) -> bool:
    offsets = pa.py_buffer(np.array([0, len(data)], dtype=np.int64))
    try:
        pa.Array.from_buffers(pa.large_string(), 1, [None, offsets, pa.py_buffer(data)]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _lines_of_objects(block: Block) -> np.ndarray | None:
    """The lines that are not blank, or None if one does not begin with ``{`` or does not end with ``}``.

    Where all do, no value spans two lines: after a closing brace within a value comes no opening one.
    """
    starts, ends = block.bounds()
    view = np.frombuffer(block.data, dtype=np.uint8)
    full = ends > starts
    lines = np.flatnonzero(full)
    starts, ends = starts[full], ends[full]
    blank = []
    for i in np.flatnonzero((view[starts] != ord("{")) | (view[ends - 1] != ord("}"))).tolist():
        line = block.data[starts[i] : ends[i]].strip(_WHITESPACE)
        if not line:
            blank.append(i)
        elif not (line.startswith(b"{") and line.endswith(b"}")):
            return None
    return np.delete(lines, blank)


def _may_be_deep(block: Block) -> bool:
    """Whether a line is nested too deep. Only lines of many opening brackets are looked at closely."""
    starts, ends = block.bounds()
    openings = _openings(block.data)
    at_most = openings[-(-ends // _CELL)] - openings[starts // _CELL]
    return any(
        measure_depth(block.data[starts[i] : ends[i]]) > MAX_DEPTH for i in np.flatnonzero(at_most > MAX_DEPTH).tolist()
    )


def _openings(data: bytes) -> np.ndarray:
    """How many opening brackets stand before the start of each cell of the text, and in all of it."""
    counts = [np.zeros(1, dtype=np.int64)]
    for start in range(0, len(data), _SCAN_BYTES):
        view = np.frombuffer(data, dtype=np.uint8, count=min(_SCAN_BYTES, len(data) - start), offset=start)
        found = np.zeros(-(-len(view) // _CELL) * _CELL, dtype=np.uint8)
        np.equal(view | 0x20, ord("{"), out=found[: len(view)].view(np.bool_))  # [ differs from { in this one bit
        # Eight counters in a word, none above the number of words in a cell.
        words = found.view(np.uint64).reshape(-1, _CELL // 8).sum(axis=1)
        counts.append(words.view(np.uint8).reshape(-1, 8).sum(axis=1))
    return np.concatenate(counts).cumsum()


def _names_hold_nul(fields: Iterable[pa.Field]) -> bool:
    return any("\0" in f.name or _names_hold_nul(f.type.field(i) for i in range(f.type.num_fields)) for f in fields)


def _nesting(kind: pa.DataType) -> int:
    return 1 + max(_nesting(kind.field(i).type) for i in range(kind.num_fields)) if kind.num_fields else 0


def _declared(block: Block, options: ReadOptions) -> pa.Schema:
    """Types of the first lines' columns, found by Python's parser, so that Arrow guesses none of them."""
    rows: list[dict[str, Any]] = []
    starts, ends = block.bounds()
    short = np.flatnonzero(ends - starts <= _SAMPLE_BYTES)
    for i in short[:_SAMPLE_LINES].tolist():
        with contextlib.suppress(ValueError, RecursionError):
            row, doubtful = parse_object(block.data[starts[i] : ends[i]])
            if doubtful:
                check_values(row)
            rows.append(row)
    fields: list[Any] = []
    for name in dict.fromkeys(name for row in rows for name in row if name not in options.string_columns):
        values = [row.get(name) for row in rows]
        kinds = set(map(type, values)) - {type(None)}
        if len(kinds) == 1 and (kind := _SCALARS.get(kinds.pop())):
            fields.append((name, kind))
            continue
        # What does not unify is left for Arrow to refuse.
        with contextlib.suppress(SchemaError):
            fields += frame_from_rows([{name: value} for value in values]).to_arrow().schema
    return _without_nulls(pa.schema([*((name, pa.string()) for name in options.string_columns), *fields]))


def _widened(known: pa.Schema, frame: pl.DataFrame, file: InputFile) -> pa.Schema:
    # Not ``frame.clear()``: its conversion copies what the frame holds where that is one row.
    return unify([known, _without_nulls(pl.DataFrame(schema=frame.schema).to_arrow().schema)], what=file.url)


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


def _is_one_document(block: Block) -> bool:
    """A top-level array, or an object that is spread over lines."""
    head = block.data.lstrip()
    if not head.startswith(b"{"):
        return head.startswith(b"[")
    try:
        parse_object(head[: head.find(b"\n") + 1 or None])
    except RefusedLineError:
        return False
    except (ValueError, RecursionError):
        return True
    return False


def _frame(rows: list[dict[str, Any]], where: str) -> pl.DataFrame:
    try:
        return frame_from_rows(rows)
    except SchemaError as e:
        raise SchemaError(f"{where}: {e}") from e
