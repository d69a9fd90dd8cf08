"""Documents to a token store, on all cores, in one call that can be killed and repeated.

One thread reads (`documents`), ``workers`` threads encode (`parallel_encoding`), and what they encode is written by the
calling thread in the order of the input (`part_sequence`): the store and what was refused are the same, byte for byte,
for any number of workers and after any number of kills (`resumption`). Repeating a call that is done returns its report
and does no work. What the inputs were, the store tells (`lineage`).
"""

import os
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marin_zephyr.durability import sole_writer
from marin_zephyr.errors import InputError, OutputError, UsageError
from marin_zephyr.formats.files import REJECTS, InputFile
from marin_zephyr.nodes import OnError
from marin_zephyr.progress import LogProgress, Progress, Work
from marin_zephyr.reporting.refusals import num_refused
from marin_zephyr.tokens import resumption
from marin_zephyr.tokens.batches import Encoded, RowEncoder, Rows
from marin_zephyr.tokens.chat import ChatEncoder, ChatFormat
from marin_zephyr.tokens.completions import CompletionEncoder, CompletionFormat
from marin_zephyr.tokens.documents import Dirt, FileEnd, input_files, read_rows
from marin_zephyr.tokens.engines import EngineName, check_name, choose_engine
from marin_zephyr.tokens.lineage import make_manifest, plan_changes, plan_digest, trace_inputs
from marin_zephyr.tokens.manifest import MANIFEST_FILE, Manifest
from marin_zephyr.tokens.parallel_encoding import encode_rows
from marin_zephyr.tokens.part_sequence import PartSequence
from marin_zephyr.tokens.parts import dtype_for
from marin_zephyr.tokens.publishing import publishable
from marin_zephyr.tokens.sample import sample_texts
from marin_zephyr.tokens.store import TokenStore
from marin_zephyr.tokens.texts import HuggingFaceEngine, SpecialIds, TextEncoder
from marin_zephyr.tokens.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class TokenizeReport:
    """What `tokenize` made.

    Attributes:
        out_dir: the store.
        num_documents: documents in it.
        num_tokens: ids in it, special ones included.
        num_bytes: UTF-8 bytes of their text.
        num_empty: input rows of which nothing was left, and which are not in it.
        num_rejected: input records that could not be taken, and which are not in it.
        rejected: how many of them for each kind of reason.
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
    num_rejected: int
    rejected: Mapping[str, int]
    num_parts: int
    num_parts_reused: int
    seconds: float
    tokens_per_s: float
    bytes_per_token: float


@publishable
def tokenize(
    inputs: str | Path | Sequence[str | Path],
    out_dir: str | Path,
    *,
    tokenizer: str | Path | Tokenizer,
    workers: int | None = None,
    part_tokens: int = 1 << 26,
    append_eos: bool = True,
    prepend_bos: bool = False,
    text_field: str = "text",
    supervised: ChatFormat | CompletionFormat | None = None,
    on_error: OnError = "raise",
    max_bad: float | None = None,
    engine: EngineName = "auto",
    work_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> TokenizeReport:
    """Encodes the documents of ``inputs`` into a token store.

    Args:
        inputs: files of any format that the package reads, directories, globs, URLs, or a list of these (see
            `input_files`). What lies in ``out_dir`` or ``work_dir`` is none.
        out_dir: where the store goes: a new or empty directory, or one that this very call has left there before; or a
            URL, where it is copied when it is finished (see `publishable`).
        tokenizer: what `load_tokenizer` takes.
        workers: threads that encode, by default one a CPU that this process may use; the store does not depend on it.
        part_tokens: a part ends with the document that brings it to this many ids. A killed run loses at most one part.
        append_eos: end each document with the tokenizer's end-of-sequence id.
        prepend_bos: begin each document with its beginning-of-sequence id.
        text_field: the column or field that holds the text. A row without it has no text, and a file whose first rows
            have no such column is refused.
        supervised: rows are conversations, or prompts with completions, instead of texts, and only what the assistant
            says, or the completion, counts in the loss. A row without such is a record that cannot be taken.
        on_error: what becomes of a record that cannot be taken (malformed, no UTF-8, a text that is no string):
            ``raise``, ``skip`` (it is counted), or ``quarantine`` (it is kept in ``out_dir/rejects`` with file, place
            and reason).
        max_bad: how many may be refused before the run fails: a number of them (100) or a share of the rows (0.01).
        engine: what encodes: ``auto`` takes ``gigatoken`` (extra ``fast``) if it is installed and gives the very ids of
            ``tokenizers`` on a sample of these inputs (see `engines`), else ``tokenizers``. The store's ids do not
            depend on it; its lineage says which it was.
        work_dir: where parts are until the store is complete; by default within ``out_dir``. Give one that outlives
            ``out_dir`` if that is a new directory for each attempt.
        progress: is told how it goes; by default lines of the log.

    Raises:
        InputError: an input is missing, unreadable, or there is no document in any; a record cannot be taken
            (`BadRecordError`), or too many cannot (`TooManyBadRecordsError`).
        SchemaError: a file has no such column.
        TokenizerError: the tokenizer is missing, or has no id for what is to be appended or prepended.
        EngineError: the fast engine gave other ids than the reference on the way; `EngineRefusedError`, before, if it
            was asked for.
        MissingExtraError: ``gigatoken`` was asked for and is not installed.
        ChatTemplateError: the chat template is missing or malformed.
        OutputError: ``out_dir`` holds something else, or cannot be written.
        OutputBusyError: another run is writing there.

    See: ``docs/reference/token-store.md`` for the files.
    """
    out = Path(out_dir)
    work = Path(work_dir) if work_dir is not None else out / ".work"
    workers = len(os.sched_getaffinity(0)) if workers is None else workers
    _check_arguments(out, work, workers=workers, part_tokens=part_tokens, engine=engine, is_text=supervised is None)
    dirt = Dirt(on_error, _limit(max_bad, on_error), work / REJECTS)
    began = time.monotonic()
    loaded = load_tokenizer(tokenizer)
    specials = SpecialIds.of(loaded, append_eos=append_eos, prepend_bos=prepend_bos)
    files = _outside(input_files(inputs), out, work)
    encoder = _row_encoder(tokenizer, loaded, specials, text_field=text_field, supervised=supervised)
    settings = {"append_eos": append_eos, "prepend_bos": prepend_bos, "part_tokens": part_tokens}
    lineage = trace_inputs(files, workers=workers, settings={**encoder.identity, **settings})
    plan = plan_digest(loaded, lineage)
    manifest = None
    with sole_writer(out), sole_writer(work):
        if (out / MANIFEST_FILE).exists():
            manifest = _same_store(out, loaded, {**lineage, "plan": plan}, dirt)
            reused, num_encoded = len(manifest.parts), 0
        else:
            resumption.check_output(out, work)
            encoder, record = _with_engine(encoder, loaded, sample_texts(files, text_field=text_field), engine)
            parts = resumption.take_up(work, plan, on_error=on_error, engine=engine)
            sequence = PartSequence(
                work,
                parts=parts,
                dtype=dtype_for(loaded.vocab_size),
                part_tokens=part_tokens,
                dirt=dirt,
                files=tuple(file.name for file in files),
                engine=record,
            )
            reused, num_known = len(parts), sequence.num_tokens
            rows = read_rows(
                files, columns=encoder.columns, text_columns=encoder.text_columns, dirt=dirt, begin=sequence.end
            )
            encoded = encode_rows(rows, encoder, workers=workers)
            _write(encoded, sequence, progress or LogProgress(), files, dirt)
            num_encoded = sequence.num_tokens - num_known
            if parts:
                manifest = make_manifest(
                    sequence, loaded, specials=specials, lineage={**lineage, "plan": plan}, on_error=on_error
                )
                resumption.publish(work, out, manifest, loaded, rejects=sequence.refusals.files)
        resumption.clear(work, remove=work_dir is None)
    if manifest is None:
        raise InputError(f"no document with text in {', '.join(file.url for file in files[:3])}")
    return _report(out, manifest, reused=reused, num_encoded=num_encoded, seconds=time.monotonic() - began)


def _with_engine(
    encoder: RowEncoder, tokenizer: Tokenizer, sample: "Iterator[pa.LargeStringArray]", wanted: EngineName
) -> tuple[RowEncoder, dict[str, Any]]:
    """The encoder with the engine that is to encode, and what the lineage says of it; only plain text has a choice."""
    reference = HuggingFaceEngine(tokenizer)
    if not isinstance(encoder, TextEncoder):
        return encoder, choose_engine(tokenizer, reference, sample, wanted="tokenizers")[1]
    engine, record = choose_engine(tokenizer, reference, sample, wanted=wanted)
    return encoder.using(engine), record


def _row_encoder(
    source: str | Path | Tokenizer,
    tokenizer: Tokenizer,
    specials: SpecialIds,
    *,
    text_field: str,
    supervised: ChatFormat | CompletionFormat | None,
) -> RowEncoder:
    """The encoder of such rows; ``source`` is where the tokenizer came from."""
    if isinstance(supervised, ChatFormat):
        beside = None if isinstance(source, Tokenizer) else source
        return ChatEncoder.of(supervised, tokenizer, specials, beside=beside)
    if isinstance(supervised, CompletionFormat):
        return CompletionEncoder(tokenizer, specials, form=supervised)
    return TextEncoder(HuggingFaceEngine(tokenizer), specials, text_field=text_field)


def _write(
    items: Generator[tuple[Rows, Encoded] | FileEnd],
    sequence: PartSequence,
    progress: Progress,
    files: Sequence[InputFile],
    dirt: Dirt,
) -> None:
    """Drains ``items`` into ``sequence``. Of a file's text so much counts as done as the file was thought to hold."""
    begin = sequence.end
    done = sum(file.weight for file in files[: begin.file])
    progress.start(
        Work(
            name="tokenize",
            steps="documents",
            items="tokens",
            total=None,
            done=sequence.num_documents,
            num_bytes=max(1, sum(file.weight for file in files)),
            done_bytes=done,
        )
    )
    read = 0  # of the file at hand
    try:
        with closing(items), closing(sequence):
            for item in items:
                before = read
                if isinstance(item, FileEnd):
                    sequence.end_file(item)
                    dirt.check(sequence.refused)
                    read = files[item.file].weight
                    progress.advance(items=0, steps=0, num_bytes=read - before, rejected=num_refused(item.refused))
                    read = 0
                    continue
                rows, encoded = item
                sequence.append(rows, encoded)
                if encoded.refused:
                    dirt.check(sequence.refused)
                read = min(files[rows.file].weight, read + int(encoded.num_bytes.sum()))
                progress.advance(
                    items=len(encoded.ids),
                    steps=int((encoded.lengths > 0).sum()),
                    num_bytes=read - before,
                    rejected=len(encoded.refused),
                )
            dirt.check(sequence.refused, num_rows=sequence.num_rows)
            sequence.finish_part()
    finally:
        progress.finish()


