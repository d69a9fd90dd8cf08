"""Oddities: what is unusual about a text file's bytes and read all the same, with the place where it first stands.

A byte order mark, line ends of Windows, blank lines, NULs, NaN in JSON, records of extraordinary size, a gzip file of
several members: none of these loses a row here, each has lost rows elsewhere. Blocks are searched as wholes, so a file
without oddities costs little more than its decompression; lines are looked at only where something was found.
"""

from __future__ import annotations

import json
import mmap
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from marin_zephyr.errors import InputError
from marin_zephyr.formats.files import InputFile
from marin_zephyr.formats.lines import Block, line_blocks
from marin_zephyr.formats.streams import blocks
from marin_zephyr.reporting.quantities import shown_bytes

_HUGE_BYTES = 64 << 20
_BLANK = re.compile(rb"^[ \t\r]*\n", re.MULTILINE)
_CRLF = re.compile(rb"\r\n")
_NUL = re.compile(rb"\0")
_NUL_ESCAPE = re.compile(rb"\\u0000")
_NO_NUMBER = re.compile(rb"[:\[,][ \t]*-?(?:NaN|Infinity)")
# A member's header: magic, flags, time, and what RFC 1952 knows of levels and systems.
_GZIP_HEADER = re.compile(rb"\x1f\x8b\x08[\x00-\x1f].{4}[\x00\x02\x04][\x00-\x0d\xff]", re.DOTALL)
_PIECE = 1 << 16  # a bomb grows a thousandfold


@dataclass(frozen=True, kw_only=True)
class Oddity:
    """What is odd, how often, and where first (line from 1, byte offset in the uncompressed file)."""

    line: int | None
    offset: int
    reason: str


@dataclass
class _Kind:
    """One kind of oddity: how to find it, what to say of it."""

    text: str
    needles: tuple[bytes, ...]
    """A block that holds none of these is not searched: patterns are slow."""
    pattern: re.Pattern[bytes]
    confirm: Callable[[bytes], bool] | None = None
    """If given, lines are counted: those of which it is true."""
    count: int = 0
    line: int = 0
    offset: int = 0

    def look(self, block: Block) -> None:
        data = b"\n" + block.data if block.data[:1].isspace() else block.data  # a blank line may come first
        if not any(needle in data for needle in self.needles):
            return
        end = -1
        for match in self.pattern.finditer(block.data):
            start = match.start()
            if self.confirm is not None:
                if start < end:  # the line is counted, or refuted
                    continue
                start, end = block.data.rfind(b"\n", 0, start) + 1, block.data.find(b"\n", start)
                end = len(block.data) if end < 0 else end
                if not self.confirm(block.data[start:end]):
                    continue
            if not self.count:
                self.line, self.offset = block.nth + block.data.count(b"\n", 0, start), block.offset + start
            self.count += 1


def find_oddities(file: InputFile) -> list[Oddity]:
    """The oddities of a text file, in the order of their places. A file that breaks off is looked at up to there.

    Args:
        file: JSON, CSV or text; other formats have no lines, and none of these.
    """
    kinds = _kinds(file.format)
    found: list[Oddity] = []
    try:
        for block in line_blocks(blocks(file.url, file.compression)):
            if block.nth == 1 and block.offset:
                found.append(Oddity(line=1, offset=0, reason="a byte order mark; it is left out"))
            for kind in kinds:
                kind.look(block)
            found += _huge(block)
    except InputError:
        pass  # the readers tell it
    found += [Oddity(line=k.line, offset=k.offset, reason=k.text.format(n=f"{k.count:,}")) for k in kinds if k.count]
    found += _members(file)
    return sorted(found, key=lambda o: o.offset)


def _kinds(format: str) -> list[_Kind]:
    kinds = [
        _Kind("line ends of Windows (CRLF), {n} in all; they are left out", (b"\r\n",), _CRLF),
        _Kind("NUL bytes, {n} in all", (b"\0",), _NUL),
    ]
    if format in ("jsonl", "json"):
        kinds += [
            _Kind("NUL characters (\\u0000) in strings, {n} in all; they are kept", (b"\\u0000",), _NUL_ESCAPE),
            _Kind(
                "NaN or infinity, in {n} lines; JSON has no word for them, they are read",
                (b"NaN", b"Infinity"),
                _NO_NUMBER,
                _holds_no_number,
            ),
        ]
    if format != "json":
        kinds.append(_Kind("blank lines, {n} in all", (b"\n\n", b"\n\r", b"\n ", b"\n\t"), _BLANK))
    return kinds


def _holds_no_number(line: bytes) -> bool:
    """Whether NaN stands in a line of JSON as a value, not within a string. (Of a document over lines: perhaps.)"""
    seen: list[str] = []
    try:
        json.loads(line, parse_constant=seen.append)
    except (ValueError, RecursionError):
        return b'"' not in line
    return bool(seen)


def _huge(block: Block) -> Iterator[Oddity]:
    if len(block.data) <= _HUGE_BYTES:
        return
    for line in block.lines():
        if len(line.data) > _HUGE_BYTES:
            size = shown_bytes(len(line.data))
            yield Oddity(line=line.number, offset=line.offset, reason=f"a record of {size}; a batch holds it alone")


def _members(file: InputFile) -> list[Oddity]:
    """Whether a gzip file is several joined: some readers stop after the first."""
    if file.compression != "gz" or "://" in file.url:
        return []
    count, second, written, decoder = 0, 0, 0, None
    with Path(file.url).open("rb") as raw:
        if not file.size or not _has_header_inside(raw):
            return []
        try:
            while piece := raw.read(_PIECE):
                while piece:
                    if decoder is None:
                        decoder, count = zlib.decompressobj(31), count + 1
                        second = written if count == 2 else second
                    written += len(decoder.decompress(piece))
                    piece = decoder.unused_data
                    if decoder.eof:
                        decoder = None
        except zlib.error:
            count -= 1  # what was begun is no member; the reader says what it is
    if count < 2:
        return []
    reason = f"gzip of {count:,} members joined, the second from here on; all are read"
    return [Oddity(line=None, offset=second, reason=reason)]


def _has_header_inside(raw: IO[bytes]) -> bool:
    """Whether something that looks like a member's header stands after the file's own."""
    with mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _GZIP_HEADER.search(data, 1) is not None
