"""CSV with a header line, as text: every column is a string unless the caller casts it.

Guessing types from the first rows is how a late ``1.5`` becomes ``1``. So nothing is guessed: ``col("n").cast(int)``
says what is meant, and fails on what is not. An empty field is an empty string.

See: RFC 4180.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

import polars as pl

from marin_zephyr.formats.files import InputFile
from marin_zephyr.formats.lines import Line, file_blocks
from marin_zephyr.formats.provenance import finish
from marin_zephyr.formats.rejects import Desk
from marin_zephyr.frames import BATCH_ROWS
from marin_zephyr.nodes import ReadOptions


def read(file: InputFile, options: ReadOptions, desk: Desk) -> Iterator[pl.DataFrame]:
    """Frames of a file's records. A quoted field may hold newlines."""
    header: list[str] | None = None
    records: list[list[str]] = []
    numbers: list[int] = []
    offsets: list[int] = []

    def frame() -> pl.DataFrame:
        assert header is not None
        columns = {name: [record[i] for record in records] for i, name in enumerate(header)}
        made = pl.DataFrame(columns, schema=dict.fromkeys(header, pl.String))
        return finish(made, file, options, rows=numbers, offsets=offsets, desk=desk)

    for line in _records(file, desk):
        try:
            fields = next(csv.reader(io.StringIO(line.data.decode("utf-8"), newline=""), strict=True))
            if header is not None and len(fields) != len(header):
                raise ValueError(f"{len(fields)} fields under a header of {len(header)}")
            if header is None and len(set(fields)) != len(fields):
                raise ValueError("the header names a column twice")
            if header is None and any("\0" in field for field in fields):
                raise ValueError("the header holds a NUL, which no column's name can")
        except (ValueError, csv.Error) as e:
            desk.record(file, line=line.number, offset=line.offset, reason=f"not a CSV record: {e}", raw=line.data)
            if header is None:
                return  # without a header the fields have no names: the next line must not pass for one
            continue
        if header is None:
            header = fields
            continue
        records.append(fields)
        numbers.append(line.nth)
        offsets.append(line.offset)
        if len(records) == BATCH_ROWS:
            yield frame()
            records, numbers, offsets = [], [], []
    if records:
        yield frame()


def _records(file: InputFile, desk: Desk) -> Iterator[Line]:
    """Lines, joined where a quoted field runs over their ends (an odd number of quotes so far)."""
    held: list[bytes] = []
    quotes = number = offset = 0
    for block in file_blocks(file, desk):
        for line in block.lines():
            if not held:
                if not line.data.strip():
                    continue
                number, offset, quotes = line.nth, line.offset, 0
            held.append(line.data)
            quotes += line.data.count(b'"')
            if quotes % 2 == 0:
                yield Line(b"\n".join(held), number, offset)
                held = []
    if held:
        yield Line(b"\n".join(held), number, offset)
