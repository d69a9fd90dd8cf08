"""Web archives (WARC): one row a record, with what the HTTP message in it says and its body decoded.

Columns: ``url``, ``date``, ``type`` (response, request, warcinfo ...), ``content_type``, ``status``, ``payload`` (the
body, as bytes, without transfer and content encoding; of what is no HTTP the whole block) and ``headers`` (JSON: those
of the record under ``warc``, those of the message under ``http``; of a name given twice the values, joined by commas).

Records follow each other, each with its length in its header. One whose header does not parse, or whose length does not
lead to the next record, is damaged: it goes to the desk with the offset at which it begins, and reading goes on at the
next line that looks like the head of a record. Every byte is looked for that once. Many crawlers keep the headers
of a message whose body they have decoded: so a body that does not begin as its encoding would is taken as it stands,
and one that begins so and then fails is refused.

See: https://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/; RFC 9112 (chunked), RFC 9110.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import zstandard

from marin_zephyr.errors import InputError
from marin_zephyr.formats.files import InputFile
from marin_zephyr.formats.provenance import finish
from marin_zephyr.formats.rejects import Desk
from marin_zephyr.formats.streams import blocks
from marin_zephyr.frames import BATCH_BYTES, BATCH_ROWS
from marin_zephyr.nodes import ReadOptions

_SCHEMA = {
    "url": pl.String,
    "date": pl.String,
    "type": pl.String,
    "content_type": pl.String,
    "status": pl.Int64,
    "payload": pl.Binary,
    "headers": pl.String,
}
_HEAD_BYTES = 1 << 20
_RECORD_BYTES = 1 << 30
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")
_BLANK = re.compile(rb"[\r\n]*")
_NEXT = b"\nWARC/"
_LENGTH = re.compile(rb"(?im)^content-length:[ \t]*(\d{1,18})[ \t]*\r?$")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]{0,200})?\r\n")
_STATUS = re.compile(rb"HTTP/\d(?:\.\d)? +(\d{3})\b")

type _Headers = list[tuple[str, str]]


class _DamagedError(ValueError):
    """A record that cannot be taken. ``is_framed``: it ends where it says, so the next one begins there."""

    def __init__(self, reason: str, *, is_framed: bool = True) -> None:
        super().__init__(reason)
        self.is_framed = is_framed


def read(file: InputFile, options: ReadOptions, desk: Desk) -> Iterator[pl.DataFrame]:
    """Frames of a file's records, in order."""
    batch = _Batch()
    window = _Window(blocks(file.url, file.compression))
    number = 0
    while window.skip_blank_lines():
        number += 1
        offset, size = window.offset, 0
        try:
            start, size = _framed(window)
            row = _row(bytes(window.data[:start]), bytes(window.data[start:size]), offset)
            for name in options.string_columns:
                if not isinstance(row.get(name), str | None):
                    raise _DamagedError(f"{name!r} is {type(row[name]).__name__}, not a string")
        except _DamagedError as e:
            if not e.is_framed:
                size = window.next_head()
                if window.error is not None and size == len(window.data):
                    break  # what is left is told with the error
            desk.record(file, line=None, offset=offset, reason=str(e), raw=bytes(window.data[:size]))
        else:
            batch.add(row, number, offset)
        window.drop(size)
        if batch.is_full:
            yield batch.frame(file, options, desk)
            batch = _Batch()
    if batch.rows:
        yield batch.frame(file, options, desk)
    if window.error is not None:
        if desk.policy == "raise":
            raise window.error
        reason = (
            f"{str(window.error).removeprefix(f'{file.url}: ')}; {len(window.data):,} bytes of a cut record and all "
            "after it are lost"
        )
        desk.record(file, line=None, offset=window.offset, reason=reason, raw=bytes(window.data))


