"""The ``zephyr`` command. It prints; everything else in this package only logs.

    zephyr run SCRIPT.py[:NAME]          runs a dataset that ends in a write
    zephyr explain SCRIPT.py[:NAME]      shows its fused plan
    zephyr doctor FILE...                finds damage and says where
    zephyr normalize INPUT... --out DIR
    zephyr dedup DIR --out DIR [--fuzzy]
    zephyr quality DIR --out DIR [--rules gopher fineweb]
    zephyr decontaminate DIR --against EVAL... --out DIR
    zephyr train-tokenizer INPUT... --vocab-size N --out FILE
    zephyr tokenize INPUT... --tokenizer T --out DIR
    zephyr inspect STORE [--verify] [--token N]

Exit codes: 0 done, 1 something failed, 2 usage or bad input, 3 refused. With ``--json`` standard output holds one JSON
document and nothing else. A user's mistake is one line on standard error, never a traceback.
"""

from __future__ import annotations

import dataclasses
import io
import json as jsonlib
import logging
import os
import re
import shutil
import sys
import sysconfig
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import tyro

from marin_zephyr.errors import UsageError, UserCodeError, ZephyrError
from marin_zephyr.progress import BarProgress, LogProgress, Progress
from marin_zephyr.reporting.reports import REPORT, RunReport
from marin_zephyr.scripts import load
from marin_zephyr.session import Session

_ROW_COUNTERS = ("rows_in", "rows_out", "filtered", "rejected", "consumed", "produced")
_SHOWN_FRAMES = 5
_PACKAGE = os.path.dirname(__file__)  # noqa: PTH120  compared with the file names of frames

