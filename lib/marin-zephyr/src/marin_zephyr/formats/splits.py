"""Where one large file may be cut, so that several tasks read it at once.

A `Span` is a part of a file: of plain lines a range of bytes, of compressed lines a run of frames that can each be
decompressed alone, of parquet a run of row groups. The cut is a function of the file (its size and the headers in it)
and of how large a span shall be, and of nothing else.

Invariant: a line belongs to the span in which its first byte lies, so the spans' lines one after another are the
file's, each once, wherever the cuts fall. A line begins at the file's first byte or after a newline. So whoever reads a
span looks for the first newline from the byte before it on, and stops at the first newline from its own last byte on.
Frames are cut at one byte past their beginning: then the byte before the span is the frame's own first, and the frame
before need not be decompressed to know how it ends.

What can be cut: plain files; gzip files whose every member says how long it is (BGZF, as bgzip writes it); zstandard
files of several frames that all say what they hold (as pzstd and the seekable format write them). All of a file's
headers are followed first. A file in which something else stands, one that is cut off included, is left whole, to be
read, and its damage told, as any other.

See: RFC 1952 and the SAM specification, section 4.1 (BGZF); RFC 8878 (zstandard);
https://github.com/facebook/zstd/tree/dev/contrib/seekable_format.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

from marin_zephyr.formats.archives import is_member
from marin_zephyr.formats.streams import open_file

# Of a gzip header with extra fields, or a zstandard frame's: more is no file of many short frames.
_HEADER_BYTES = 64
_SKIPPABLE = 0x184D2A50
_SEEK_TABLE = 0x8F92EAB1
_SEEK_FOOTER = struct.Struct("<IBI")


@dataclass(frozen=True, kw_only=True)
class Span:
    """The lines of a file whose first byte lies from ``begin`` to before ``end``; of parquet, those row groups."""

    begin: int
    """Bytes of the uncompressed file before it."""
    end: int
    at: int = 0
    """Where to begin reading: the place, in the file as it is stored, of uncompressed byte ``max(0, begin - 1)``."""
    num_bytes: int
    """Uncompressed."""


class _NotCuttableError(Exception):
    """The file is not made of parts that can be read alone."""


def spans(url: str, format: str, compression: str | None, *, size: int, span_bytes: int) -> tuple[Span, ...]:
    """A file cut into spans of about ``span_bytes`` uncompressed bytes; none if it is to be read as a whole.

    Args:
        url: the file.
        format: ``jsonl``, ``text`` or ``parquet``; any other is read as a whole.
        compression: as `infer` tells it.
        size: of the file as it is stored, in bytes.
        span_bytes: at least 1.
    """
    if is_member(url):
        return ()
    try:
        if format == "parquet" and compression is None:
            return _run(list(_row_groups(url)), span_bytes)
        if format not in ("jsonl", "text"):
            return ()
        if compression is None:
            return _bytes(size, span_bytes)
        return _frames(url, compression, size, span_bytes)
    except (_NotCuttableError, OSError):
        return ()


def _bytes(size: int, span_bytes: int) -> tuple[Span, ...]:
    if size <= span_bytes:
        return ()
    count = -(-size // span_bytes)
    cuts = [size * i // count for i in range(count + 1)]
    return tuple(Span(begin=b, end=e, at=max(0, b - 1), num_bytes=e - b) for b, e in pairwise(cuts))


def _row_groups(url: str) -> Iterator[int]:
    """Uncompressed bytes of each row group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_file(url) as opened:
            metadata = pq.read_metadata(opened)
    except pa.ArrowException as e:
        raise _NotCuttableError from e
    for i in range(metadata.num_row_groups):
        yield metadata.row_group(i).total_byte_size


def _run(sizes: list[int], span_bytes: int) -> tuple[Span, ...]:
    """Row groups, gathered until a span is full."""
    cuts, held = [0], 0
    for i, num_bytes in enumerate(sizes):
        if held and held + num_bytes > span_bytes:
            cuts.append(i)
            held = 0
        held += num_bytes
    cuts.append(len(sizes))
    return tuple(Span(begin=b, end=e, num_bytes=sum(sizes[b:e])) for b, e in pairwise(cuts) if len(cuts) > 2)


