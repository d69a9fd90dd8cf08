"""The rows of an input, in an order that depends on the files alone.

Files are read through the package's formats, one after the other, each from its start: row ``n`` of a file is the same
for ever, which lets a killed run go on at a row, and a token be traced to its file. What a reader refuses goes to a
desk that belongs to the file, so that a file's rejects, too, are a function of that file alone: a file that is entered
again after a kill is read from its start and refuses what it refused before, and one that was finished is not opened.

Only the columns that are asked for are read, and the column ``source`` where the first row of a file has it as text.
"""

import json
import logging
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from marin_zephyr.errors import InputError, SchemaError
from marin_zephyr.formats import infer, reader, remote
from marin_zephyr.formats.files import REJECTS, UNKNOWN, InputFile, check_unchanged, list_files
from marin_zephyr.formats.rejects import ASIDE, Desk
from marin_zephyr.formats.streams import blocks
from marin_zephyr.nodes import RAW, FileSource, OnError, ReadOptions
from marin_zephyr.reporting.refusals import Refused, check_limit, merge_refused
from marin_zephyr.tokens.batches import Rows

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

RUN_BYTES = 1 << 20
"""Text of a run, about: while it is encoded, it takes some hundred bytes a token."""
_SOURCE = "source"
_PEEK_BYTES = 1 << 20


class Cursor(NamedTuple):
    """A place in the input: so many rows of this file, by its number, lie before it."""

    file: int = 0
    row: int = 0


BEGINNING = Cursor()


class Document(NamedTuple):
    """One row's text. ``num_bytes`` is its length in UTF-8 bytes."""

    text: str
    num_bytes: int


@dataclass(frozen=True)
class FileEnd:
    """A file was read to its end.

    Attributes:
        file: its number.
        num_rows: the rows that its reader yielded.
        num_bytes: bytes of its text.
        refused: the records that its reader refused.
        rejects: where those are kept, if they are.
    """

    file: int
    num_rows: int
    num_bytes: int
    refused: Refused
    rejects: Path | None


@dataclass(frozen=True)
class Dirt:
    """What becomes of records that cannot be taken.

    Attributes:
        on_error: ``raise``, ``skip`` or ``quarantine``.
        max_bad: how many may be refused: a number, a share of the rows if below 1, or any number.
        directory: where rejects are kept under ``quarantine``.
        aside: what else than a repair helps, for the message under ``raise``.
    """

    on_error: OnError
    max_bad: float | None
    directory: Path
    aside: str = ASIDE

    def desk(self, name: str) -> Desk:
        """A desk with a rejects file of that name, which is written anew."""
        return Desk(self.on_error, self.directory / name, aside=self.aside)

    def check(self, refused: Refused, *, num_rows: int | None = None) -> None:
        """Raises `TooManyBadRecordsError` if more was refused than may be; a share is checked if the rows are known."""
        check_limit(refused, self.max_bad, stage="tokenize", rows_in=num_rows)


def input_files(inputs: str | Path | Sequence[str | Path]) -> tuple[InputFile, ...]:
    """The files of ``inputs``, sorted by name within each input; a file that is given twice is read once.

    Args:
        inputs: a file, a directory with all below it (names that begin with ``.`` or ``_``, and directories called
            ``rejects``, are left out), a glob, a URL, a zip archive, or a list of these. Of what a directory or glob
            holds, files of no known format are left out, and so is plain text beside files of records.

    Raises:
        InputError: an input does not exist, is unfinished, or holds no file that can be read.
    """
    given = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    if "" in given:
        raise InputError("an input has no name: an empty variable? Name a file, '.' for this directory")
    files = {file.url: file for one in reversed(given) for file in reversed(_expand(str(one)))}
    if not files:
        raise InputError("no inputs were given: name at least one file, directory, glob or URL")
    if num_texts := sum(file.format == "text" for file in files.values()):
        logger.warning(
            "plain text in %d files: each line is a document; `zephyr normalize --documents file` makes each file one",
            num_texts,
        )
    return tuple(reversed(files.values()))


