"""The pages of one thing: a step, an attempt at it, a file that it made."""

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from marin_core.quantities import format_bytes, format_count, format_seconds, format_time
from marin_core.reading.catalogue import Unreadable
from marin_core.reasons import flatten
from marin_core.records import AttemptRecord, StepRecord
from marin_core.server.catalogue import Catalogue, RunSummary
from marin_core.server.frames import digests, fields, joined, page, section, state, table
from marin_core.server.listings import unreadable_word
from marin_core.web.files import FoundFile, UnreadableFileError
from marin_core.web.links import (
    attempt_url,
    download_url,
    events_url,
    file_url,
    image_url,
    run_url,
    step_url,
)  # fmt: skip
from marin_core.web.logs import clean_log
from marin_core.web.markup import Child, Markup, element, fragment, note
from marin_core.web.previews import IMAGES, render_preview
from marin_core.web.steps import render_failure
from marin_core.web.values import render_value

_MAX_FILES = 1000
_MAX_LINKS = 60
_MAX_RUNS = 30
_MAX_ATTEMPTS = 100
_MAX_LEAVES = 400
_LAST_LINES = 20
_LAST_BYTES = 8_000
_LOG_BYTES = 256_000
_LOG_LINES = 2000


def step_page(catalogue: Catalogue, address: str) -> Markup:
    """What is committed at an address, what the last attempt failed of, every attempt, and what it was made from.

    Raises:
        UnreadableFileError: there is nothing at the address, or it leads outside the prefix.
    """
    record, attempts = catalogue.record(address), catalogue.attempts(address)
    if record is None and not attempts:
        raise UnreadableFileError(f"there is no step {address}")
    found = catalogue.state(address)
    last = catalogue.attempt(address, max(attempts)) if attempts else None
    failure = _failed(catalogue, last) if isinstance(last, AttemptRecord) and last.failure is not None else None
    parts: list[Child] = [note(found.note)] if found.note and failure is None else []
    word = found.state
    if isinstance(record, StepRecord):
        parts += [failure, *_committed(record, address)]
    elif record is not None:
        word = unreadable_word(record)
        parts = [note(str(record))]
    elif (before := catalogue.remembered(address)) is not None:
        parts += [failure, *_remembered(before)]
    else:
        parts += [failure, _asked(catalogue, last)]
    known = record if isinstance(record, StepRecord) else catalogue.remembered(address)
    return page(
        address,
        *parts,
        section("Attempts", _attempts(catalogue, address, attempts, committed=getattr(record, "attempt", None))),
        _lineage(catalogue, address, known),
        prefix=catalogue.url,
        heading=fragment(element("h1", address), element("p", state(word))),
    )


def _failed(catalogue: Catalogue, attempt: AttemptRecord) -> Markup | None:
    """What the last attempt at a step raised, and the last that it printed."""
    if attempt.failure is None:
        return None
    link = element("a", f"attempt {attempt.attempt}", href=attempt_url(attempt.address, attempt.attempt))
    try:
        text = clean_log(catalogue.files().tail(attempt.log, max_bytes=_LAST_BYTES), max_lines=_LAST_LINES)
    except UnreadableFileError:
        text = ""
    return element(
        "section",
        element("h2", "What went wrong"),
        render_failure(attempt.failure),
        fragment(element("h4", "The last it printed"), element("pre", text, tabindex=0)) if text else None,
        note(link, ", all of its log and its files"),
        class_="failures failed",
    )


def _asked(catalogue: Catalogue, last: AttemptRecord | Unreadable | None) -> Child:
    """What a step was given that never came to be committed, by the run that tried it last."""
    run = catalogue.run_data(last.run_id) if isinstance(last, AttemptRecord) else None
    nodes = run.get("nodes") if isinstance(run, dict) else None
    node = next((n for n in nodes or () if isinstance(last, AttemptRecord) and n.get("address") == last.address), None)
    if node is None or not node.get("arguments"):
        return None
    links = {up: step_url(up) for up in node.get("upstream", ())}
    return section("Arguments", render_value(node["arguments"], links=links))


def _remembered(record: StepRecord) -> list[Child]:
    """What was committed before it was collected."""
    facts = [
        ("was committed", format_time(record.committed_at)),
        ("took", format_seconds(record.seconds)),
        ("output", f"{format_count(len(record.files), 'file')}, {format_bytes(record.num_bytes)}"),
        ("digests", digests(record.digests, output=record.output_digest)),
    ]
    return [
        fields(facts),
        section("Value", render_value(record.value, name=record.name)) if record.value is not None else None,
        _recipe(record),
    ]


def _recipe(record: StepRecord) -> Markup:
    leaves = list(_leaves(record.recipe).items())
    return section(
        "Recipe",
        fields((name, element("code", value)) for name, value in leaves[:_MAX_LEAVES]),
        note(format_count(len(leaves) - _MAX_LEAVES, "more argument")) if len(leaves) > _MAX_LEAVES else None,
    )