def _frames(url: str, compression: str, size: int, span_bytes: int) -> tuple[Span, ...]:
    lengths = _seek_table(url, size) if compression == "zst" else None
    if lengths is None and compression in ("gz", "zst") and "://" not in url:
        with Path(url).open("rb") as opened:
            walk = _bgzf if compression == "gz" else _zstandard
            lengths = list(walk(opened.fileno(), size))
    if lengths is None:  # to follow the headers of a remote file is to fetch most of it
        return ()
    total = sum(held for _, held in lengths)
    cuts = [(0, 0)]
    places = zip(
        accumulate((stored for stored, _ in lengths), initial=0),
        accumulate((held for _, held in lengths), initial=0),
        strict=True,
    )
    for at, offset in places:
        if offset - cuts[-1][1] >= span_bytes and offset < total:
            cuts.append((at, offset))
    ends = [*(offset + 1 for _, offset in cuts[1:]), total]
    begins = [0, *ends[:-1]]
    return tuple(
        Span(begin=b, end=e, at=at, num_bytes=e - b)
        for (at, _), b, e in zip(cuts, begins, ends, strict=True)
        if len(cuts) > 1
    )


def _bgzf(file: int, size: int) -> Iterator[tuple[int, int]]:
    """Of each member its bytes, and how many it holds. One read a member: its last bytes and the next one's first."""
    at = 0
    head = os.pread(file, _HEADER_BYTES, 0)
    while at < size:
        stored = _member_bytes(head)
        tail = os.pread(file, 4 + _HEADER_BYTES, at + stored - 4)
        if len(tail) < 4:
            raise _NotCuttableError
        yield stored, int.from_bytes(tail[:4], "little")
        at, head = at + stored, tail[4:]


def _member_bytes(head: bytes) -> int:
    """Length of a gzip member, from the extra field ``BC`` of its header."""
    if head[:3] != b"\x1f\x8b\x08" or len(head) < 12 or not head[3] & 4:
        raise _NotCuttableError
    extra = head[12 : 12 + int.from_bytes(head[10:12], "little")]
    while len(extra) >= 4:
        length = int.from_bytes(extra[2:4], "little")
        if extra[:2] == b"BC" and length == 2 and len(extra) >= 6:
            stored = int.from_bytes(extra[4:6], "little") + 1
            if stored >= 26:  # header and trailer
                return stored
        extra = extra[4 + length :]
    raise _NotCuttableError


def _zstandard(file: int, size: int) -> Iterator[tuple[int, int]]:
    """Of each frame its bytes, and how many it holds; a skippable frame holds none."""
    import zstandard

    at = 0
    while at < size:
        head = os.pread(file, _HEADER_BYTES, at)
        if len(head) >= 8 and int.from_bytes(head[:4], "little") & ~0xF == _SKIPPABLE:
            stored, held = 8 + int.from_bytes(head[4:8], "little"), 0
        else:
            try:
                held = zstandard.frame_content_size(head)
                length = zstandard.frame_header_size(head)
                has_checksum = zstandard.get_frame_parameters(head).has_checksum
            except zstandard.ZstdError as e:
                raise _NotCuttableError from e
            if held < 0:
                raise _NotCuttableError
            stored = _blocks_end(file, at + length) + (4 if has_checksum else 0) - at
        at += stored
        if at > size:
            raise _NotCuttableError
        yield stored, held


def _blocks_end(file: int, at: int) -> int:
    """Where the blocks of a zstandard frame end that begin here."""
    while True:
        head = os.pread(file, 3, at)
        if len(head) < 3:
            raise _NotCuttableError
        bits = int.from_bytes(head, "little")
        is_last, kind, length = bits & 1, bits >> 1 & 3, bits >> 3
        at += 3 + (1 if kind == 1 else length)  # a run is one byte, repeated
        if is_last:
            return at


def _seek_table(url: str, size: int) -> list[tuple[int, int]] | None:
    """The frames as the table at the end of a seekable file gives them; None if there is none, or it does not fit."""
    with open_file(url) as opened:
        opened.seek(max(0, size - _SEEK_FOOTER.size))
        footer = opened.read(_SEEK_FOOTER.size)
        if len(footer) < _SEEK_FOOTER.size or _SEEK_FOOTER.unpack(footer)[2] != _SEEK_TABLE:
            return None
        count, flags, _ = _SEEK_FOOTER.unpack(footer)
        width = 12 if flags & 0x80 else 8
        table = 8 + count * width + _SEEK_FOOTER.size
        if table > size:
            return None
        opened.seek(size - table + 8)
        entries = opened.read(count * width)
    lengths = [struct.unpack_from("<II", entries, i) for i in range(0, len(entries) - 7, width)]
    if len(lengths) != count or sum(stored for stored, _ in lengths) + table != size:
        return None
    return [*lengths, (table, 0)]