def read_rows(
    files: Sequence[InputFile],
    *,
    columns: tuple[str, ...],
    text_columns: tuple[str, ...],
    dirt: Dirt,
    begin: Cursor = BEGINNING,
) -> Generator[Rows | FileEnd]:
    """Yields the rows of ``files`` from ``begin`` on, in runs, and after each file its end.

    Raises:
        InputError: a file cannot be read, or changes while it is read.
        SchemaError: the first rows of a file have no such column.
        BadRecordError: a record cannot be taken, under ``raise``.
        TooManyBadRecordsError: more records cannot be taken than ``max_bad``.
    """
    refused: Refused = {}
    for number in range(begin.file, len(files)):
        skip = begin.row if number == begin.file else 0
        file, desk = files[number], dirt.desk(f"input-{number:05d}.jsonl")
        seen = _seen(file)
        check_unchanged(file)
        row = num_bytes = 0
        try:
            for frame in _frames(file, columns, text_columns, desk):
                dirt.check(_sum(refused, desk.refused))
                sizes = _sizes(frame, columns)
                num_bytes += int(sizes.sum())
                first = max(0, skip - row)
                rest = frame[first:] if first else frame
                yield from _runs(rest, sizes[first:], columns, file, number, row + first)
                row += frame.height
        finally:
            desk.close()
        _check_unchanged(file, seen)
        merge_refused(refused, desk.refused)
        dirt.check(refused)
        yield FileEnd(number, row, num_bytes, desk.refused, desk.path if desk.path.exists() else None)


def read_documents(files: Sequence[InputFile], *, text_field: str = "text") -> Iterator[Document]:
    """Yields every row of ``files`` as text; a null is an empty one. Raises as `read_rows` does."""
    dirt = Dirt("raise", None, Path(REJECTS), aside="take what `zephyr normalize` makes of these inputs")
    for rows in read_rows(files, columns=(text_field,), text_columns=(text_field,), dirt=dirt):
        if isinstance(rows, Rows):
            texts = rows.frame[text_field].fill_null("")
            yield from map(Document, texts.to_list(), texts.str.len_bytes().to_list())


def _expand(one: str) -> list[InputFile]:
    options = ReadOptions()
    source = FileSource(inputs=(one,), format=None, on_error="raise", root=None, shard_bytes=None, options=options)
    found = list_files(source, lenient=True)
    known = [file for file in found if file.format != UNKNOWN]
    if not known and len(found) == 1:
        infer(found[0].url)  # which says what it could be
    if not known:
        raise InputError(f"input {one}: none of its {len(found)} files is of a known format")
    taken = [file for file in known if file.format != "text"] or known
    if len(taken) < len(found):
        logger.warning("%s: %d of %d files hold no records and are not read", one, len(found) - len(taken), len(found))
    return taken


def _frames(
    file: InputFile, columns: tuple[str, ...], text_columns: tuple[str, ...], desk: Desk
) -> "Iterator[pl.DataFrame]":
    import polars as pl

    is_json = file.format in ("jsonl", "json")
    sources = (_SOURCE,) if _SOURCE not in columns and _has_source(file) else ()
    strings = (*text_columns, *(sources if is_json else ()))
    nested = [name for name in columns if is_json and name not in text_columns]
    flat = tuple(name for name in columns if name not in nested)
    options = ReadOptions(columns=(*flat, *sources), string_columns=strings, raw=bool(nested))
    is_first = True
    for frame in reader(file.format)(file, options, desk):
        if nested:
            frame = frame.with_columns(frame[RAW].cast(pl.String).alias(name) for name in nested).drop(RAW)
        if is_first and frame.height:
            is_first = False
            if any(frame[name].null_count() == frame.height for name in columns):
                _check_columns(file, columns, desk)
        yield frame


def _check_columns(file: InputFile, columns: tuple[str, ...], desk: Desk) -> None:
    """Readers give a column that is absent as nulls: whether one is, is asked where the first rows have nothing."""
    silent = Desk("skip", desk.path)
    frame = next((f for f in reader(file.format)(file, ReadOptions(), silent) if f.height), None)
    for name in columns:
        if frame is not None and name not in frame.columns:
            raise SchemaError(
                f"{file.url} has no column {name!r}: it has {', '.join(frame.columns)}; name one of these instead"
            )


