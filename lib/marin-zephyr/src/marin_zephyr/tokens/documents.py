"""The documents of an input, in an order that depends on the files alone.

Inputs are Parquet files with a text column or JSON Lines; anything else is normalised into these first. Files are read
in the order of their names, rows in the order they have in the file, so that row ``n`` of an input is one document for
ever: this is what lets a killed run go on at a row, and a token be traced to its file."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import has_magic
from itertools import batched, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from marin_zephyr.errors import BadRecordError, InputError, SchemaError
from marin_zephyr.formats.files import check_whole, encodable, listing, matching

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_PARQUET = (".parquet",)
_JSON_LINES = (".jsonl", ".ndjson")
_ROWS_AT_ONCE = 1024

# A run of rows: how many, and text, size and source of each, read only when asked for: skipping costs no decoding.
type _Chunk = tuple[int, Iterator[tuple[str, int, str | None]]]


@dataclass(frozen=True)
class InputFile:
    """One input file: where it lies, and its name relative to the input that was given."""

    path: Path
    name: str


class Document(NamedTuple):
    """One row.

    Attributes:
        file: the number of its input file.
        text: its text.
        num_bytes: the length of the text in UTF-8 bytes.
        source: the file that it first came from, as a corpus's column ``source`` says; else the input file's name.
    """

    file: int
    text: str
    num_bytes: int
    source: str


def input_files(inputs: str | Path | Sequence[str | Path]) -> tuple[InputFile, ...]:
    """The files of ``inputs``, sorted by name within each input.

    Args:
        inputs: a file, a directory (its own Parquet and JSON Lines files, not those of directories below; names that
            begin with ``.`` or ``_`` are left out), a glob, or a list of these.

    Raises:
        InputError: an input does not exist, is unfinished, holds no file that can be read, or is of another format.
    """
    given = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    files = [file for one in given for file in _expand(one)]
    if not files:
        raise InputError("no inputs were given: name at least one Parquet or JSON Lines file, a directory or a glob")
    return tuple(files)


def count_rows(files: Sequence[InputFile]) -> int | None:
    """How many rows `read_documents` gives, where the files tell without being read: JSON Lines do not."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if any(file.path.suffix not in _PARQUET for file in files):
        return None
    try:
        return sum(pq.read_metadata(file.path).num_rows for file in files)
    except (pa.ArrowException, OSError):  # reading will say which, and why
        return None


def read_documents(files: Sequence[InputFile], *, text_field: str = "text", skip: int = 0) -> Iterator[Document]:
    """Yields every row of ``files`` after the first ``skip``; a null text is an empty one.

    Raises:
        InputError: a file cannot be read.
        SchemaError: a Parquet file has no such column, or it holds no text.
        BadRecordError: a JSON line is malformed, lacks the field, or its text is no valid Unicode.
    """
    for number, file in enumerate(files):
        chunks = _parquet_chunks if file.path.suffix in _PARQUET else _json_chunks
        for num_rows, texts in chunks(file.path, text_field):
            if skip >= num_rows:
                skip -= num_rows
                continue
            for text, num_bytes, source in islice(texts, skip, None):
                yield Document(number, text, num_bytes, source or file.name)
            skip = 0


def _expand(one: str | Path) -> list[InputFile]:
    with listing(str(one)):
        found = _found(one)
    check_whole(found)
    return [InputFile(path=p, name=encodable(p.name)) for p in sorted(found)]


def _found(one: str | Path) -> list[Path]:
    path = Path(one)
    known = _PARQUET + _JSON_LINES
    if path.is_dir():
        found = [p for p in path.iterdir() if p.suffix in known and p.is_file() and p.name[0] not in "._"]
        wanted = "no .parquet, .jsonl or .ndjson file lies in it"
    elif path.is_file():
        if path.suffix not in known:
            raise InputError(f"{path} is neither Parquet nor JSON Lines: normalise it first (`zephyr normalize`)")
        found, wanted = [path], ""
    elif has_magic(str(one)):
        found = [p for p in map(Path, matching(str(one))) if p.suffix in known]
        wanted = "no .parquet, .jsonl or .ndjson file matches it"
    else:
        found, wanted = [], "it does not exist"
    if not found:
        raise InputError(f"input {one}: {wanted}")
    return found


def _parquet_chunks(path: Path, field: str) -> Iterator[_Chunk]:
    """One chunk a row group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            _check_column(path, file.schema_arrow, field)
            columns = [field]
            if "source" in file.schema_arrow.names and _is_text(file.schema_arrow.field("source").type):
                columns.append("source")
            for group in range(file.num_row_groups):
                yield file.metadata.row_group(group).num_rows, _parquet_texts(path, file, group, columns)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be read as Parquet: {error}") from error


def _parquet_texts(
    path: Path, file: "pq.ParquetFile", group: int, columns: list[str]
) -> Iterator[tuple[str, int, str | None]]:
    for batch in file.iter_batches(_ROWS_AT_ONCE, row_groups=[group], columns=columns):
        try:
            texts, *rest = (batch.column(name).to_pylist() for name in columns)
        except UnicodeDecodeError as error:
            raise BadRecordError(f"{path}, row group {group}: {columns[0]!r} is no valid UTF-8: {error}") from None
        for text, source in zip(texts, rest[0] if rest else repeat(None, len(texts)), strict=True):
            yield text or "", len((text or "").encode()), source


def _check_column(path: Path, schema: "pa.Schema", field: str) -> None:
    if field not in schema.names:
        raise SchemaError(
            f"{path} has no column {field!r}: it has {', '.join(schema.names)}; name one as the text field"
        )
    kind = schema.field(field).type
    if not _is_text(kind):
        raise SchemaError(f"{path}: column {field!r} is {kind}, not a string")


def _is_text(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    return kind in (pa.string(), pa.large_string(), pa.string_view())


def _json_chunks(path: Path, field: str) -> Iterator[_Chunk]:
    """Chunks of `_ROWS_AT_ONCE` lines; blank lines are no rows."""
    try:
        with path.open("rb") as file:
            lines = ((number, line) for number, line in enumerate(file, 1) if not line.isspace())
            for chunk in batched(lines, _ROWS_AT_ONCE):
                yield len(chunk), (_json_text(path, number, line, field) for number, line in chunk)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


def _json_text(path: Path, number: int, line: bytes, field: str) -> tuple[str, int, str | None]:
    row: Any = None
    try:
        row = json.loads(line)
        text = "" if row[field] is None else row[field]
        source = row.get("source")
        return text, len(text.encode()), source if isinstance(source, str) else None
    except UnicodeEncodeError as error:
        reason = f"field {field!r} holds a lone surrogate at character {error.start}"
    except ValueError as error:  # malformed JSON, or bytes that are no UTF-8
        reason = str(error)
    except RecursionError:
        reason = "nested too deep"
    except KeyError:
        reason = f"no field {field!r}: it has {', '.join(row)}"
    except (TypeError, AttributeError):
        reason = f"not an object with a string {field!r}"
    raise BadRecordError(f"{path}, line {number}: {reason}")