def _committed(record: StepRecord, address: str) -> list[Child]:
    out = f"{address}/attempts/{record.attempt}/out"
    facts = [
        ("name", record.name),
        ("version", record.version),
        ("attempt", element("a", str(record.attempt), href=attempt_url(address, record.attempt))),
        ("committed", format_time(record.committed_at)),
        ("took", format_seconds(record.seconds)),
        ("output", f"{format_count(len(record.files), 'file')}, {format_bytes(record.num_bytes)}"),
        ("digests", digests(record.digests, output=record.output_digest)),
    ]
    listed = [FoundFile(entry.path, entry.size) for entry in record.files]
    return [
        fields(facts),
        section("Value", render_value(record.value, name=record.name)) if record.value is not None else None,
        section("Files", _files(listed, directory=out)) if listed else None,
        _recipe(record),
        section("Code", _units(record.code)) if record.code else None,
    ]


def _leaves(recipe: dict[str, Any]) -> dict[str, str]:
    try:
        return flatten(recipe)
    except (AttributeError, TypeError, ValueError, IndexError) as e:
        return {"corrupt": str(e)}


def _units(code: dict[str, str]) -> Markup:
    """The functions, classes and constants that the step's code reaches, each with its digest."""
    rows = [
        element("tr", element("td", element("code", name)), element("td", element("code", digest[:12])))
        for name, digest in code.items()
    ]
    return table(("reaches", "digest"), rows)


def _attempts(catalogue: Catalogue, address: str, numbers: Sequence[int], *, committed: int | None) -> Markup:
    rows = [
        _attempt_row(catalogue, address, n, is_committed=n == committed) for n in numbers[: -_MAX_ATTEMPTS - 1 : -1]
    ]
    if not rows:
        return note("No attempt is recorded.")
    return table(("attempt", "state", "started", "took", "reason", "run"), rows, numbers=("took",), is_wide=True)


def _attempt_row(catalogue: Catalogue, address: str, number: int, *, is_committed: bool) -> Markup:
    link = element("a", str(number), href=attempt_url(address, number))
    kept = element("small", "committed") if is_committed else None
    record = catalogue.attempt(address, number)
    if not isinstance(record, AttemptRecord):
        said = str(record) if record is not None else "no record"
        return element("tr", element("td", link, kept), element("td", said, colspan=5))
    failed = f"{record.failure.type}: {record.failure.message}" if record.failure else None
    return element(
        "tr",
        element("td", link, kept),
        element("td", state(catalogue.attempt_state(address, number))),
        element("td", format_time(record.started_at), class_="when"),
        element("td", _took(record), class_="number"),
        element("td", record.reason, element("small", _shortened(failed)) if failed else None),
        element("td", element("a", element("code", record.run_id), href=run_url(record.run_id))),
    )


def _lineage(catalogue: Catalogue, address: str, record: StepRecord | None) -> Markup:
    """Links to what it was made from and, by the runs that can be read, to what was made from it."""
    runs = [run for run in catalogue.summaries(most=_MAX_RUNS) if address in run.nodes]
    downstream = dict.fromkeys(below for run in runs for below in run.downstream.get(address, ()))
    rows = [
        (
            "made from",
            joined(
                [element("a", up, href=step_url(up)) for up in (record.upstream if record else _given(runs, address))],
                most=_MAX_LINKS,
            ),
        ),
        ("went into", joined([element("a", below, href=step_url(below)) for below in downstream], most=_MAX_LINKS)),
        ("in runs", joined([_run_link(run, address) for run in runs], most=_MAX_LINKS)),
    ]
    shown = [(name, body) for name, body in rows if body is not None]
    return section("Lineage", fields(shown) if shown else note("Nothing is recorded of it."))


def _given(runs: Sequence[RunSummary], address: str) -> list[str]:
    """What a step would be made from, by the newest run that asked for it."""
    return [up for up, below in runs[0].downstream.items() if address in below] if runs else []


def _run_link(run: RunSummary, address: str) -> Markup:
    return element("a", f"{run.head.run_id} ({run.nodes[address]})", href=run_url(run.head.run_id))


def attempt_page(catalogue: Catalogue, address: str, number: int) -> Markup:
    """One attempt: how it ended, its log, which follows as long as it runs, and its files.

    Raises:
        UnreadableFileError: there is no such attempt, or the address leads outside the prefix.
    """
    record = catalogue.attempt(address, number)
    directory = f"{address}/attempts/{number}"
    if record is None and number not in catalogue.attempts(address):
        raise UnreadableFileError(f"there is no attempt {number} at {address}")
    parts: list[Child] = []
    word = "no record" if record is None else ""
    if isinstance(record, AttemptRecord):
        word = catalogue.attempt_state(address, number)
        parts = [_attempt_facts(catalogue, record, address)]
        if record.failure is not None:
            parts.append(section("Failure", render_failure(record.failure)))
    elif record is not None:
        word = unreadable_word(record)
        parts = [note(str(record))]
    title = f"{address}, attempt {number}"
    heading = fragment(
        element("h1", element("a", address, href=step_url(address)), f" attempt {number}"), element("p", state(word))
    )
    files = _found(catalogue, f"{directory}/out")
    return page(
        title,
        *parts,
        section("Log", _log(catalogue, address, number, is_running=word == "running")),
        section("Files", files) if files else None,
        prefix=catalogue.url,
        heading=heading,
    )