@dataclass
class _Batch:
    """Rows on their way into a frame."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    num_bytes: int = 0

    def add(self, row: dict[str, Any], number: int, offset: int) -> None:
        self.rows.append(row)
        self.numbers.append(number)
        self.offsets.append(offset)
        self.num_bytes += len(row["payload"]) + len(row["headers"])

    @property
    def is_full(self) -> bool:
        return len(self.rows) == BATCH_ROWS or self.num_bytes >= BATCH_BYTES // 2

    def frame(self, file: InputFile, options: ReadOptions, desk: Desk) -> pl.DataFrame:
        columns = {name: [row[name] for row in self.rows] for name in _SCHEMA}
        made = pl.DataFrame(columns, schema=_SCHEMA)
        return finish(made, file, options, rows=self.numbers, offsets=self.offsets, desk=desk)


class _Window:
    """The bytes of a stream from where reading has come to, as many as were asked for.

    ``error`` is what ended the stream too early: then ``data`` holds all that could still be had.
    """

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.data = bytearray()
        self.offset = 0
        self.error: InputError | None = None
        self._pieces = pieces
        self._is_over = False

    def fill(self, size: int) -> bool:
        """Whether there are so many bytes."""
        while len(self.data) < size and not self._is_over:
            try:
                self.data += next(self._pieces)
            except StopIteration:
                self._is_over = True
            except InputError as e:
                self.error, self._is_over = e, True
        return len(self.data) >= size

    def drop(self, size: int) -> None:
        """Goes on by so many bytes."""
        del self.data[:size]
        self.offset += size

    def skip_blank_lines(self) -> bool:
        """Goes on to the next record; False if there is none."""
        while self.fill(1):
            found = _BLANK.match(self.data)
            blank = found.end() if found else 0
            if not blank:
                return True
            self.drop(blank)
        return False

    def next_head(self) -> int:
        """How far the next line lies that looks like the head of a record; all that there is if none does."""
        looked = 1
        while True:
            found = self.data.find(_NEXT, looked)
            if found >= 0:
                return found + 1
            looked = max(1, len(self.data) - len(_NEXT) + 1)
            if not self.fill(len(self.data) + 1):
                return len(self.data)

    def find_block(self) -> int | None:
        """Where the block of the record at hand begins: after the first blank line, if no other head comes before."""
        looked = 0
        while True:
            found = _BLANK_LINE.search(self.data, looked, _HEAD_BYTES)
            end = None if found is None else found.end()
            if self.data.find(_NEXT, looked, end or _HEAD_BYTES) >= 0:
                return None
            if end is not None or len(self.data) >= _HEAD_BYTES:
                return end
            looked = max(0, len(self.data) - len(_NEXT))
            if not self.fill(len(self.data) + 1):
                return None


def _framed(window: _Window) -> tuple[int, int]:
    """Where the block of the record at hand begins, and where it ends.

    Raises:
        _DamagedError: this is no record, or it does not end where it says.
    """
    window.fill(5)
    if not window.data.startswith(b"WARC/"):
        raise _DamagedError("not a WARC record: the header does not begin with WARC/", is_framed=False)
    start = window.find_block()
    if start is None:
        raise _DamagedError("not a WARC record: the header does not end", is_framed=False)
    found = _LENGTH.search(bytes(window.data[:start]))
    if found is None:
        raise _DamagedError("not a WARC record: the header gives no length", is_framed=False)
    length = int(found[1])
    size = start + length
    if size > _RECORD_BYTES:
        raise _DamagedError(f"a record of more than 1 GiB: the header says {length:,} bytes", is_framed=False)
    if not window.fill(size):
        reason = f"truncated: the record says {length:,} bytes, {len(window.data) - start:,} are there"
        raise _DamagedError(reason, is_framed=False)
    window.fill(size + 9)
    after = bytes(window.data[size : size + 9])
    if not after.startswith(b"\r\n\r\n") and not b"WARC/".startswith(after.lstrip(b"\r\n")[:5]):
        reason = f"not a WARC record: the header says {length:,} bytes, and no record begins after them"
        raise _DamagedError(reason, is_framed=False)
    return start, size


def _headers(text: str) -> _Headers:
    """Names and values after the first line; a line that begins with a blank goes on with the one before."""
    headers: _Headers = []
    for line in text.split("\n")[1:]:
        if line[:1] in (" ", "\t") and headers:
            headers[-1] = (headers[-1][0], f"{headers[-1][1]} {line.strip()}")
        elif ":" in line:
            name, _, value = line.partition(":")
            headers.append((name.strip(), value.strip()))
    return headers


def _value(headers: _Headers, name: str) -> str | None:
    return next((value for key, value in headers if key.lower() == name), None)


def _row(head: bytes, block: bytes, offset: int) -> dict[str, Any]:
    try:
        warc = _headers(head.decode("utf-8"))
    except UnicodeDecodeError as e:
        place = offset + e.start
        raise _DamagedError(f"not UTF-8: byte 0x{head[e.start]:02x} at offset {place:,}, in the header") from e
    content_type, status, payload, http = _value(warc, "content-type"), None, block, []
    if (content_type or "").lower().startswith("application/http"):
        end = _BLANK_LINE.search(block)
        head, payload = (block, b"") if end is None else (block[: end.start()], block[end.end() :])
        try:
            http = _headers(head.decode("utf-8"))
        except UnicodeDecodeError:
            http = _headers(head.decode("latin-1"))  # what HTTP says headers are
        found = _STATUS.match(head)
        status = int(found[1]) if found else None
        content_type = _value(http, "content-type")
        payload = _decoded(payload, http)
    url = _value(warc, "warc-target-uri")
    return {
        "url": url.removeprefix("<").removesuffix(">") if url else url,  # as WARC 1.0 had it
        "date": _value(warc, "warc-date"),
        "type": _value(warc, "warc-type"),
        "content_type": content_type,
        "status": status,
        "payload": payload,
        "headers": json.dumps({"warc": _joined(warc), "http": _joined(http)}, ensure_ascii=False),
    }


def _joined(headers: _Headers) -> dict[str, str]:
    joined: dict[str, str] = {}
    for name, value in headers:
        joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined


def _decoded(body: bytes, headers: _Headers) -> bytes:
    if "chunked" in (_value(headers, "transfer-encoding") or "").lower():
        body = _dechunked(body)
    for encoding in reversed((_value(headers, "content-encoding") or "").lower().split(",")):
        body = _expanded(body, encoding.strip())
    return body


def _dechunked(body: bytes) -> bytes:
    chunks, at = [], 0
    while head := _CHUNK.match(body, at):
        size, start = int(head[1], 16), head.end()
        if size == 0:
            return b"".join(chunks)
        if body[start + size : start + size + 2] != b"\r\n":
            break
        chunks.append(body[start : start + size])
        at = start + size + 2
    if head or chunks:
        raise _DamagedError(f"payload damaged: its chunks break off at byte {at:,} of {len(body):,}")
    return body


def _expanded(body: bytes, encoding: str) -> bytes:
    try:
        if encoding in ("gzip", "x-gzip") and body.startswith(b"\x1f\x8b"):
            return _inflated(body, 31)
        if encoding == "deflate" and body:
            for bits in (15, -15):
                try:
                    return _inflated(body, bits)
                except zlib.error:
                    continue
        if encoding == "zstd" and body.startswith(b"\x28\xb5\x2f\xfd"):
            decompressor = zstandard.ZstdDecompressor().decompressobj()
            body = decompressor.decompress(body)
            if not decompressor.eof:
                raise _DamagedError("payload truncated: its zstd data does not end")
        if encoding == "br" and body:
            raise _DamagedError("payload encoded with br: only gzip, deflate and zstd can be decoded")
    except (zlib.error, zstandard.ZstdError) as e:
        raise _DamagedError(f"payload damaged: {encoding} ({e})") from e
    return body


def _inflated(body: bytes, bits: int) -> bytes:
    pieces, left = [], _RECORD_BYTES
    while body:
        inflate = zlib.decompressobj(bits)
        pieces.append(inflate.decompress(body, left))
        left -= len(pieces[-1])
        if not inflate.eof:
            raise _DamagedError(
                "payload truncated: its compressed data does not end" if left else "payload of more than 1 GiB"
            )
        body = inflate.unused_data if inflate.unused_data.startswith(b"\x1f\x8b") else b""
    return b"".join(pieces)
