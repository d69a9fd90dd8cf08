"""What a killed run leaves behind, and how the next one takes it up.

Parts are written to a work directory. One is finished when its record stands there, which is written after its files
are on the disk. The records carry where in the input they end, so that the next run goes on from there and begins the
next part. All of it belongs to one plan, the digest of everything that could change an id or its place: another plan
throws the parts away.

What was refused is accounted for in the same way. The rejects of a reader (``input-*.jsonl``) are a function of their
file alone: a record counts those of the files that ended within its part, and a file in which a part ends is read again
from its start. The rejects of the encoder (``rows-*.jsonl``) belong to the part in which their rows fall.

The store itself appears at the end: files are linked into the output directory, then the manifest is renamed into
place."""

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marin_zephyr.durability import file_digest, replace_file, sync, writing
from marin_zephyr.errors import OutputError, TokenStoreError
from marin_zephyr.formats.files import REJECTS
from marin_zephyr.reporting.refusals import Refused, merge_refused, num_refused
from marin_zephyr.tokens.batches import Encoded, Rows
from marin_zephyr.tokens.documents import BEGINNING, Cursor, Dirt, FileEnd
from marin_zephyr.tokens.manifest import MANIFEST_FILE, FileRecord, Manifest, PartRecord
from marin_zephyr.tokens.parts import PartWriter, part_name
from marin_zephyr.tokens.tokenizer import TOKENIZER_FILE, Tokenizer

_PLAN_FILE = "plan.json"
# Everything that a run may leave in either directory, files that a kill caught before their renaming included.
_OURS = re.compile(
    r"\.?(part-\d{5,}\.(bin|idx|bytes|crc|sources|mask|json)|(tokenizer|manifest|plan)\.json)(\.\d+\.tmp)?"
)
_OUR_REJECTS = re.compile(r"(input|rows)-\d{5,}\.jsonl")


@dataclass(frozen=True)
class Refusals:
    """What was refused.

    Attributes:
        counts: by the kind of reason.
        files: the files that hold the records, relative to the directory, under ``quarantine``.
    """

    counts: Refused
    files: Mapping[str, FileRecord]

    def __add__(self, other: "Refusals") -> "Refusals":
        counts = {kind: dict(entry) for kind, entry in self.counts.items()}
        merge_refused(counts, other.counts)
        return Refusals(counts, {**self.files, **other.files})

    def to_json(self) -> dict[str, Any]:
        """As it stands in a part's record and in the manifest."""
        files = {name: {"size": file.size, "sha256": file.sha256} for name, file in self.files.items()}
        return {"counts": self.counts, "files": files}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Refusals":
        """What `to_json` makes."""
        files = {name: FileRecord(size=file["size"], sha256=file["sha256"]) for name, file in fields["files"].items()}
        return cls(fields["counts"], files)


_NOTHING = Refusals({}, {})


@dataclass(frozen=True)
class FinishedPart:
    """A part on disk and the input it stands for.

    Attributes:
        record: the part.
        end: where in the input it ends.
        num_rows: input rows used up since the part before, those without a token and refused ones included.
        num_empty: rows that left no token and were not refused.
        documents_by_file: number of documents from each input file, by the file's number.
        on_error: what became of records that could not be taken.
        refusals: those of the files that ended within the part, and the rows that the encoder refused.
        engine: what encoded it, as `fast.choose_engine` says.
    """

    record: PartRecord
    end: Cursor
    num_rows: int
    num_empty: int
    documents_by_file: Mapping[int, int]
    on_error: str
    refusals: Refusals
    engine: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """As it stands in the work directory."""
        return {
            "part": self.record.to_json(),
            "end": self.end,
            "num_rows": self.num_rows,
            "num_empty": self.num_empty,
            "documents_by_file": sorted(self.documents_by_file.items()),
            "on_error": self.on_error,
            "refusals": self.refusals.to_json(),
            "engine": self.engine,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], *, where: str) -> "FinishedPart":
        """What `to_json` makes; raises `TokenStoreError` or `KeyError` if it is something else."""
        return cls(
            record=PartRecord.from_json(fields["part"], where=where),
            end=Cursor(*fields["end"]),
            num_rows=fields["num_rows"],
            num_empty=fields["num_empty"],
            documents_by_file=dict(fields["documents_by_file"]),
            on_error=fields["on_error"],
            refusals=Refusals.from_json(fields["refusals"]),
            engine=fields["engine"],
        )


