"""Raw files to a corpus: one schema, stable ids, and every document that cannot be taken kept with its reason.

Text is kept faithful. Only what no reader would call content is changed: a leading byte order mark goes, and CRLF
becomes a line feed. No Unicode normalisation and no trimming: a tokenizer must meet what was written.

A document is refused, never repaired, when it is no text at all: bytes that are not UTF-8, a NUL (the mark of binary
data), a value that is not a string, or fewer than `min_bytes` bytes. Refused documents stand under `rejects/` of the
output (`on_error="quarantine"`), are only counted (`"skip"`), or end the run (`"raise"`). A run that refused any warns,
once.

Invariant: a document's id is a hash of its normalised text alone, so it survives renamed files, other shard sizes and
other machines, and equal texts meet again in `exact_dedup`.
"""

import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import polars as pl
import xxhash

from marin_zephyr.dataset import Dataset
from marin_zephyr.errors import InputError, UsageError
from marin_zephyr.formats.rejects import kind
from marin_zephyr.progress import Progress
from marin_zephyr.text.corpus import COLUMNS, Size, open_session, written_size

# Uncompressed bytes a shard: small enough that a few tens of megabytes keep several workers busy, large enough that a
# file of text compresses well and a corpus of a terabyte is not a million files.
SHARD_BYTES = 4 << 20

# A reader gives each file as a batch of its own; many small ones go faster together. No more than a shard holds anyway.
_FILES_A_BATCH = 1024

_MOST_FREQUENT = 10

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NormalizeReport:
    """What `normalize` took and what it refused.

    Attributes:
        out_dir: the corpus written.
        kept: documents and bytes of the corpus.
        num_rejected: documents refused, whatever became of them.
        num_shards: parquet files written.
        reasons: kind of reason -> documents refused for it, the ten most frequent; empty unless they are quarantined.
    """

    out_dir: str
    kept: Size
    num_rejected: int
    num_shards: int
    reasons: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Refused:
    """The documents refused: how many, where they are kept (if they are), the first of them, and why."""

    num_documents: int
    directory: Path | None
    example: str
    reasons: dict[str, int]

    @property
    def told(self) -> str:
        """An example and where the others are."""
        if self.directory is None:
            return 'on_error="quarantine" keeps them with their reasons'
        return f"for example {self.example} (all in {self.directory})"


def normalize(
    inputs: str | Path | Sequence[str | Path],
    out_dir: str | Path,
    *,
    documents: Literal["row", "file"] = "row",
    text_field: str = "text",
    format: str | None = None,
    root: str | Path | None = None,
    on_error: Literal["raise", "skip", "quarantine"] = "quarantine",
    min_bytes: int = 1,
    shard_bytes: int = SHARD_BYTES,
    workers: int = 2,
    work_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> NormalizeReport:
    """Writes raw files as a corpus (see `marin_zephyr.text.corpus`).

    Args:
        inputs: a glob, a directory, or a list of files, directories and globs; see `Dataset.from_files`.
        out_dir: the corpus directory to write.
        documents: one document a ``row`` (a JSON line, a parquet row, a line of text) or a ``file`` of text.
        text_field: the column of a row that holds the text.
        format: of the inputs, where their names do not tell it; with ``documents="file"`` it is always text.
        root: what `source` is relative to; by default the fixed part of the glob, or the directory.
        on_error: what becomes of documents that cannot be taken.
        min_bytes: the shortest text to keep, in bytes of UTF-8.
        shard_bytes: bytes of input a shard of the corpus; small files share one.
        workers: processes; 1 works in this process. The result is the same bytes whatever their number.
        work_dir: kept between runs, so that a later one goes on from there; by default a temporary directory.
        progress: is told how it goes; by default lines of the log.

    Raises:
        InputError: inputs are missing or empty, or none of their documents can be taken.
    """
    if documents == "file" and format not in (None, "text"):
        raise UsageError(f'format = {format!r} with documents = "file": only files of text are documents as a whole')
    if min_bytes < 1:
        raise UsageError(f"min_bytes = {min_bytes}: must be at least 1; an empty text is no document")
    whole_files = documents == "file"
    column = "text" if whole_files else text_field
    raw = Dataset.from_files(
        inputs,
        format="text" if whole_files else format,
        unit="file" if whole_files else "line",
        on_error=on_error,
        with_source=True,
        root=root,
        columns=[column],
        string_columns=[column],
        shard_bytes=shard_bytes,
    )
    texts = raw.map_batches(partial(select_text, text_field=column), batch_rows=_FILES_A_BATCH if whole_files else None)
    plan = _documents(texts, text_field=column, min_bytes=min_bytes).write_parquet(out_dir)
    with open_session(workers=workers, work_dir=work_dir, progress=progress) as (session, _):
        report = session.run(plan, name="normalize")
    kept, refused = written_size(report), _refused(report.counters["rejected"], report.rejects)
    if kept.documents == 0:
        raise InputError(_nothing_left(inputs, column, refused))
    if refused.num_documents:
        total = kept.documents + refused.num_documents
        _log.warning(
            "normalize: %s of %s documents rejected, %s", f"{refused.num_documents:,}", f"{total:,}", refused.told
        )
    return NormalizeReport(
        str(out_dir),
        kept=kept,
        num_rejected=refused.num_documents,
        num_shards=len(report.files),
        reasons=refused.reasons,
    )


def _refused(num_documents: int, rejects: Sequence[Path]) -> _Refused:
    example, reasons = "", Counter()
    for path in rejects:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                entry = json.loads(line)
                example = example or f"{entry['file']}: {entry['reason']}"
                reasons[kind(entry["reason"])] += entry.get("rows", 1)
    directory = rejects[0].parent if rejects else None
    return _Refused(num_documents, directory, example, dict(reasons.most_common(_MOST_FREQUENT)))


def _nothing_left(inputs: str | Path | Sequence[str | Path], column: str, refused: _Refused) -> str:
    """What to say when no document is left."""
    names = [inputs] if isinstance(inputs, (str, Path)) else inputs
    shown = f"{names[0]}" if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    if not refused.num_documents:
        return f"normalize {shown}: the inputs hold no document"
    none = f"none of the {refused.num_documents:,} documents can be taken (text_field = {column!r})"
    return f"normalize {shown}: {none}, {refused.told}"


def _documents(rows: Dataset, *, text_field: str, min_bytes: int) -> Dataset:
    """The plan from rows of text with their source to documents: what is refused, and what is changed."""
    text = pl.col("text")
    return (
        rows.reject(text.is_null(), reason=f"no string in {text_field!r}")
        .reject(text.str.contains("\0", literal=True), reason="a NUL character: binary data")
        .with_columns(text=text.str.strip_prefix("\ufeff").str.replace_all("\r\n", "\n", literal=True))
        .with_columns(num_bytes=text.str.len_bytes().cast(pl.Int64))
        .reject(pl.col("num_bytes") < min_bytes, reason=f"shorter than {min_bytes} bytes")
        .map_batches(add_ids)
    )


def select_text(rows: pl.DataFrame, *, text_field: str) -> pl.DataFrame:
    """The text of raw rows, null where there is none, beside where each row came from."""
    return rows.select(pl.col(text_field).cast(pl.String).alias("text"), "source", "source_row", "source_offset")


def add_ids(rows: pl.DataFrame) -> pl.DataFrame:
    """The corpus's columns: the rows' own, and the id of each text."""
    ids = [xxhash.xxh3_128_hexdigest(text.encode()) for text in rows["text"]]
    return rows.with_columns(pl.Series("id", ids, dtype=pl.String)).select(*COLUMNS)