def _attempt_facts(catalogue: Catalogue, record: AttemptRecord, address: str) -> Markup:
    committed = getattr(catalogue.record(address), "attempt", None)
    return fields(
        [
            ("reason", record.reason),
            ("run", element("a", element("code", record.run_id), href=run_url(record.run_id))),
            (
                "committed",
                "yes" if committed == record.attempt else f"no, attempt {committed} is" if committed else "no",
            ),
            ("started", format_time(record.started_at)),
            ("took", _took(record)),
            ("where", f"process {record.pid} of {record.user} on {record.host}"),
            ("epoch", str(record.epoch)),
            ("digests", digests(record.digests)),
        ]
    )


def _log(catalogue: Catalogue, address: str, number: int, *, is_running: bool) -> Markup:
    key = f"{address}/attempts/{number}/log.txt"
    files = catalogue.files()
    status = files.status(key)
    size = status.size if status else 0
    whole = (
        element("p", element("a", f"all of it, {format_bytes(size)}", href=download_url(key)), class_="note")
        if size
        else None
    )
    if is_running:
        start = max(0, size - _LOG_BYTES)
        following = element(
            "pre", class_="log follow", tabindex=0, data_events=events_url(address, number, offset=start)
        )
        return fragment(following, whole)
    if status is None:
        return note("There is no log.")
    text = clean_log(files.tail(key, max_bytes=_LOG_BYTES), max_lines=_LOG_LINES)
    return fragment(element("pre", text, class_="log", tabindex=0) if text else note("The log is empty."), whole)


def _found(catalogue: Catalogue, directory: str) -> Markup | None:
    try:
        found = catalogue.files().find(directory, max_files=_MAX_FILES)
    except UnreadableFileError as e:
        return note(str(e))
    return _files(found, directory=directory) if found else None


def _files(files: list[FoundFile], *, directory: str) -> Markup:
    rows = [
        element(
            "tr",
            element("td", element("a", file.path, href=file_url(f"{directory}/{file.path}"))),
            element("td", format_bytes(file.size), class_="number"),
            element("td", element("a", "download", href=download_url(f"{directory}/{file.path}"))),
        )
        for file in files[:_MAX_FILES]
    ]
    more = note(format_count(len(files) - _MAX_FILES, "more file")) if len(files) > _MAX_FILES else None
    return fragment(table(("file", "size", ""), rows, numbers=("size",)), more)


def file_page(catalogue: Catalogue, path: str) -> Markup:
    """A file with its preview.

    Raises:
        UnreadableFileError: it is missing, no output or log, or leads outside the prefix.
    """
    address, number, inner = owner_of(path)
    files = catalogue.files()
    status = files.status(path)
    if status is None:
        raise UnreadableFileError(f"there is no file {path}")
    is_image = PurePosixPath(path).suffix.lower() in IMAGES
    preview = render_preview(files, path, size=status.size, image=image_url(path) if is_image else None)
    facts = fields(
        [
            ("of", element("a", f"{address}, attempt {number}", href=attempt_url(address, number))),
            (
                "size",
                fragment(
                    format_bytes(status.size), element("small", f"{status.size:,} bytes") if status.size > 999 else None
                ),
            ),
            ("as it is", element("a", "download", href=download_url(path))),
        ]
    )
    return page(inner, facts, section("Preview", preview), prefix=catalogue.url)


def owner_of(path: str) -> tuple[str, int, str]:
    """The address, attempt and name of an output file or log, by its path under the prefix.

    Raises:
        UnreadableFileError: it is neither; nothing else under a prefix is handed out.
    """
    parts = path.split("/")
    for i in range(1, len(parts) - 2):
        rest = parts[i + 2 :]
        is_output = rest[0] == "out" and len(rest) > 1
        if parts[i] == "attempts" and parts[i + 1].isdecimal() and (is_output or rest == ["log.txt"]):
            return "/".join(parts[:i]), int(parts[i + 1]), "/".join(rest[1:] if is_output else rest)
    raise UnreadableFileError(f"{path}: only outputs and logs are shown")


def _took(record: AttemptRecord) -> str:
    return format_seconds(record.ended_at - record.started_at) if record.ended_at is not None else "not ended"


def _shortened(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:199]}…"