def take_up(work: Path, plan: str, *, on_error: str, engine: str) -> list[FinishedPart]:
    """The finished parts of ``plan`` in ``work``, whose files are verified; anything else there is thrown away.

    A part in which something was refused is taken up only under the policy that it was made under, and one that a fast
    engine has encoded not where the ``engine`` that is asked for is ``tokenizers``: whoever asks may have seen it fail.
    """
    parts: list[FinishedPart] = []
    plan_file = work / _PLAN_FILE
    if plan_file.is_file() and plan_file.read_text() == plan:
        while (part := _read_part(work, part_name(len(parts)), on_error)) is not None:
            if engine == "tokenizers" != part.engine["name"]:
                break
            parts.append(part)
    keep = {name for part in parts for name in (*part.record.files, f"{part.record.name}.json", *part.refusals.files)}
    with writing(work):
        _remove_ours(work, keep=keep)
    replace_file(plan_file, plan.encode())
    return parts


def _commit_part(work: Path, part: FinishedPart) -> None:
    """Makes ``part``, whose files are in ``work``, one that the next run can take up."""
    replace_file(work / f"{part.record.name}.json", json.dumps(part.to_json()).encode())


class PartSequence:
    """Takes runs of documents in order and makes finished parts of them.

    A part ends with the document that fills it, so that its content depends on the documents and ``part_tokens`` alone.

    Args:
        work: the directory that `take_up` prepared.
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
        return sum((part.refusals for part in self.parts), _NOTHING) + self._refused()

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
        _commit_part(self._work, part)
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
        self._ended = _NOTHING
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


def check_output(out_dir: Path, work: Path) -> None:
    """Raises `OutputError` if ``out_dir`` holds anything that an unfinished store would not."""
    for entry in sorted(out_dir.iterdir()):
        if entry != work and not _OURS.fullmatch(entry.name) and not _is_our_rejects(entry):
            raise OutputError(f"{out_dir} is not empty, it holds {entry.name}: choose a new directory for the store")


def publish(work: Path, out_dir: Path, manifest: Manifest, tokenizer: Tokenizer, *, rejects: Mapping[str, Any]) -> None:
    """Makes the store: the parts' files, the rejects, the tokenizer, and the manifest last."""
    with writing(out_dir):
        _remove_ours(out_dir, keep=set())
        if rejects:
            (out_dir / REJECTS).mkdir()
        for name in (*(name for part in manifest.parts for name in part.files), *rejects):
            _place(work / name, out_dir / name)
        if rejects:
            sync(out_dir / REJECTS)
    replace_file(out_dir / TOKENIZER_FILE, tokenizer.content)  # which makes the names of the parts durable as well
    replace_file(out_dir / MANIFEST_FILE, manifest.to_bytes())


def clear(work: Path, *, remove: bool) -> None:
    """Empties ``work`` of what runs left there, and removes the directory if asked."""
    if work.is_dir():
        with writing(work):
            _remove_ours(work, keep=set())
            if remove:
                shutil.rmtree(work)


def _read_part(work: Path, name: str, on_error: str) -> FinishedPart | None:
    """The part of that name, or None if it is not finished or its files are not those that were written."""
    path = work / f"{name}.json"
    try:
        part = FinishedPart.from_json(json.loads(path.read_bytes()), where=str(path))
        files = {**part.record.files, **part.refusals.files}
        if any(file_digest(work / file) != expected.sha256 for file, expected in files.items()):
            return None
        return None if part.refusals.counts and part.on_error != on_error else part
    except (OSError, ValueError, KeyError, TypeError, TokenStoreError):
        return None


def _remove_ours(directory: Path, *, keep: set[str]) -> None:
    """Removes what is ours and not among ``keep``, names relative to the directory."""
    for entry in directory.iterdir():
        if _OURS.fullmatch(entry.name) and entry.name not in keep:
            entry.unlink()
        elif _is_our_rejects(entry):
            for file in entry.iterdir():
                if f"{entry.name}/{file.name}" not in keep:
                    file.unlink()
            if not any(entry.iterdir()):
                entry.rmdir()


def _is_our_rejects(entry: Path) -> bool:
    is_named = entry.name == REJECTS and entry.is_dir() and not entry.is_symlink()
    return is_named and all(_OUR_REJECTS.fullmatch(file.name) for file in entry.iterdir())


def _place(source: Path, target: Path) -> None:
    """Links ``source`` to ``target``, or copies it where directories are on different disks."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        sync(target)
