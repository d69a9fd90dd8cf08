"""Blocks of whole lines, each with the line number and the byte offset at which it starts.

The unit of parsing: a block is parsed at full speed as a whole, and only if that fails line by line. Offsets count
uncompressed bytes from the start of the file, the byte order mark included; line numbers start at 1. Each byte is
looked at once, however long a line is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from marin_zephyr.errors import InputError
from marin_zephyr.formats.files import InputFile
from marin_zephyr.formats.rejects import Desk
from marin_zephyr.formats.streams import blocks

BLOCK_BYTES = 4 << 20
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

    def lines(self) -> Iterator[Line]:
        """The lines, blank ones included; a carriage return before the newline belongs to the line's end."""
        pieces = self.data.split(b"\n")
        if not pieces[-1]:
            pieces.pop()
        number, offset = self.first_line, self.offset
        for piece in pieces:
            yield Line(piece.removesuffix(b"\r"), number, offset)
            number += 1
            offset += len(piece) + 1


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
        position.pending.append(piece)
        held += len(piece)
        if held < size or b"\n" not in piece:
            continue
        data = b"".join(position.pending)
        end = data.rfind(b"\n") + 1
        rest = data[end:]
        position.pending, held = [rest], len(rest)
        yield position.advance(data[:end])
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
        block = Block(data[start:], self.line, self.offset + start)
        self.line += data.count(b"\n")
        self.offset += len(data)
        return block
