"""A ``.json`` file that is one document: an array of objects, or one object over several lines.

The text is held as a whole, the objects are not: they are found one after another, checked as lines are (`objects`),
and passed on in batches, so that a file costs a few times its size, however many objects it holds. An object that
cannot be taken goes to the desk alone, with its line and offset; where the text stops being JSON, all from there on
does. A compressed file that breaks off is refused as a whole.

See: RFC 8259 (JSON).
"""

from __future__ import annotations

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

_BATCH_CHARACTERS = 16 << 20
_BOM = b"\xef\xbb\xbf"
_BLANK = re.compile(r"[ \t\n\r]*")


def read_document(file: InputFile, options: ReadOptions, desk: Desk) -> Iterator[pl.DataFrame]:
    """Frames of the document's objects."""
    data = _whole(file, desk)
    if data is None:
        return
    document = _Document(data)
    known: pa.Schema | None = None
    rows: list[dict[str, Any]] = []
    numbers: list[int] = []
    raws: list[bytes] = []
    number = held = 0
    for number, (begin, end) in enumerate(document.objects(), 1):
        raw = document.text[begin:end].encode("utf-8", "surrogateescape")
        try:
            row, doubtful = parse_object(raw)
            if options.raw and doubtful:
                check_values(row)  # there is no line: what stands for it is made of the values
            rows.append(taken(row, options, doubtful=doubtful))
        except (ValueError, RecursionError) as e:
            line = document.line(begin, raw)
            desk.record(
                file, line=line.nth, offset=line.offset, reason=f"object {number:,}: {refusal(e, line)}", raw=raw
            )
            continue
        numbers.append(number)
        if options.raw:
            raws.append(encode(row))
        held += end - begin
        if len(rows) == BATCH_ROWS or held >= _BATCH_CHARACTERS:
            frame, known = _frame(rows, raws, known, file)
            yield finish(frame, file, options, rows=numbers, offsets=None, desk=desk)
            rows, numbers, raws, held = [], [], [], 0
    if rows:
        frame, known = _frame(rows, raws, known, file)
        yield finish(frame, file, options, rows=numbers, offsets=None, desk=desk)
    if document.error is not None:
        line = document.line(document.end, b"")
        depth = measure_depth(data) if isinstance(document.error, RecursionError) else 0
        reason = f"nested more than {MAX_DEPTH} deep: {depth:,} levels" if depth else refusal(document.error, line)
        if number:
            reason += f"; the {number:,} objects before were read"
        desk.record(file, line=line.nth, offset=line.offset, reason=reason, raw=data[line.offset :])


def _whole(file: InputFile, desk: Desk) -> bytes | None:
    pieces: list[bytes] = []
    try:
        pieces.extend(blocks(file.url, file.compression))
    except InputError as e:
        if desk.policy == "raise":
            raise
        reason = str(e).removeprefix(f"{file.url}: ")
        desk.record(file, line=None, offset=0, reason=reason, raw=b"".join(pieces))
        return None
    return b"".join(pieces)


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

    ``end`` is how far it was found to be JSON, ``error`` what is wrong there.
    """

    def __init__(self, data: bytes) -> None:
        self._start = len(_BOM) if data.startswith(_BOM) else 0
        self.text = data[self._start :].decode("utf-8", "surrogateescape")
        self.end = 0
        self.error: ValueError | RecursionError | None = None
        self._told = (0, self._start, 1)
        # Python refuses to convert integers of thousands of digits; here it is not for their values.
        self._find_end = json.JSONDecoder(parse_int=float).raw_decode

    def objects(self) -> Iterator[tuple[int, int]]:
        """Where each object begins and ends; ends early where the text is no JSON."""
        try:
            self._to(0)
            if self.text[self.end : self.end + 1] != "[":
                yield self._value()
            elif self.text.startswith("]", self._to(self.end + 1)):
                self._to(self.end + 1)
            else:
                yield self._value()
                while self._at(",]") == ",":
                    self._to(self.end + 1)
                    yield self._value()
                self._to(self.end + 1)
            if self.end < len(self.text):
                raise json.JSONDecodeError("Extra data", self.text, self.end)
        except (ValueError, RecursionError) as e:
            self.error = e

    def line(self, at: int, data: bytes) -> Line:
        """The place of a character, from 1 and in bytes. Asked for in order, all together cost one pass."""
        told, offset, nth = self._told
        piece = self.text[told:at]
        offset, nth = offset + len(piece.encode("utf-8", "surrogateescape")), nth + piece.count("\n")
        self._told = (at, offset, nth)
        return Line(data, nth, offset)

    def _value(self) -> tuple[int, int]:
        begin = self.end
        _, end = self._find_end(self.text, begin)
        self._to(end)
        return begin, end

    def _at(self, expected: str) -> str:
        found = self.text[self.end : self.end + 1]
        if not found or found not in expected:
            raise json.JSONDecodeError("Expecting ',' delimiter", self.text, self.end)
        return found

    def _to(self, at: int) -> int:
        """Goes on to the next character that is not blank."""
        found = _BLANK.match(self.text, at)
        self.end = found.end() if found else at
        return self.end