def _check_arguments(
    out: Path, work: Path, *, workers: int, part_tokens: int, engine: EngineName, is_text: bool
) -> None:
    check_name(engine)
    if engine == "gigatoken" and not is_text:
        raise UsageError("engine 'gigatoken' encodes plain text, not conversations: take 'tokenizers', or 'auto'")
    for name, value in (("workers", workers), ("part_tokens", part_tokens)):
        if value < 1:
            raise UsageError(f"{name} is {value}: it must be at least 1")
    if out.resolve() == work.resolve():
        raise UsageError(f"work_dir and out_dir are both {out}: give another work_dir, or none")


def _outside(files: Sequence[InputFile], *outputs: Path) -> tuple[InputFile, ...]:
    """``files`` without those that this very call writes, where an input is a directory above."""
    ours = [output.resolve() for output in outputs]
    taken = tuple(
        file for file in files if "://" in file.url or not any(map(Path(file.url).resolve().is_relative_to, ours))
    )
    if not taken:
        raise InputError(f"all inputs lie in {outputs[0]}, where the store is to go: choose another directory for it")
    return taken


def _limit(max_bad: float | None, on_error: OnError) -> float | None:
    """``max_bad`` as a number of records (int) or a share of the rows (float), if it is one."""
    if on_error not in ("raise", "skip", "quarantine"):
        raise UsageError(f"on_error is {on_error!r}: it must be raise, skip or quarantine")
    if max_bad is None:
        return None
    if on_error == "raise":
        raise UsageError(f'max_bad={max_bad} says nothing beside on_error="raise": pass skip or quarantine')
    if 0 < max_bad < 1:
        return float(max_bad)
    if not (max_bad >= 0 and float(max_bad).is_integer()):
        raise UsageError(f"max_bad is {max_bad}: it must be a number of records, or a share such as 0.01")
    return int(max_bad)


