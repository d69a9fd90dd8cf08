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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marin_zephyr.durability import file_digest, replace_file, sync, writing
from marin_zephyr.errors import OutputError, TokenStoreError
from marin_zephyr.formats.files import REJECTS
from marin_zephyr.reporting.refusals import Refused, merge_refused
from marin_zephyr.tokens.documents import Cursor
from marin_zephyr.tokens.manifest import MANIFEST_FILE, FileRecord, Manifest, PartRecord
from marin_zephyr.tokens.parts import part_name
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


NOTHING_REFUSED = Refusals({}, {})


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
        engine: what encoded it, as `engines.choose_engine` says.
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


def commit_part(work: Path, part: FinishedPart) -> None:
    """Makes ``part``, whose files are in ``work``, one that the next run can take up."""
    replace_file(work / f"{part.record.name}.json", json.dumps(part.to_json()).encode())


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
