"""Blocks of whole lines, each with the line number and the byte offset at which it starts.

The unit of parsing: a block is parsed at full speed as a whole, and only if that fails line by line. Offsets count
uncompressed bytes from the start of the file, the byte order mark included; line numbers start at 1. Each byte is
looked at once, however long a line is, and copied once.

Of a file that is cut into spans (see `splits`) no reader knows how many lines lie before its own, and to count them is
to read all that lies before. So places are kept relative to the span, and the count is made once, when the number of a
line is asked for.

Invariant: where a file or span is cut into blocks depends on its bytes alone, not on the pieces in which they come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from typing import cast

import numpy as np
import polars as pl
import pyarrow as pa

from marin_zephyr.errors import InputError
from marin_zephyr.formats.files import InputFile
from marin_zephyr.formats.rejects import Desk
from marin_zephyr.formats.splits import Span
from marin_zephyr.formats.streams import blocks

BLOCK_BYTES = 8 << 20
_SCAN_BYTES = 1 << 18  # what is scanned at once, to stay in the processor's cache
_NEWLINE, _RETURN = ord("\n"), ord("\r")
BOM = b"\xef\xbb\xbf"


def _none() -> int:
    return 0


@dataclass(frozen=True)
class Line:
    """One line without its end, its number within the span from 1, and the offset in the file of its first byte."""

    data: bytes
    nth: int
    offset: int
    before: Callable[[], int | None] = _none
    """How many lines of the file lie before the span; None if damage there makes them uncountable."""

    @property
    def number(self) -> int | None:
        """Its number in the file, from 1."""
        before = self.before()
        return None if before is None else before + self.nth


@dataclass(frozen=True)
class Block:
    """Whole lines (the last of a file may lack its newline); ``nth`` and ``offset`` are its first line's."""

    data: bytes
    nth: int
    offset: int
    newlines: np.ndarray = field(repr=False, compare=False)
    """Where in ``data`` they stand, ascending."""
    before: Callable[[], int | None] = field(default=_none, repr=False, compare=False)

    @property
    def num_lines(self) -> int:
        """Blank ones included."""
        return len(self.newlines) + (not self.data.endswith(b"\n") and bool(self.data))

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Where each line starts and ends; a carriage return before the newline belongs to the line's end."""
        count = self.num_lines
        ends = self.newlines if len(self.newlines) == count else np.append(self.newlines, len(self.data))
        starts = np.append(0, ends + 1)[:count]
        view = np.frombuffer(self.data, dtype=np.uint8)
        returns = (ends > starts) & (view[ends - 1] == _RETURN)
        return starts, ends - returns

    def lines(self) -> Iterator[Line]:
        """The lines, blank ones included, without their ends."""
        start = 0
        for i in range(self.num_lines):
            end = int(self.newlines[i]) if i < len(self.newlines) else len(self.data)
            data = self.data[start:end].removesuffix(b"\r")
            yield Line(data, self.nth + i, self.offset + start, self.before)
            start = end + 1

    def parts(self, size: int) -> Iterator[tuple[int, Block]]:
        """Blocks of at most ``size`` bytes, or of one line, each with the index of its first line in this one."""
        ends = self.newlines + 1 if self.data.endswith(b"\n") else np.append(self.newlines + 1, len(self.data))
        line = start = 0
        while line < len(ends):
            after = max(line + 1, int(np.searchsorted(ends, start + size, side="right")))
            end = int(ends[after - 1])
            inside = self.newlines[line:after] - start
            yield line, Block(self.data[start:end], self.nth + line, self.offset + start, inside, self.before)
            line, start = after, end

    def raw(self) -> pl.Series:
        """The bytes of each line, without its end, over the memory of the block."""
        starts, ends = self.bounds()
        offsets = np.append(starts, len(self.data)).astype(np.int64)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        whole = pl.from_arrow(pa.Array.from_buffers(pa.large_binary(), len(starts), buffers))
        lengths = pl.Series("length", ends - starts)
        return pl.DataFrame([cast(pl.Series, whole).alias("line"), lengths]).select(
            pl.col("line").bin.slice(0, pl.col("length"))
        )["line"]


