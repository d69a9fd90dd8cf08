"""Blocks of whole lines, each with the line number and the byte offset at which it starts.

The unit of parsing: a block is parsed at full speed as a whole, and only if that fails line by line. Offsets count
uncompressed bytes from the start of the file, the byte order mark included; line numbers start at 1. Each byte is
looked at once, however long a line is, and copied once.

Invariant: where a file is cut into blocks depends on its bytes alone, not on the pieces in which they come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import polars as pl
import pyarrow as pa

from marin_zephyr.errors import InputError
from marin_zephyr.formats.files import InputFile
from marin_zephyr.formats.rejects import Desk
from marin_zephyr.formats.streams import blocks

BLOCK_BYTES = 8 << 20
_SCAN_BYTES = 1 << 18  # what is scanned at once, to stay in the processor's cache
_NEWLINE, _RETURN = ord("\n"), ord("\r")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Line:
    """One line without its end, its number from 1, and the offset of its first byte."""

    data: bytes
    number: int
    offset: int


@dataclass(frozen=True)
class Block:
    """Whole lines (the last of a file may lack its newline)."""

    data: bytes
    first_line: int
    offset: int
    newlines: np.ndarray = field(repr=False, compare=False)
    """Where in ``data`` they stand, ascending."""

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
            yield Line(self.data[start:end].removesuffix(b"\r"), self.first_line + i, self.offset + start)
            start = end + 1

    def parts(self, size: int) -> Iterator[tuple[int, Block]]:
        """Blocks of at most ``size`` bytes, or of one line, each with the index of its first line in this one."""
        ends = self.newlines + 1 if self.data.endswith(b"\n") else np.append(self.newlines + 1, len(self.data))
        line = start = 0
        while line < len(ends):
            after = max(line + 1, int(np.searchsorted(ends, start + size, side="right")))
            end = int(ends[after - 1])
            inside = self.newlines[line:after] - start
            yield line, Block(self.data[start:end], self.first_line + line, self.offset + start, inside)
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
    """The blocks of a file. A stream that breaks off gives the whole lines before the break, then goes to the desk.

    What goes there is one record: the file, how much of it was read, and what is left of the line that was cut.
    """
    position = _Position()
    try:
        yield from line_blocks(blocks(file.url, file.compression), size=size, position=position)
    except InputError as e:
        tail = b"".join(position.pending)
        end = tail.rfind(b"\n") + 1
        if end:
            yield position.advance(tail[:end])
        if desk.policy == "raise":
            raise
        reason = (
            f"{str(e).removeprefix(f'{file.url}: ')}; the {position.line - 1:,} whole lines before were read "
            f"({position.offset:,} bytes), {len(tail) - end:,} bytes of a cut line and all after it are lost"
        )
        desk.record(file, line=position.line, offset=position.offset, reason=reason, raw=tail[end:])


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
        self.line = 1
        self.offset = 0
        self.pending: list[bytes] = []

    def advance(self, data: bytes) -> Block:
        start = len(_BOM) if self.offset == 0 and data.startswith(_BOM) else 0
        block = Block(data[start:], self.line, self.offset + start, _newlines(data[start:]))
        self.line += len(block.newlines)
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
