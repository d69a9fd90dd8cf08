"""Plain text: one row a line, or one row a file, in the column ``text``.

A line is given without its end (``\\n`` or ``\\r\\n``); a file is given as it stands, its byte order mark excepted.
Nothing is repaired: bytes that are no UTF-8 go to the desk.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from marin_zephyr.errors import InputError
from marin_zephyr.formats.files import InputFile
from marin_zephyr.formats.lines import BOM, Block, file_blocks
from marin_zephyr.formats.provenance import finish, numbered
from marin_zephyr.formats.rejects import Desk
from marin_zephyr.formats.streams import blocks
from marin_zephyr.frames import BATCH_ROWS
from marin_zephyr.nodes import ReadOptions


def read(file: InputFile, options: ReadOptions, desk: Desk) -> Iterator[pl.DataFrame]:
    """Frames with the column ``text``."""
    if options.unit == "file":
        yield from _read_whole(file, options, desk)
        return
    for block in file_blocks(file, desk):
        texts, nths, offsets = _lines(block, file, desk)
        for start in range(0, len(texts), BATCH_ROWS):
            cut = slice(start, start + BATCH_ROWS)
            frame = pl.DataFrame({"text": pl.Series(texts[cut], dtype=pl.String)})
            rows = numbered(np.array(nths[cut], dtype=np.int64), block, options)
            yield finish(frame, file, options, rows=rows, offsets=offsets[cut], desk=desk)


def _lines(block: Block, file: InputFile, desk: Desk) -> tuple[list[str], list[int], list[int]]:
    texts: list[str] = []
    nths: list[int] = []
    offsets: list[int] = []
    for line in block.lines():
        try:
            texts.append(line.data.decode("utf-8"))
        except UnicodeDecodeError as e:
            reason = _not_utf8(line.data, e, line.offset)
            desk.record(file, line=line.number, offset=line.offset, reason=reason, raw=line.data)
            continue
        nths.append(line.nth)
        offsets.append(line.offset)
    return texts, nths, offsets


def _read_whole(file: InputFile, options: ReadOptions, desk: Desk) -> Iterator[pl.DataFrame]:
    pieces: list[bytes] = []
    try:
        pieces.extend(blocks(file.url, file.compression))
    except InputError as e:
        if desk.policy == "raise":
            raise
        reason = str(e).removeprefix(f"{file.url}: ")
        desk.record(file, line=None, offset=0, reason=reason, raw=b"".join(pieces))
        return
    data = b"".join(pieces)
    start = len(BOM) if data.startswith(BOM) else 0
    try:
        text = data[start:].decode("utf-8")
    except UnicodeDecodeError as e:
        line = data.count(b"\n", 0, start + e.start) + 1
        reason = _not_utf8(data[start:], e, start)
        desk.record(file, line=line, offset=start + e.start, reason=reason, raw=data)
        return
    frame = pl.DataFrame({"text": pl.Series([text], dtype=pl.String)})
    yield finish(frame, file, options, rows=[1], offsets=[start], desk=desk)


def _not_utf8(data: bytes, error: UnicodeDecodeError, offset: int) -> str:
    return f"not UTF-8: byte 0x{data[error.start]:02x} at offset {offset + error.start:,}"