def _has_source(file: InputFile) -> bool:
    """Whether to ask a file for the column ``source``: of lines of JSON, only if the first has it as text.

    To ask for a column that no row has would have Arrow convert all the others in search of it.
    """
    if file.format not in ("jsonl", "json"):
        return file.format != "text"
    head = b""
    try:
        for piece in blocks(file.url, file.compression):
            head = (head + piece).lstrip()
            if b"\n" in head or len(head) > _PEEK_BYTES:
                break
        row = json.loads(head.partition(b"\n")[0])
    except (InputError, ValueError, RecursionError):  # the reader will say what is wrong
        return False
    return isinstance(row, dict) and isinstance(row.get(_SOURCE), str)


def _runs(
    frame: "pl.DataFrame",
    sizes: "NDArray[np.int64]",
    columns: tuple[str, ...],
    file: InputFile,
    number: int,
    first_row: int,
) -> Iterator[Rows]:
    """The frame in runs, each of which ends with the row that fills it."""
    import numpy as np
    import polars as pl

    sources = pl.Series(_SOURCE, [file.name], dtype=pl.String).new_from_index(0, frame.height)
    if _SOURCE not in columns and _SOURCE in frame.columns and frame.schema[_SOURCE] == pl.String:
        sources = frame[_SOURCE].fill_null(file.name)
    frame = frame if frame.columns == [*columns] else frame.select(columns)
    ends, start = np.cumsum(sizes), 0
    while start < frame.height:
        before = int(ends[start - 1]) if start else 0
        stop = min(int(np.searchsorted(ends, before + RUN_BYTES)) + 1, frame.height)
        taken = slice(start, stop)
        # Of a frame of one row Polars copies all that it touches.
        run = frame if stop - start == frame.height else frame[taken]
        yield Rows(number, first_row + start, run, sources[taken], int(ends[stop - 1]) - before)
        start = stop


def _sizes(frame: "pl.DataFrame", columns: tuple[str, ...]) -> "NDArray[np.int64]":
    """Bytes of each row, those of nested columns in the mean."""
    import numpy as np
    import polars as pl

    sizes = np.zeros(frame.height, np.int64)
    for name in columns:
        if frame.schema[name] == pl.String:
            sizes += _text_bytes(frame[name])
        else:
            sizes += int(frame[name].estimated_size()) // max(1, frame.height)
    return sizes


def _text_bytes(texts: "pl.Series") -> "NDArray[np.int64]":
    """UTF-8 bytes of each text, 0 of a null, read off Arrow's views of them: no text is touched, let alone copied.

    See: the Arrow columnar format, "Variable-size Binary View Layout": 16 bytes a text, the first 4 its length.
    """
    import numpy as np
    import polars as pl

    views = texts.rechunk().to_arrow(compat_level=pl.CompatLevel.newest())
    words = np.frombuffer(views.buffers()[1], np.int32)
    lengths = words[4 * views.offset : 4 * (views.offset + len(views)) : 4].astype(np.int64)
    return lengths * views.is_valid().to_numpy(zero_copy_only=False) if views.null_count else lengths


def _sum(refused: Refused, more: Refused) -> Refused:
    total = {kind: dict(entry) for kind, entry in refused.items()}
    merge_refused(total, more)
    return total


def _seen(file: InputFile) -> list[tuple[str, int, str]]:
    """What the store behind a URL tells of a file now. It may name a version otherwise than a listing of many does."""
    return remote.find(file.url) if "://" in file.url else []


def _check_unchanged(file: InputFile, seen: list[tuple[str, int, str]]) -> None:
    """Refuses a file that is no longer the one that was listed, or, behind a URL, that was seen before."""
    check_unchanged(file)
    if _seen(file) != seen:
        raise InputError(f"{file.url}: was changed while the run was at work; run again when nobody writes to it")