Positionals = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="INPUT")]
Script = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SCRIPT.py[:NAME]")]
Directory = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
Store = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="STORE")]
Format = Literal["jsonl", "json", "parquet", "arrow", "warc", "csv", "text"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Where:
    """Where a dataset runs.

    Args:
        backend: worker processes, this process, or the nodes of a Ray cluster (extra `ray`).
        workers: tasks at a time; by default one a CPU.
        memory: what all processes together may hold, such as 4GiB; by default most of what is free.
        ray_address: for ray: the cluster, as ray.init takes it.
        work_dir: where intermediate stages are kept for later runs.
    """

    backend: Literal["process", "inline", "ray"] = "process"
    workers: int | None = None
    memory: str | None = None
    ray_address: str | None = None
    work_dir: str | None = None


Placed = Annotated[Where, tyro.conf.arg(name="")]


def main(argv: list[str] | None = None) -> int:
    """Runs one command; the exit code."""
    commands = {
        "run": run,
        "explain": explain,
        "doctor": doctor,
        "normalize": normalize,
        "dedup": dedup,
        "quality": quality,
        "decontaminate": decontaminate,
        "train-tokenizer": train_tokenizer,
        "tokenize": tokenize,
        "inspect": inspect,
    }
    for stream in (sys.stdout, sys.stderr):  # a file's name need not be text, nor a terminal know UTF-8
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with _log_on_stderr():
            return tyro.extras.subcommand_cli_from_dict(
                commands,
                prog="zephyr",
                description="Datasets for language models: clean, de-duplicate, tokenize.",
                args=argv,
            )
    except ZephyrError as e:
        print(f"zephyr: {e}", file=sys.stderr)
        for frame in _callers_frames(e):
            print(f"  {frame}", file=sys.stderr)
        return e.exit_code
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("zephyr: interrupted; committed work is kept, the same command goes on from there", file=sys.stderr)
        return 1


def run(script: Script, /, *, where: Placed = Where(), json: bool = False) -> int:
    """Runs a dataset that ends in a write, and leaves a report of it beside the parts, in `_report.json`.

    Example: zephyr run clean.py:dataset --workers 2 --memory 4GiB

    Args:
        script: a Python file and a name in it (by default `dataset`): a Dataset, or a function that returns one.
        where: where it runs.
        json: print the report as JSON.
    """
    dataset, name = load(script)
    with _session(where) as session:
        report = session.run(dataset, name=name)
    if report.files:
        out = report.files[0].parent
        if report.executed or not (out / REPORT).exists():
            report.save(out)
    if json:
        _print_json(report.to_json())
    else:
        _print_report(report)
    return 0


def explain(script: Script, /, *, where: Placed = Where(), json: bool = False) -> int:
    """Shows the fused plan of a dataset: what is read, done, exchanged and written, what is done already, and why the
    rest would run. Runs nothing: of where it would run, only the work directory matters.

    Example: zephyr explain clean.py

    Args:
        script: a Python file and a name in it (by default `dataset`).
        where: where it would run.
        json: print the plan as JSON.
    """
    dataset, _ = load(script)
    with _session(where) as session:
        explanation = session.explanation(dataset)
    if json:
        _print_json(explanation.to_json())
    else:
        print(explanation)
    return 0


def doctor(files: Positionals, /, *, format: Format | None = None, json: bool = False) -> int:
    """Reads files to the end; says what is damaged and where. Exit code 1 if anything is.

    Example: zephyr doctor raw/*.jsonl.zst

    Args:
        files: files, directories or globs.
        format: what the files are; by default told from their names.
        json: print the diagnoses as JSON.
    """
    from marin_zephyr.diagnosis.doctor import examine, is_sound, tell

    diagnoses = examine(list(files), format=format)
    if json:
        _print_json([dataclasses.asdict(d) for d in diagnoses])
    else:
        print(tell(diagnoses))
    return 0 if is_sound(diagnoses) else 1


def normalize(
    inputs: Positionals,
    /,
    *,
    out: str,
    documents: Literal["row", "file"] = "row",
    text_field: str = "text",
    format: Format | None = None,
    workers: int = 2,
    json: bool = False,
) -> int:
    """Writes raw files as a corpus: stable ids, one schema, rejects kept with their reasons.

    Example: zephyr normalize raw/ --out corpus/

    Args:
        inputs: files, directories or globs.
        out: the corpus directory to write.
        documents: one document a row, or one a file.
        text_field: the column that holds the text.
        format: what the files are; by default told from their names.
        workers: worker processes.
        json: print the report as JSON.
    """
    from marin_zephyr.text import normalize

    report = normalize(
        list(inputs),
        out,
        documents=documents,
        text_field=text_field,
        format=format,
        workers=workers,
        progress=_progress(),
    )
    return _finish(report, out, json=json)


def dedup(
    corpus: Directory, /, *, out: str, fuzzy: bool = False, threshold: float = 0.8, workers: int = 2, json: bool = False
) -> int:
    """Drops all but one of equal texts; with --fuzzy, also of nearly equal ones (verified n-gram Jaccard).

    Example: zephyr dedup corpus/ --out unique/ --fuzzy

    Args:
        corpus: a corpus directory, as `normalize` writes it.
        out: the corpus directory to write.
        fuzzy: also drop near duplicates.
        threshold: with --fuzzy, from which Jaccard index on two texts are near duplicates.
        workers: worker processes.
        json: print the report as JSON.
    """
    from marin_zephyr.text import exact_dedup, fuzzy_dedup

    if fuzzy:
        report: Any = fuzzy_dedup(corpus, out, threshold=threshold, workers=workers, progress=_progress())
    else:
        report = exact_dedup(corpus, out, workers=workers, progress=_progress())
    return _finish(report, out, json=json)


def quality(
    corpus: Directory,
    /,
    *,
    out: str,
    rules: tuple[Literal["gopher", "c4", "fineweb"], ...] = ("gopher",),
    workers: int = 2,
    work_dir: str | None = None,
    json: bool = False,
) -> int:
    """Drops documents that break a rule of quality; `_rejected/` in the output tells which rules, and by how much.

    Example: zephyr quality corpus/ --out good/ --rules gopher fineweb

    Args:
        corpus: a corpus directory, as `normalize` writes it.
        out: the corpus directory to write.
        rules: published sets of rules, of which a document must break none.
        workers: worker processes.
        work_dir: where judgements are kept for later runs.
        json: print the report as JSON.
    """
    from marin_zephyr.text import quality, quality_filter

    sets = {"gopher": quality.GOPHER, "c4": quality.C4, "fineweb": quality.FINEWEB}
    chosen = [rule for name in dict.fromkeys(rules) for rule in sets[name]]
    report = quality_filter(corpus, out, rules=chosen, workers=workers, work_dir=work_dir, progress=_progress())
    return _finish(report, out, json=json)


def decontaminate(
    corpus: Directory,
    /,
    *,
    against: tuple[str, ...],
    out: str,
    fields: tuple[str, ...] = (),
    ngram: int = 13,
    min_share: float = 0.0,
    max_documents: int | None = None,
    workers: int = 2,
    json: bool = False,
) -> int:
    """Drops documents that share word n-grams with evaluation sets; `_contamination/` in the output tells all of them.

    Example: zephyr decontaminate corpus/ --against evals/gsm8k.jsonl evals/mmlu.jsonl --out clean/

    Args:
        corpus: a corpus directory, as `normalize` writes it.
        against: evaluation sets: files, directories or globs, one row an item.
        out: the corpus directory to write.
        fields: the columns of an item that hold text; by default every string in it.
        ngram: words in an n-gram.
        min_share: the share of an item's n-grams that a document must hold; at 0 a single one is enough.
        max_documents: ignore n-grams that are in more documents than this; by default none.
        workers: worker processes.
        json: print the report as JSON.
    """
    from marin_zephyr.text import decontaminate

    report = decontaminate(
        corpus,
        out,
        against=against,
        fields=fields,
        ngram=ngram,
        min_share=min_share,
        max_documents=max_documents,
        workers=workers,
        progress=_progress(),
    )
    return _finish(report, out, json=json)


def train_tokenizer(
    inputs: Positionals,
    /,
    *,
    out: str,
    vocab_size: int = 8192,
    text_field: str = "text",
    special_token: tuple[str, ...] = ("<|endoftext|>",),
    max_bytes: int = 64 << 20,
    seed: int = 0,
    json: bool = False,
) -> int:
    """Trains a byte-level BPE tokenizer.

    Example: zephyr train-tokenizer corpus/ --vocab-size 8192 --out tokenizer.json

    Args:
        inputs: what `zephyr tokenize` reads: files, directories or globs.
        out: the tokenizer.json to write.
        vocab_size: ids in all.
        text_field: the column that holds the text.
        special_token: the special tokens, which get the first ids; the first of them ends a sequence.
        max_bytes: train on a sample of so many bytes of text.
        seed: chooses the sample.
        json: print the report as JSON.
    """
    from marin_zephyr.tokens import train_tokenizer

    report = train_tokenizer(
        list(inputs),
        out,
        vocab_size=vocab_size,
        text_field=text_field,
        special_tokens=special_token,
        max_bytes=max_bytes,
        seed=seed,
    )
    return _finish(report, out, json=json)


def tokenize(
    inputs: Positionals,
    /,
    *,
    tokenizer: str,
    out: str,
    text_field: str = "text",
    append_eos: bool = True,
    prepend_bos: bool = False,
    part_tokens: int = 1 << 26,
    on_error: Literal["raise", "skip", "quarantine"] = "raise",
    max_bad: float | None = None,
    chat: bool = False,
    chat_template: str | None = None,
    messages_field: str | None = None,
    prompt_field: str | None = None,
    completion_field: str | None = None,
    workers: int | None = None,
    engine: Literal["auto", "tokenizers", "gigatoken"] = "auto",
    json: bool = False,
) -> int:
    """Encodes documents into a token store.

    Example: zephyr tokenize corpus/ --tokenizer tokenizer.json --out tokens/ --on-error quarantine

    Args:
        inputs: files of any format, directories, globs or URLs.
        tokenizer: a tokenizer.json or a directory with one, or `bytes`.
        out: the store to write.
        text_field: the column that holds the text.
        append_eos: end each document with the id that ends a sequence.
        prepend_bos: begin each document with the id that begins one.
        part_tokens: a part of the store holds about so many ids; a killed run loses at most one.
        on_error: what becomes of a record that cannot be taken; quarantine keeps it, with its reason, in OUT/rejects.
        max_bad: how many of them fail the run: more than a number (100) or than a share (0.01).
        chat: rows are conversations; what the assistant says counts in the loss.
        chat_template: for conversations: a Jinja file, or `chatml`; by default the tokenizer's own.
        messages_field: for conversations: the column of messages; by default `messages`.
        prompt_field: rows are prompts with completions, of which the completion counts in the loss: the column.
        completion_field: likewise.
        workers: threads that encode; by default one a CPU.
        engine: `auto` takes gigatoken (extra `fast`) where it gives the ids of tokenizers; the ids are the same.
        json: print the report as JSON.
    """
    from marin_zephyr.tokens import ChatFormat, CompletionFormat, tokenize

    is_chat = chat or chat_template is not None or messages_field is not None
    is_completion = prompt_field is not None or completion_field is not None
    if is_chat and is_completion:
        raise UsageError("rows are conversations or prompts with completions: name the fields of one of them")
    supervised: ChatFormat | CompletionFormat | None = None
    if is_chat:
        supervised = ChatFormat(template=chat_template, messages_field=messages_field or "messages")
    elif is_completion:
        supervised = CompletionFormat(prompt_field or "prompt", completion_field or "completion")
    report = tokenize(
        list(inputs),
        out,
        tokenizer=tokenizer,
        workers=workers,
        text_field=text_field,
        append_eos=append_eos,
        prepend_bos=prepend_bos,
        part_tokens=part_tokens,
        on_error=on_error,
        max_bad=max_bad,
        engine=engine,
        supervised=supervised,
        progress=_progress(),
    )
    return _finish(report, out, json=json)


def inspect(store: Store, /, *, verify: bool = False, token: int | None = None, json: bool = False) -> int:
    """Shows a token store: counts, where it came from, and a sample. Exit code 1 if --verify finds damage.

    Example: zephyr inspect s3://bucket/tokens --verify

    Args:
        store: a token store: its directory, or a URL.
        verify: read every byte, check it against the store's checksums, and the index and ids for sense.
        token: show where this token of the store is: its part, its document, the file that came from, the text around.
        json: print as JSON.
    """
    from marin_zephyr.tokens import TokenStore
    from marin_zephyr.tokens.inspection import describe, tell

    opened = TokenStore.open(store)
    damage = opened.verify(progress=_progress()) if verify else None
    facts = describe(opened, token=token, damage=damage)
    if json:
        _print_json(facts)
    else:
        print(tell(facts, width=min(120, shutil.get_terminal_size().columns)))
        print(store)
    return 1 if facts.get("damage") else 0


def _session(where: Where) -> Session:
    return Session(
        backend=where.backend,
        workers=where.workers,
        memory=where.memory,
        work_dir=where.work_dir,
        ray_address=where.ray_address,
        progress=_progress(),
    )


def _progress() -> Progress:
    is_capable = sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    return BarProgress() if is_capable else LogProgress()


def _callers_frames(error: ZephyrError) -> list[str]:
    """Where in the caller's own code a function of theirs failed, innermost last; a worker sends it as a note."""
    if not isinstance(error, UserCodeError):
        return []
    cause = error.__cause__
    places = (
        [] if cause is None else [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(cause.__traceback__)]
    )
    for note in getattr(error, "__notes__", ()):
        places += re.findall(r'^  File "(.+)", line (\d+), in (.+)$', note, re.MULTILINE)
    foreign = (_PACKAGE, sysconfig.get_paths()["stdlib"], "<frozen")
    # A function that went to a worker by value has lost its file.
    places = [("" if file == "<dynamic-code>" else f"{file}, ", line, name) for file, line, name in places]
    own = [(f"{file}line {line}", name) for file, line, name in places if not file.startswith(foreign)]
    told = [f"{place}, in {name}" for place, name in own if place not in str(error) and "site-packages" not in place]
    return told[-_SHOWN_FRAMES:]


class _CurrentStderr(logging.StreamHandler):
    """Writes to what `sys.stderr` is at the moment: while a bar is drawn, lines go above it."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


@contextmanager
def _log_on_stderr() -> Generator[None]:
    handler = _CurrentStderr()
    handler.setFormatter(logging.Formatter("%(message)s"))
    log = logging.getLogger("marin_zephyr")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)


def _print_json(value: Any) -> None:
    print(jsonlib.dumps(value, indent=2, ensure_ascii=False, default=str))


def _finish(report: Any, where: str, *, json: bool) -> int:
    """Prints a report; the last line says where the result lies."""
    facts = dataclasses.asdict(report) if dataclasses.is_dataclass(report) else report  # pyrefly: ignore
    if json:
        _print_json(facts)
        return 0
    _print_facts({name: value for name, value in facts.items() if value != where})
    print(where)
    return 0


def _print_facts(facts: dict[str, Any], prefix: str = "") -> None:
    for name, value in facts.items():
        name = prefix + name.replace("_", " ")
        match value:
            case dict():
                _print_facts(value, f"{name} ")
                continue
            case list() | tuple() if any(isinstance(entry, dict) for entry in value):
                for entry in value:
                    _print_facts({n: v for n, v in entry.items() if n != "name"}, f"{entry.get('name', name)} ")
                continue
            case int():
                shown = f"{value:,}"
            case float():
                shown = f"{value:,.3f}"
            case list() | tuple():
                shown = "; ".join(value) or "none"
            case str() if "\n" in value:
                shown = jsonlib.dumps(value, ensure_ascii=False)
            case _:
                shown = value
        print(f"{name:<24} {shown}")


def _print_report(report: RunReport) -> None:
    print(report)
    for name, n in report.counters.items():
        if name not in _ROW_COUNTERS:
            print(f"  {name}: {n:,}")
    if not report.executed:
        print("nothing to do: everything was committed by an earlier run")
    if report.rejects:
        print(f"the refused records: {report.rejects[0].parent}")
    print(report.files[0].parent if report.files else "no files")


if __name__ == "__main__":
    sys.exit(main())
