"""A sample of a corpus to compare engines on: the first documents of some of its files.

It depends on the files alone: they lie evenly among all, and each gives an equal share of the sample. Only their
beginnings are read, so that the sample costs the same of a large corpus; what lies behind is the business of
`engines.CheckedEngine`, which compares on the way.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from marin_zephyr.formats.files import REJECTS, InputFile
from marin_zephyr.formats.splits import Span
from marin_zephyr.tokens.batches import Rows
from marin_zephyr.tokens.documents import Dirt, read_rows

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_FILES, _BYTES_A_FILE = 8, 64 << 20  # to begin a file costs time as well: the more text, the more files
_ONE_IN = 1024  # bytes of text: the reference takes some fifty times as long for one as the fast engine does
_LEAST_BYTES, _MOST_BYTES = 128 << 10, 4 << 20
_LINES_FOR_TEXT = 16  # bytes of lines read for a byte of text wanted: what else they hold is not known


def sample_texts(files: Sequence[InputFile], *, text_field: str) -> "Iterator[pa.LargeStringArray]":
    """Yields the first documents of some of ``files``, those of one file at once.

    Raises:
        InputError: a file cannot be read.
        SchemaError: the first rows of a file have no such column.
    """
    import polars as pl
    import pyarrow as pa

    num_bytes = sum(file.weight for file in files)
    num_chosen = min(_MOST_FILES, len(files), 2 + num_bytes // _BYTES_A_FILE)
    chosen = [(2 * i + 1) * len(files) // (2 * num_chosen) for i in range(num_chosen)]
    wanted = min(max(_LEAST_BYTES, num_bytes // _ONE_IN), _MOST_BYTES) // num_chosen
    # What cannot be taken is passed over in silence: the run itself will say what it is.
    dirt, columns = Dirt("skip", None, Path(REJECTS)), (text_field,)
    for number in chosen:
        with closing(
            read_rows([_beginning(files[number], wanted)], columns=columns, text_columns=columns, dirt=dirt)
        ) as items:
            rows = next(items, None)
        if isinstance(rows, Rows):
            texts = rows.frame[text_field].cast(pl.String).fill_null("")
            enough = texts.str.len_bytes().cum_sum().search_sorted(wanted, side="left")
            yield texts[: enough + 1].rechunk().to_arrow().cast(pa.large_string())


def _beginning(file: InputFile, wanted: int) -> InputFile:
    """Of lines the first ones, which should hold so many bytes of text: a reader's block of them holds far more."""
    if file.format != "jsonl" or file.span is not None:
        return file
    size = wanted * _LINES_FOR_TEXT
    return replace(file, span=Span(begin=0, end=size, num_bytes=size))
