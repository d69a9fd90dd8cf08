"""Documents to a token store, on all cores, in one call that can be killed and repeated.

The calling thread reads and writes, ``workers`` threads encode (`encoder`), and what they encode is written in the
order of the input: the store is the same, byte for byte, for any number of workers and after any number of kills
(`resumption`). Repeating a call that is done returns its report and does no work."""

import hashlib
import json
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from marin_zephyr.durability import file_digest, sole_writer
from marin_zephyr.errors import InputError, OutputError, UsageError
from marin_zephyr.progress import LogProgress, Progress, Work
from marin_zephyr.tokens import resumption
from marin_zephyr.tokens.documents import InputFile, count_rows, input_files, read_documents
from marin_zephyr.tokens.encoder import EncodedDocument, SpecialIds, encode_documents
from marin_zephyr.tokens.manifest import MANIFEST_FILE, Manifest
from marin_zephyr.tokens.parts import dtype_for
from marin_zephyr.tokens.resumption import PartSequence
from marin_zephyr.tokens.store import TokenStore
from marin_zephyr.tokens.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class TokenizeReport:
    """What `tokenize` made.

    Attributes:
        out_dir: the store.
        num_documents: documents in it.
        num_tokens: ids in it, special ones included.
        num_bytes: UTF-8 bytes of their text.
        num_empty: input rows of which nothing was left, and which are not in it.
        num_parts: its parts.
        num_parts_reused: parts that an earlier run had finished.
        seconds: how long this call took.
        tokens_per_s: ids encoded by this call a second.
        bytes_per_token: UTF-8 bytes of text an id.
    """

    out_dir: str
    num_documents: int
    num_tokens: int
    num_bytes: int
    num_empty: int
    num_parts: int
    num_parts_reused: int
    seconds: float
    tokens_per_s: float
    bytes_per_token: float


