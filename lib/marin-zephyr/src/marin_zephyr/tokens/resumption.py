"""What a killed run leaves behind, and how the next one takes it up.

Parts are written to a work directory. One is finished when its record stands there, which is written after its files
are on the disk. The records carry how many input rows they used up, so that the next run skips those rows and begins
the next part. All of it belongs to one plan, the digest of everything that could change an id or its place: another
plan throws the parts away.

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

from marin_zephyr.durability import file_digest, replace_file, sync, writing
from marin_zephyr.errors import OutputError, TokenStoreError
from marin_zephyr.tokens.encoder import EncodedDocument
from marin_zephyr.tokens.manifest import MANIFEST_FILE, Manifest, PartRecord
from marin_zephyr.tokens.parts import PartWriter, part_name
from marin_zephyr.tokens.tokenizer import TOKENIZER_FILE, Tokenizer

_PLAN_FILE = "plan.json"
# Everything that a run may leave in either directory, files that a kill caught before their renaming included.
_OURS = re.compile(r"\.?(part-\d{5}\.(bin|idx|bytes|crc|sources|json)|(tokenizer|manifest|plan)\.json)(\.\d+\.tmp)?")


@dataclass(frozen=True)
class FinishedPart:
    """A part on disk and the input it stands for.

    Attributes:
        record: the part.
        num_rows: input rows used up, those without a token included.
        num_empty: rows that left no token.
        documents_by_file: number of documents from each input file, by the file's number.
    """

    record: PartRecord
    num_rows: int
    num_empty: int
    documents_by_file: Mapping[int, int]


def take_up(work: Path, plan: str) -> list[FinishedPart]:
    """The finished parts of ``plan`` in ``work``, whose files are verified; anything else there is thrown away."""
    parts: list[FinishedPart] = []
    plan_file = work / _PLAN_FILE
    if plan_file.is_file() and plan_file.read_text() == plan:
        while (part := _read_part(work, part_name(len(parts)))) is not None:
            parts.append(part)
    keep = {name for part in parts for name in (*part.record.files, f"{part.record.name}.json")}
    with writing(work):
        _remove_ours(work, keep=keep)
    replace_file(plan_file, plan.encode())
    return parts


def _commit_part(work: Path, part: FinishedPart) -> None:
    """Makes ``part``, whose files are in ``work``, one that the next run can take up."""
    fields = {
        "part": part.record.to_json(),
        "num_rows": part.num_rows,
        "num_empty": part.num_empty,
        "documents_by_file": sorted(part.documents_by_file.items()),
    }
    replace_file(work / f"{part.record.name}.json", json.dumps(fields).encode())


class PartSequence:
    """Takes documents in order and makes finished parts of them.

    A part ends with the document that fills it, so that its content depends on the documents and ``part_tokens`` alone.

    Args:
        work: the directory that `take_up` prepared.
        parts: what it found there; finished parts are added to the list.
        dtype: ``uint16`` or ``int32``.
        part_tokens: a part ends with the document that brings it to this many ids.
    """

    def __init__(self, work: Path, *, parts: list[FinishedPart], dtype: str, part_tokens: int) -> None:
        self.parts = parts
        self._work = work
        self._dtype = dtype
        self._part_tokens = part_tokens
        self._begin()

    @property
    def num_rows(self) -> int:
        """Input rows so far."""
        return sum(part.num_rows for part in self.parts) + self._num_rows

    @property
    def num_empty(self) -> int:
        """Of these, how many left no id."""
        return sum(part.num_empty for part in self.parts) + self._num_empty

    @property
    def num_tokens(self) -> int:
        """Ids so far."""
        written = self._writer.num_tokens if self._writer else 0
        return sum(part.record.num_tokens for part in self.parts) + written

    @property
    def documents_by_file(self) -> Counter[int]:
        """Documents in finished parts, by the number of their input file."""
        return sum((Counter(part.documents_by_file) for part in self.parts), Counter())

    def append(self, document: EncodedDocument) -> None:
        """Adds ``document``; one without ids is counted and left out."""
        self._num_rows += 1
        if not len(document.ids):
            self._num_empty += 1
            return
        if self._writer is None:
            self._writer = PartWriter(self._work, part_name(len(self.parts)), dtype=self._dtype)
        self._writer.append(document.ids, num_bytes=document.num_bytes, source=document.source)
        self._documents_by_file[document.file] += 1
        if self._writer.num_tokens >= self._part_tokens:
            self.finish_part()

    def finish_part(self) -> None:
        """Commits the part that is being written, if there is one."""
        if self._writer is None:
            return
        part = FinishedPart(
            record=self._writer.finish(),
            num_rows=self._num_rows,
            num_empty=self._num_empty,
            documents_by_file=self._documents_by_file,
        )
        _commit_part(self._work, part)
        self.parts.append(part)
        self._begin()

    def close(self) -> None:
        """Leaves the part that is being written unfinished."""
        if self._writer is not None:
            self._writer.close()

    def _begin(self) -> None:
        self._writer: PartWriter | None = None
        self._num_rows = 0
        self._num_empty = 0
        self._documents_by_file: Counter[int] = Counter()


def check_output(out_dir: Path, work: Path) -> None:
    """Raises `OutputError` if ``out_dir`` holds anything that an unfinished store would not."""
    for entry in sorted(out_dir.iterdir()):
        if entry != work and not _OURS.fullmatch(entry.name):
            raise OutputError(f"{out_dir} is not empty, it holds {entry.name}: choose a new directory for the store")


def publish(work: Path, out_dir: Path, manifest: Manifest, tokenizer: Tokenizer) -> None:
    """Makes the store: the parts' files, the tokenizer, and the manifest last."""
    files = [name for part in manifest.parts for name in part.files]
    with writing(out_dir):
        _remove_ours(out_dir, keep=set())
        for name in files:
            _place(work / name, out_dir / name)
    replace_file(out_dir / TOKENIZER_FILE, tokenizer.content)  # which makes the names of the parts durable as well
    replace_file(out_dir / MANIFEST_FILE, manifest.to_bytes())


def clear(work: Path, *, remove: bool) -> None:
    """Empties ``work`` of what runs left there, and removes the directory if asked."""
    if work.is_dir():
        with writing(work):
            _remove_ours(work, keep=set())
            if remove:
                shutil.rmtree(work)


def _read_part(work: Path, name: str) -> FinishedPart | None:
    """The part of that name, or None if it is not finished or its files are not those that were written."""
    path = work / f"{name}.json"
    try:
        fields = json.loads(path.read_bytes())
        record = PartRecord.from_json(fields["part"], where=str(path))
        if any(file_digest(work / file) != expected.sha256 for file, expected in record.files.items()):
            return None
        return FinishedPart(
            record=record,
            num_rows=fields["num_rows"],
            num_empty=fields["num_empty"],
            documents_by_file=dict(fields["documents_by_file"]),
        )
    except (OSError, ValueError, KeyError, TokenStoreError):
        return None


def _remove_ours(directory: Path, *, keep: set[str]) -> None:
    for entry in directory.iterdir():
        if _OURS.fullmatch(entry.name) and entry.name not in keep:
            entry.unlink()


def _place(source: Path, target: Path) -> None:
    """Links ``source`` to ``target``, or copies it where directories are on different disks."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        sync(target)