def file_blocks(file: InputFile, desk: Desk, *, size: int = BLOCK_BYTES) -> Iterator[Block]:
    """The blocks of a file, or of its span.

    A stream that breaks off gives the whole lines before the break, then goes to the desk. What goes there is one
    record: the file, how much of it was read, and what is left of the line that was cut.
    """
    span, position = file.span, _Position()
    if span is None:
        pieces = blocks(file.url, file.compression)
    else:
        position.begin = position.offset = max(0, span.begin - 1)
        pieces = _within(blocks(file.url, file.compression, at=span.at, offset=position.offset), span, position)
        position.before = cache(lambda: _count_lines(file, position.begin))
    try:
        yield from line_blocks(pieces, size=size, position=position)
    except InputError as e:
        tail = b"".join(position.pending)
        end = tail.rfind(b"\n") + 1
        if end:
            yield position.advance(tail[:end])
        if desk.policy == "raise":
            raise
        reason = (
            f"{str(e).removeprefix(f'{file.url}: ')}; the {position.nth - 1:,} whole lines before were read "
            f"({position.offset:,} bytes), {len(tail) - end:,} bytes of a cut line and all after it are lost"
        )
        if span is not None:
            reason += f" (of the span of the file from byte {span.begin:,} to {span.end:,})"
        number = Line(b"", position.nth, position.offset, position.before).number
        desk.record(file, line=number, offset=position.offset, reason=reason, raw=tail[end:])


def _within(pieces: Iterator[bytes], span: Span, position: _Position) -> Iterator[bytes]:
    """Of the bytes from the one before the span on, those of the lines that begin in it."""
    offset, first = position.offset, b""
    while span.begin:
        first = next(pieces, b"")
        newline = first.find(b"\n", 0, max(0, span.end - 1 - offset))
        if newline >= 0:
            first, offset = first[newline + 1 :], offset + newline + 1
            break
        offset += len(first)
        if not first or offset >= span.end - 1:
            return  # no line begins here
    position.begin = position.offset = offset
    for piece in chain([first], pieces):
        stop = piece.find(b"\n", max(0, span.end - 1 - offset))
        if stop >= 0:
            yield piece[: stop + 1]
            return
        yield piece
        offset += len(piece)


def _count_lines(file: InputFile, offset: int) -> int | None:
    """How many lines lie before this offset. None where damage hides some of them."""
    count = 0
    try:
        for piece in blocks(file.url, file.compression):
            count += piece.count(b"\n", 0, max(0, offset))
            offset -= len(piece)
            if offset <= 0:
                break
    except InputError:
        return None
    return count


def line_blocks(
    pieces: Iterable[bytes], *, size: int = BLOCK_BYTES, position: _Position | None = None
) -> Iterator[Block]:
    """Gathers pieces of a file into blocks of about ``size`` bytes that end at a newline."""
    position = position or _Position()
    held = 0
    for piece in pieces:
        while piece:
            # A block ends with the first newline at or after its size.
            end = piece.find(b"\n", max(0, size - 1 - held)) + 1
            if not end:
                position.pending.append(piece)
                held += len(piece)
                break
            data = b"".join((*position.pending, piece[:end]))
            position.pending, held = [], 0
            piece = piece[end:]
            yield position.advance(data)
    if rest := b"".join(position.pending):
        position.pending = []
        yield position.advance(rest)


class _Position:
    """How far a file has been cut into blocks, and the bytes that are not yet in one."""

    def __init__(self) -> None:
        self.nth = 1
        self.offset = 0
        self.begin = 0
        self.before: Callable[[], int | None] = _none
        self.pending: list[bytes] = []

    def advance(self, data: bytes) -> Block:
        start = len(BOM) if self.offset == 0 and data.startswith(BOM) else 0
        block = Block(data[start:], self.nth, self.offset + start, _newlines(data[start:]), self.before)
        self.nth += len(block.newlines)
        self.offset += len(data)
        return block


def _newlines(data: bytes) -> np.ndarray:
    view = np.frombuffer(data, dtype=np.uint8)
    starts = range(0, len(data), _SCAN_BYTES)
    return np.concatenate(
        [
            np.empty(0, dtype=np.int64),
            *(start + np.flatnonzero(view[start : start + _SCAN_BYTES] == _NEWLINE) for start in starts),
        ]
    )