def tokenize(
    inputs: str | Path | Sequence[str | Path],
    out_dir: str | Path,
    *,
    tokenizer: str | Path | Tokenizer,
    workers: int = 2,
    part_tokens: int = 1 << 26,
    append_eos: bool = True,
    prepend_bos: bool = False,
    text_field: str = "text",
    work_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> TokenizeReport:
    """Encodes the documents of ``inputs`` into a token store.

    Args:
        inputs: Parquet or JSON Lines: files, directories, globs, or a list of these (see `input_files`).
        out_dir: where the store goes: a new or empty directory, or one that this very call has left there before.
        tokenizer: what `load_tokenizer` takes.
        workers: threads that encode; the store does not depend on it.
        part_tokens: a part ends with the document that brings it to this many ids. A killed run loses at most one part.
        append_eos: end each document with the tokenizer's end-of-sequence id.
        prepend_bos: begin each document with its beginning-of-sequence id.
        text_field: the column or field that holds the text.
        work_dir: where parts are until the store is complete; by default within ``out_dir``. Give one that outlives
            ``out_dir`` if that is a new directory for each attempt.
        progress: is told how it goes; by default lines of the log.

    Raises:
        InputError: an input is missing, unreadable, or there is no document in any.
        TokenizerError: the tokenizer is missing, or has no id for what is to be appended or prepended.
        OutputError: ``out_dir`` holds something else, or cannot be written.
        OutputBusyError: another run is writing there.

    See: ``docs/reference/token-store.md`` for the files.
    """
    out = Path(out_dir)
    work = Path(work_dir) if work_dir is not None else out / ".work"
    _check_arguments(out, work, workers=workers, part_tokens=part_tokens)
    began = time.monotonic()
    loaded = load_tokenizer(tokenizer)
    specials = SpecialIds.of(loaded, append_eos=append_eos, prepend_bos=prepend_bos)
    files = input_files(inputs)
    lineage = _lineage(
        files, text_field=text_field, append_eos=append_eos, prepend_bos=prepend_bos, part_tokens=part_tokens
    )
    plan = _plan_digest(loaded, lineage)
    manifest = None
    with sole_writer(out), sole_writer(work):
        if (out / MANIFEST_FILE).exists():
            manifest = _same_store(out, plan)
            reused, num_encoded = len(manifest.parts), 0
        else:
            resumption.check_output(out, work)
            parts = resumption.take_up(work, plan)
            sequence = PartSequence(work, parts=parts, dtype=dtype_for(loaded.vocab_size), part_tokens=part_tokens)
            reused, num_known = len(parts), sequence.num_tokens
            rest = read_documents(files, text_field=text_field, skip=sequence.num_rows)
            encoded = encode_documents(rest, loaded, specials, workers=workers)
            _write(encoded, sequence, progress or LogProgress(), num_rows=count_rows(files))
            num_encoded = sequence.num_tokens - num_known
            if parts:
                manifest = _manifest(loaded, specials, sequence, {**lineage, "plan": plan})
                resumption.publish(work, out, manifest, loaded)
        resumption.clear(work, remove=work_dir is None)
    if manifest is None:
        raise InputError(f"no document with text in {', '.join(str(file.path) for file in files[:3])}")
    return _report(out, manifest, reused=reused, num_encoded=num_encoded, seconds=time.monotonic() - began)


def _write(
    documents: Generator[EncodedDocument], sequence: PartSequence, progress: Progress, *, num_rows: int | None
) -> None:
    """Drains ``documents`` into ``sequence``."""
    done = sequence.num_rows
    progress.start(Work(name="tokenize", steps="documents", items="tokens", total=num_rows, done=done))
    try:
        with closing(documents), closing(sequence):
            for document in documents:
                sequence.append(document)
                progress.advance(items=len(document.ids))
            sequence.finish_part()
    finally:
        progress.finish()


def _check_arguments(out: Path, work: Path, *, workers: int, part_tokens: int) -> None:
    for name, value in (("workers", workers), ("part_tokens", part_tokens)):
        if value < 1:
            raise UsageError(f"{name} is {value}: it must be at least 1")
    if out.resolve() == work.resolve():
        raise UsageError(f"work_dir and out_dir are both {out}: give another work_dir, or none")


def _lineage(files: Sequence[InputFile], **settings: Any) -> dict[str, Any]:
    return {
        "tool": {name: version(name) for name in ("marin-zephyr", "tokenizers")},
        "settings": settings,
        "inputs": [_input_record(file) for file in files],
    }


def _input_record(file: InputFile) -> dict[str, Any]:
    try:
        return {"name": file.name, "size": file.path.stat().st_size, "sha256": file_digest(file.path)}
    except OSError as error:
        raise InputError(f"{file.path} cannot be read: {error.strerror or error}") from error


def _plan_digest(tokenizer: Tokenizer, lineage: Mapping[str, Any]) -> str:
    """The digest of all that could change a byte of the store: only a store that agrees in it is taken up."""
    ids = {"tokenizer": tokenizer.digest, "eos": tokenizer.eos_id, "bos": tokenizer.bos_id}
    return hashlib.sha256(json.dumps({**ids, **lineage}, sort_keys=True).encode()).hexdigest()


def _same_store(out: Path, plan: str) -> Manifest:
    manifest = TokenStore.open(out).manifest
    if manifest.lineage.get("plan") != plan:
        raise OutputError(
            f"{out} holds a token store of other inputs, settings or versions: choose another directory, or delete it"
        )
    return manifest


def _manifest(
    tokenizer: Tokenizer, specials: SpecialIds, sequence: PartSequence, lineage: Mapping[str, Any]
) -> Manifest:
    documents = sequence.documents_by_file
    inputs = [{**file, "num_documents": documents[number]} for number, file in enumerate(lineage["inputs"])]
    return Manifest(
        tokenizer_digest=tokenizer.digest,
        vocab_size=tokenizer.vocab_size,
        dtype=dtype_for(tokenizer.vocab_size),
        bos_id=specials.bos,
        eos_id=specials.eos,
        parts=tuple(part.record for part in sequence.parts),
        lineage={**lineage, "inputs": inputs, "num_empty": sequence.num_empty},
    )


def _report(out: Path, manifest: Manifest, *, reused: int, num_encoded: int, seconds: float) -> TokenizeReport:
    return TokenizeReport(
        out_dir=str(out),
        num_documents=manifest.num_documents,
        num_tokens=manifest.num_tokens,
        num_bytes=manifest.num_bytes,
        num_empty=manifest.lineage["num_empty"],
        num_parts=len(manifest.parts),
        num_parts_reused=reused,
        seconds=seconds,
        tokens_per_s=num_encoded / seconds,
        bytes_per_token=manifest.num_bytes / manifest.num_tokens,
    )
