"""A ``.json`` file that is one document: an array of objects, or one object over several lines.

The objects are found one after another in a window of the text that grows only to hold the one at hand, checked as
lines are (`objects`), and passed on in batches: so a file of any size costs the memory of a batch. An object that
cannot be taken goes to the desk alone, with its line and offset; where the text stops being JSON, or the file breaks
off, all from there on does.

See: RFC 8259 (JSON).
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any

import polars as pl
import pyarrow as pa

from marin_zephyr.errors import InputError, SchemaError
from marin_zephyr.formats.files import InputFile
from marin_zephyr.formats.lines import Line
from marin_zephyr.formats.objects import (
    MAX_DEPTH,
    check_values,
    encode,
    measure_depth,
    parse_object,
    refusal,
    taken,
)
from marin_zephyr.formats.provenance import finish
from marin_zephyr.formats.rejects import Desk
from marin_zephyr.formats.streams import blocks
from marin_zephyr.frames import BATCH_ROWS, frame_from_rows, unify
from marin_zephyr.nodes import RAW, ReadOptions

_BATCH_BYTES = 16 << 20
_WINDOW = 1 << 20
# An error so near the end of the window may be one of the window: "tr", "\\ud8", "-Infinit".
_LONGEST_TOKEN = 16
_BLANK = re.compile(r"[ \t\n\r]*")


def read_document(file: InputFile, options: ReadOptions, desk: Desk) -> Iterator[pl.DataFrame]:
    """Frames of the document's objects."""
    document = _Document(blocks(file.url, file.compression))
    known: pa.Schema | None = None
    rows: list[dict[str, Any]] = []
    numbers: list[int] = []
    raws: list[bytes] = []
    number = held = 0
    for number, line in enumerate(document.objects(), 1):
        try:
            row, doubtful = parse_object(line.data)
            if options.raw and doubtful:
                check_values(row)  # there is no line: what stands for it is made of the values
            rows.append(taken(row, options, doubtful=doubtful))
        except (ValueError, RecursionError) as e:
            reason = f"object {number:,}: {refusal(e, line)}"
            desk.record(file, line=line.nth, offset=line.offset, reason=reason, raw=line.data)
            continue
        numbers.append(number)
        if options.raw:
            raws.append(encode(row))
        held += len(line.data)
        if len(rows) == BATCH_ROWS or held >= _BATCH_BYTES:
            frame, known = _frame(rows, raws, known, file)
            yield finish(frame, file, options, rows=numbers, offsets=None, desk=desk)
            rows, numbers, raws, held = [], [], [], 0
    if rows:
        frame, known = _frame(rows, raws, known, file)
        yield finish(frame, file, options, rows=numbers, offsets=None, desk=desk)
    if document.error is None:
        return
    if desk.policy == "raise" and isinstance(document.error, InputError):
        raise document.error
    line = document.rest()
    reason = refusal(document.error, line).removeprefix(f"{file.url}: ")
    if isinstance(document.error, RecursionError):
        reason = f"nested more than {MAX_DEPTH} deep: {1 + measure_depth(line.data):,} levels"
    if number:
        reason += f"; the {number:,} objects before were read, all after is lost"
    desk.record(file, line=line.nth, offset=line.offset, reason=reason, raw=line.data)


def _frame(
    rows: list[dict[str, Any]], raws: list[bytes], known: pa.Schema | None, file: InputFile
) -> tuple[pl.DataFrame, pa.Schema]:
    """The rows as a frame, and the schema of all so far, with which it agrees."""
    try:
        frame = frame_from_rows(rows)
    except SchemaError as e:
        raise SchemaError(f"{file.url}: {e}") from e
    schema = frame.clear().to_arrow().schema
    known = schema if known is None else unify([known, schema], what=file.url)
    return (frame.with_columns(pl.Series(RAW, raws, dtype=pl.Binary)) if raws else frame), known


class _Document:
    """The text of a document. Bytes that are no UTF-8 stand in it as surrogates, so that each costs its object alone.

    ``error`` is what ended it too early: it is no JSON from there on, or the file breaks off.
    """

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.error: ValueError | RecursionError | InputError | None = None
        self._pieces = pieces
        self._decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
        # Python refuses to convert integers of thousands of digits; here it is not for their values.
        self._find_end = json.JSONDecoder(parse_int=float).raw_decode
        self._window = ""
        self._at = 0  # what of the window lies behind
        self._told, self._offset, self._nth = 0, 0, 1  # a character of the window, its byte in the file, its line
        self._is_over = False

    def objects(self) -> Iterator[Line]:
        """The values of the array, or the one there is; ends early where the text is no JSON."""
        try:
            if self._next() == "\ufeff":
                self._at += 1
            if self._next() != "[":
                yield self._value()
            else:
                self._at += 1
                if self._next() != "]":
                    yield self._value()
                    while self._next() == ",":
                        self._at += 1
                        self._next()
                        yield self._value()
                    if self._next() != "]":
                        raise self._error("Expecting ',' or ']'")
                self._at += 1
            if self._next():
                raise self._error("Extra data")
        except (ValueError, RecursionError) as e:
            self.error = self.error or e  # of a file that breaks off the text, too, ends too early

    def rest(self) -> Line:
        """What of the window lies ahead."""
        return self._line(len(self._window))

    def _error(self, message: str) -> ValueError:
        return json.JSONDecodeError(message, self._window, self._at)

    def _next(self) -> str:
        """The next character that is not blank, to which it goes on; none at the end."""
        while True:
            found = _BLANK.match(self._window, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._window) or not self._fill():
                return self._window[self._at : self._at + 1]

    def _value(self) -> Line:
        while True:
            try:
                _, end = self._find_end(self._window, self._at)
                if end < len(self._window) or not self._fill():  # a number may go on
                    line = self._line(end)
                    self._at = end
                    return line
            except json.JSONDecodeError as e:
                is_cut = e.msg.startswith("Unterminated") or e.pos > len(self._window) - _LONGEST_TOKEN
                if not is_cut or not self._fill():
                    raise

    def _line(self, end: int) -> Line:
        """The text from where it has come to, with its place."""
        passed = self._window[self._told : self._at]
        self._offset += len(passed.encode("utf-8", "surrogateescape"))
        self._nth += passed.count("\n")
        self._told = self._at
        return Line(self._window[self._at : end].encode("utf-8", "surrogateescape"), self._nth, self._offset)

    def _fill(self) -> bool:
        """Lets the window hold twice as much, or at least some more, of the text ahead. False at the end."""
        self._line(self._at)
        ahead = [self._window[self._at :]]
        wanted, held = max(_WINDOW, 2 * len(ahead[0])), len(ahead[0])
        before = held
        while held < wanted and not self._is_over:
            try:
                piece = next(self._pieces, b"")
            except InputError as e:
                self.error, piece = e, b""
            self._is_over = not piece
            ahead.append(self._decode(piece, self._is_over))
            held += len(ahead[-1])
        self._window, self._at, self._told = "".join(ahead), 0, 0
        return held > before