def _same_store(out: Path, tokenizer: Tokenizer, lineage: Mapping[str, Any], dirt: Dirt) -> Manifest:
    """The manifest of the store that stands there, if this call would make the same one."""
    manifest = TokenStore.open(out).manifest
    rejects = manifest.lineage.get("rejects")
    changes = plan_changes(manifest, tokenizer, lineage)
    if rejects and rejects["on_error"] != dirt.on_error:
        changes = (*changes, f"on_error={rejects['on_error']!r}, not {dirt.on_error!r}")
    if changes:
        raise OutputError(
            f"{out} holds another token store: {'; '.join(changes)}. Choose another directory, or delete it"
        )
    if rejects:
        dirt.check(rejects["counts"], num_rows=rejects["num_rows"])
    return manifest


def _report(out: Path, manifest: Manifest, *, reused: int, num_encoded: int, seconds: float) -> TokenizeReport:
    counts = manifest.lineage.get("rejects", {}).get("counts", {})
    return TokenizeReport(
        out_dir=str(out),
        num_documents=manifest.num_documents,
        num_tokens=manifest.num_tokens,
        num_bytes=manifest.num_bytes,
        num_empty=manifest.lineage["num_empty"],
        num_rejected=num_refused(counts),
        rejected={kind: entry["count"] for kind, entry in counts.items()},
        num_parts=len(manifest.parts),
        num_parts_reused=reused,
        seconds=seconds,
        tokens_per_s=num_encoded / seconds,
        bytes_per_token=manifest.num_bytes / manifest.num_tokens,
    )
