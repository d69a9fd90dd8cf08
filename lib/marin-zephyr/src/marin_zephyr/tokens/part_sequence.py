"""Runs of encoded documents to the parts of a store, one after the other, each committed when it is full.

A part ends with the document that fills it, so that its content depends on the documents and ``part_tokens`` alone, not
on how they came in runs, nor on kills: a part that was cut off is begun again from where the one before it ended. What
was refused belongs to parts too (`resumption`).
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marin_zephyr.durability import file_digest, sync, writing
from marin_zephyr.formats.files import REJECTS
from marin_zephyr.reporting.refusals import Refused, num_refused
from marin_zephyr.tokens import resumption
from marin_zephyr.tokens.batches import Encoded, Rows
from marin_zephyr.tokens.documents import BEGINNING, Cursor, Dirt, FileEnd
from marin_zephyr.tokens.manifest import FileRecord
from marin_zephyr.tokens.parts import PartWriter, part_name
from marin_zephyr.tokens.resumption import NOTHING_REFUSED, FinishedPart, Refusals


class PartSequence:
    """Takes runs of documents in order and makes finished parts of them.

    Args:
        work: the directory that `resumption.take_up` prepared.
        parts: what it found there; finished parts are added to the list.
        dtype: ``uint16`` or ``int32``.
        part_tokens: a part ends with the document that brings it to this many ids.
        dirt: what becomes of rows that the encoder refuses.
        files: the names of the input files.
        engine: what encodes the documents, for the parts' records.
    """

    def __init__(
        self,
        work: Path,
        *,
        parts: list[FinishedPart],
        dtype: str,
        part_tokens: int,
        dirt: Dirt,
        files: tuple[str, ...],
        engine: Mapping[str, Any],
    ) -> None:
        self.parts = parts
        self._work = work
        self._dtype = dtype
        self._part_tokens = part_tokens
        self._dirt = dirt
        self._files = files
        self._engine = engine
        self._end = parts[-1].end if parts else BEGINNING
        self._begin()

    @property
    def end(self) -> Cursor:
        """Where in the input it has come to."""
        return self._end

    @property
    def num_rows(self) -> int:
        """Input rows so far, refused ones included."""
        return sum(part.num_rows for part in self.parts) + self._num_rows

    @property
    def num_empty(self) -> int:
        """Of these, how many left no id and were not refused."""
        return sum(part.num_empty for part in self.parts) + self._num_empty

    @property
    def num_documents(self) -> int:
        """Documents so far."""
        written = self._writer.num_documents if self._writer else 0
        return sum(part.record.num_documents for part in self.parts) + written

    @property
    def num_tokens(self) -> int:
        """Ids so far."""
        written = self._writer.num_tokens if self._writer else 0
        return sum(part.record.num_tokens for part in self.parts) + written

    @property
    def documents_by_file(self) -> Counter[int]:
        """Documents in finished parts, by the number of their input file."""
        return sum((Counter(part.documents_by_file) for part in self.parts), Counter())

    @property
    def refused(self) -> Refused:
        """What was refused, up to the last file that ended."""
        return (sum((part.refusals for part in self.parts), self._ended) + Refusals(self._desk.refused, {})).counts

    @property
    def refusals(self) -> Refusals:
        """The same with its files, when no more is to come."""
        return sum((part.refusals for part in self.parts), NOTHING_REFUSED) + self._refused()

    def append(self, rows: Rows, encoded: Encoded) -> None:
        """Adds the documents of a run; rows without ids are counted and left out."""
        import numpy as np

        ends = np.cumsum(encoded.lengths)
        first, num_rows = 0, len(encoded.lengths)
        while first < num_rows:
            before = int(ends[first - 1]) if first else 0
            written = self._writer.num_tokens if self._writer else 0
            stop = int(np.searchsorted(ends, before + self._part_tokens - written)) + 1
            is_full = stop <= num_rows
            stop = min(stop, num_rows)
            self._take(rows, encoded, slice(first, stop), slice(before, int(ends[stop - 1])))
            if is_full:
                self.finish_part()
            first = stop

    def end_file(self, end: FileEnd) -> None:
        """Counts what the reader of a file refused, and passes on to the next file."""
        files = {} if end.rejects is None else {f"{REJECTS}/{end.rejects.name}": self._durable(end.rejects)}
        self._ended = self._ended + Refusals(end.refused, files)
        self._num_rows += num_refused(end.refused)
        self._end = Cursor(end.file + 1)

    def finish_part(self) -> None:
        """Commits the part that is being written, if there is one."""
        if self._writer is None:
            return
        part = FinishedPart(
            record=self._writer.finish(),
            end=self._end,
            num_rows=self._num_rows,
            num_empty=self._num_empty,
            documents_by_file=self._documents_by_file,
            on_error=self._dirt.on_error,
            refusals=self._refused(),
            engine=self._engine,
        )
        resumption.commit_part(self._work, part)
        self.parts.append(part)
        self._begin()

    def close(self) -> None:
        """Leaves the part that is being written unfinished."""
        if self._writer is not None:
            self._writer.close()
        self._desk.close()

    def _begin(self) -> None:
        self._writer: PartWriter | None = None
        self._num_rows = 0
        self._num_empty = 0
        self._documents_by_file: Counter[int] = Counter()
        self._ended = NOTHING_REFUSED
        self._desk = self._dirt.desk(f"rows-{len(self.parts):05d}.jsonl")

    def _take(self, rows: Rows, encoded: Encoded, taken: slice, tokens: slice) -> None:
        """Writes some rows of a run, whose ids are ``tokens``, to the part at hand."""
        lengths = encoded.lengths[taken]
        for row in (row for row in encoded.refused if taken.start <= row < taken.stop):
            place = {"source": self._files[rows.file], "source_row": rows.first_row + row + 1}
            content = rows.frame.row(row, named=True)
            self._desk.row({**content, **place}, operation="tokenize", reason=encoded.refused[row])
        kept = lengths > 0
        num_documents = int(kept.sum())
        self._num_rows += len(lengths)
        self._num_empty += len(lengths) - num_documents
        self._num_empty -= sum(taken.start <= row < taken.stop for row in encoded.refused)
        self._end = Cursor(rows.file, rows.first_row + taken.stop)
        if not num_documents:
            return
        if self._writer is None:
            self._writer = PartWriter(self._work, part_name(len(self.parts)), dtype=self._dtype)
        sources = rows.sources[taken]
        self._writer.append(
            encoded.ids[tokens],
            lengths=lengths[kept],
            num_bytes=encoded.num_bytes[taken][kept],
            sources=sources if num_documents == len(lengths) else sources.filter(kept),
            mask=None if encoded.mask is None else encoded.mask[tokens],
        )
        self._documents_by_file[rows.file] += num_documents

    def _refused(self) -> Refusals:
        """What was refused since the last part."""
        self._desk.close()
        path = self._desk.path
        files = {f"{REJECTS}/{path.name}": self._durable(path)} if self._desk.num_rows and path.exists() else {}
        return self._ended + Refusals(self._desk.refused, files)

    def _durable(self, path: Path) -> FileRecord:
        """The record of a rejects file, which is on the disk from now on."""
        with writing(path):
            sync(path)
            sync(path.parent)
            return FileRecord(size=path.stat().st_size, sha256=file_digest(path))
