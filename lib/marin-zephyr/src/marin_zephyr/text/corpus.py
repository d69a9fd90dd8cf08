"""A corpus: the directory of parquet shards that every step of text preparation reads and writes.

Four columns, one row a document:

    id          string   hex of the xxh3_128 hash of the text: equal texts have equal ids, on every machine
    text        string   normalised: UTF-8 without byte order mark or NUL, lines ended by a line feed
    source      string   the file it came from, relative to the corpus's root, with forward slashes
    num_bytes   int64    the length of the text in bytes of UTF-8

Documents are ordered by source and by their position in it; a step that drops documents keeps the order of the rest.
Further columns travel along untouched. Decisions (which document is a copy, which goes to validation) need ids and
lengths only, so they are taken from an *index*, these small columns of all shards, while texts stream past on workers.
"""

from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from marin_zephyr.dataset import Dataset
from marin_zephyr.errors import InputError
from marin_zephyr.formats.files import check_whole
from marin_zephyr.progress import Progress
from marin_zephyr.session import RunReport, Session
from marin_zephyr.text.lookups import Lookup, encode_ids

# Bytes of text worked on at a time: the arrays over its words, about ten times as much, stay near the cache.
SLICE_BYTES = 1 << 20

COLUMNS = ("id", "text", "source", "num_bytes")


@dataclass(frozen=True)
class Size:
    """How much text: a number of documents, and of bytes of UTF-8 in them."""

    documents: int
    bytes: int

    def __sub__(self, other: "Size") -> "Size":
        return Size(self.documents - other.documents, self.bytes - other.bytes)


@dataclass(frozen=True)
class Corpus:
    """The shards of one corpus directory that hold documents, in order. Make one with `open_corpus`."""

    directory: Path
    files: tuple[Path, ...]

    def index(self, *columns: str) -> pl.DataFrame:
        """The named columns of all documents, in order: in memory, so not the texts.

        Raises:
            InputError: a shard is damaged.
        """
        return pl.concat([_columns(path, list(columns)) for path in self.files])

    def size(self) -> Size:
        """The documents and bytes of the whole corpus."""
        lengths = self.index("num_bytes")["num_bytes"]
        return Size(len(lengths), int(lengths.sum()))

    def dataset(self, *columns: str) -> Dataset:
        """The documents as a lazy dataset of all columns, or the named ones; each file is a shard of work."""
        files = [str(path) for path in self.files]
        return Dataset.from_files(files, format="parquet", columns=columns or None, shard_bytes=1)


def open_corpus(directory: str | Path) -> Corpus:
    """Opens a corpus directory for reading.

    Raises:
        InputError: the directory is missing, unfinished or holds no document, or a shard is damaged or lacks a column.
    """
    root = Path(directory)
    found = sorted(root.glob("*.parquet"))
    if not found:
        state = "has no *.parquet file" if root.is_dir() else "does not exist"
        raise InputError(f"corpus {root}: the directory {state}; write one with normalize first")
    check_whole(found)
    files = tuple(path for path in found if _num_documents(path))
    if not files:
        raise InputError(f"corpus {root}: no document in its {len(found)} shard(s); see what the step before dropped")
    return Corpus(root, files)


def _num_documents(shard: Path) -> int:
    """The rows of one shard, by its footer; a shard of rows that are no documents is refused."""
    try:
        metadata = pq.read_metadata(shard)
    except (pa.ArrowInvalid, OSError) as e:
        raise _damaged(shard, e) from e
    present = metadata.schema.to_arrow_schema().names
    missing = [name for name in COLUMNS if name not in present]
    if missing and metadata.num_rows:
        raise InputError(f"corpus shard {shard} has no column {missing[0]!r}; write the corpus with normalize")
    return metadata.num_rows


def _columns(shard: Path, names: list[str]) -> pl.DataFrame:
    try:
        return pl.read_parquet(shard, columns=names)
    except (pl.exceptions.PolarsError, OSError) as e:
        raise _damaged(shard, e) from e


def _damaged(shard: Path, error: Exception) -> InputError:
    why = " ".join(str(error).split())
    return InputError(
        f"corpus shard {shard} is no readable parquet file ({why}); delete {shard.parent} and make the corpus again"
    )


def slices(documents: pa.Table, *, max_bytes: int = SLICE_BYTES) -> Iterator[pa.Table]:
    """Cuts a table between documents into tables of at most so many bytes of text; a longer document stands alone.

    A table of no rows is one slice, so that there is always one to take the schema from.

    Args:
        documents: rows with a column ``num_bytes``.
        max_bytes: bytes of text a slice.
    """
    begin, size = 0, 0
    for row, num_bytes in enumerate(documents["num_bytes"].to_pylist()):
        if size and size + num_bytes > max_bytes:
            yield documents.slice(begin, row - begin)
            begin, size = row, 0
        size += num_bytes
    if begin < len(documents) or begin == 0:
        yield documents.slice(begin)


def drop_ids(documents: pl.DataFrame, *, dropped: Lookup) -> pl.DataFrame:
    """The documents whose ids are not among those to drop, in order."""
    return documents.filter(dropped.positions(encode_ids(documents["id"])) < 0)


def written_size(report: RunReport) -> Size:
    """The documents and bytes of a corpus just written, none included."""
    if report.counters["rows_out"] == 0:  # parts without rows may be without columns as well
        return Size(0, 0)
    return Corpus(report.files[0].parent, report.files).size()


@contextmanager
def open_session(
    *, workers: int, work_dir: str | Path | None, progress: Progress | None
) -> Generator[tuple[Session, Path]]:
    """A session for the passes of one step, and the directory in which it keeps what lies between them.

    Args:
        workers: processes; with one, everything happens in this process.
        work_dir: kept for later runs; without one, a temporary directory that goes at the end.
        progress: is told how the passes go.
    """
    with ExitStack() as stack:
        if work_dir is None:
            work_dir = stack.enter_context(TemporaryDirectory(prefix="zephyr-", ignore_cleanup_errors=True))
        backend = "process" if workers > 1 else "inline"
        session = Session(backend=backend, workers=workers, work_dir=work_dir, progress=progress)
        yield stack.enter_context(session), Path(work_dir)
