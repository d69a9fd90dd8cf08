"""What ran: ``marin status``, ``marin report`` and ``marin logs``."""

import argparse
import codecs
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from marin_core import leases
from marin_core.commands import Answer
from marin_core.errors import UsageError
from marin_core.namesakes import titled
from marin_core.quantities import format_bytes, format_count, format_seconds
from marin_core.reading.catalogue import Catalogue
from marin_core.reading.heads import RunHead
from marin_core.reading.labelling import labels_of
from marin_core.reading.states import STATES, StepState, attempt_state, state_of
from marin_core.reading.tables import MOST_ROWS, align, hidden_line
from marin_core.records import AttemptRecord, Failure
from marin_core.web.files import PrefixFiles

_LOOK_EVERY = 0.25
"""Seconds between looks at a log that is followed."""


def status(parsed: argparse.Namespace) -> Answer:
    """The newest runs, and every step with its state."""
    catalogue = Catalogue.of(parsed.prefix)
    ids = catalogue.run_ids[-parsed.runs :] if parsed.runs else ()
    heads = list(catalogue.each(catalogue.head, ids).values())
    witness = leases.Witness()
    states = list(catalogue.each(lambda a: state_of(catalogue, a, witness=witness), catalogue.addresses).values())
    document = {
        "prefix": catalogue.store.url,
        "num_runs": len(catalogue.run_ids),
        "runs": [{**vars(h), "num_steps": h.num_steps} for h in heads if isinstance(h, RunHead)],
        "unreadable_runs": [str(h) for h in heads if not isinstance(h, RunHead)],
        "steps": [s.document() for s in states],
    }
    counts = {s: sum(x.state == s for x in states) for s in STATES}
    said = [f"{n:,} {state}" for state, n in counts.items() if n and state != "committed"]
    steps = ", ".join([format_count(counts["committed"], "committed step"), *said])
    last = f"{steps}, {format_count(len(catalogue.run_ids), 'run')} under {catalogue.store.url}"
    lines = [
        *align([_run_row(h) for h in heads if isinstance(h, RunHead)], width=parsed.width, right=frozenset({3, 4})),
        *(str(h) for h in heads if not isinstance(h, RunHead)),
        *_step_lines(catalogue, states, parsed),
        last,
    ]
    return Answer(document=document, lines=lines)


def _run_row(head: RunHead) -> tuple[str, ...]:
    took = head.ended_at - head.started_at if head.ended_at is not None else time.time() - head.started_at
    outcomes = ", ".join(f"{n:,} {outcome}" for outcome, n in head.outcomes.items())
    lasted = "-" if head.status == "died" else format_seconds(took)
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(head.started_at))
    steps = format_count(head.num_steps, "step")
    return head.run_id, when, head.status, lasted, steps, f"{head.script}: {outcomes}"


def _step_lines(catalogue: Catalogue, states: Sequence[StepState], parsed: argparse.Namespace) -> list[str]:
    """A line a step; of more than a screen bears, a line a name for those that are committed or collected."""
    settled = {"committed", "collected"} if len(states) > MOST_ROWS and not parsed.all else set()
    alone = [s for s in states if s.state not in settled]
    if settled and len(alone) > MOST_ROWS:
        alone = []
    grouped: dict[str, list[StepState]] = {}
    shown = {s.address for s in alone}
    for s in states:
        if s.address not in shown:
            grouped.setdefault(s.address.rpartition("/")[0], []).append(s)
    called = labels_of(catalogue, shown)
    rows = [_group_row(name, group) for name, group in grouped.items()]
    rows.extend(_step_row(s, called.get(s.address, "")) for s in alone)
    lines = align(rows, width=parsed.width, right=frozenset({2, 3, 4}))
    return [*lines, *([hidden_line("marin status", len(states) - len(alone), "step", len(grouped))] if grouped else [])]


def _group_row(name: str, group: Sequence[StepState]) -> tuple[str, ...]:
    commits = [s.commit for s in group if s.commit is not None]
    states = ", ".join(f"{n:,} {state}" for state, n in Counter(s.state for s in group).most_common())
    seconds, size = sum(c.seconds for c in commits), sum(c.num_bytes for c in commits)
    files = format_count(sum(c.num_files for c in commits), "file")
    return f"{name}/*", states, format_seconds(seconds), files, format_bytes(size), ""


def _step_row(step: StepState, label: str) -> tuple[str, ...]:
    c = step.commit
    numbers = (format_seconds(c.seconds), format_count(c.num_files, "file"), format_bytes(c.num_bytes)) if c else ()
    return titled(step.address, label), step.state, *(numbers or ("",) * 3), step.note


def report(parsed: argparse.Namespace) -> Answer:
    """Writes the page of one run."""
    from marin_core.report import write_report

    catalogue = Catalogue.of(parsed.prefix)
    if parsed.run == "latest" and not catalogue.run_ids:
        raise UsageError(f"there is no run under {catalogue.store.url}")
    record = catalogue.run(catalogue.find_run(parsed.run))
    beside = catalogue.store.child(f"runs/{record.run_id}.html")
    path = write_report(record, catalogue.store.url, parsed.html or beside)
    return Answer(document={"run_id": record.run_id, "html": path}, lines=[f"report: {path}"])


# Logs


def logs(parsed: argparse.Namespace) -> Answer:
    """What the body of one attempt printed; ``--follow`` stays with it to its end."""
    catalogue = Catalogue.of(parsed.prefix)
    address, remark = _attempted(catalogue, parsed.address)
    numbers = catalogue.attempts(address)
    if not numbers:
        raise UsageError(f"{address}: no attempt was made at it")
    number = parsed.attempt or numbers[-1]
    if number not in numbers:
        raise UsageError(f"{address}: there is no attempt {number}; there are {', '.join(map(str, numbers))}")
    log = Log(catalogue, address, number)
    text = log.tail(parsed.tail)
    state = log.state()
    if text is None and not parsed.follow and not log.failure():
        raise UsageError(f"{address}: attempt {number} ({state}) has no log")
    remarks = (*([remark] if remark else []), f"attempt {number} of {address}: {state}")
    if not parsed.json:
        lines = log.follow(text or "") if parsed.follow else _lines(text or "")
        return Answer(document=None, lines=_with_failure(lines, log), remarks=remarks)
    shown = "\n".join(log.follow(text or "")) if parsed.follow else text
    failure = log.failure()
    why = None if failure is None else asdict(failure)
    document = {"address": address, "attempt": number, "state": log.state(), "log": shown, "failure": why}
    return Answer(document=document, lines=(), remarks=remarks)


def _attempted(catalogue: Catalogue, text: str) -> tuple[str, str | None]:
    """The step that a text names, and a remark if others go by it too: the one that is being made now, else the one
    that was tried last, whatever came of it."""
    found = catalogue.addresses_of(text)
    witness = leases.Witness()

    def recency(address: str) -> tuple[bool, float, str]:
        number = max(catalogue.attempts(address), default=0)
        last = catalogue.attempt(address, number) if number else None
        if not isinstance(last, AttemptRecord):
            return False, 0.0, address
        running = last.state == "running" and attempt_state(catalogue, address, number, witness=witness) == "running"
        return running, last.started_at, address

    ranked = catalogue.each(recency, found)
    newest = max(found, key=ranked.__getitem__)
    what = "one that is running" if ranked[newest][0] else "last tried"
    return newest, None if len(found) == 1 else f"{text}: the {what} of {len(found)} is meant, {newest}"


def _with_failure(lines: Iterable[str], log: "Log") -> Iterator[str]:
    """What was printed, and then why the attempt failed, if it did."""
    yield from lines
    failure = log.failure()
    if failure is not None:
        yield from () if failure.type == "Crash" else failure.traceback.splitlines()  # whose is the end of the log
        yield f"failed: {failure.type}: {failure.message}"


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []


class Log:
    """The log of one attempt, which may be growing."""

    def __init__(self, catalogue: Catalogue, address: str, number: int) -> None:
        self._catalogue, self._address, self._number = catalogue, address, number
        self._key = f"{address}/attempts/{number}/log.txt"
        self._files = PrefixFiles(catalogue.store)
        self._read = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._witness = leases.Witness()

    def tail(self, lines: int | None) -> str | None:
        """What is in it so far, or the last lines of that; None if there is no log."""
        text = self._more()
        if text is None or lines is None:
            return text
        end = "\n" if text.endswith("\n") else ""
        return "\n".join(_lines(text)[-lines:]) + end if lines else ""

    def follow(self, text: str) -> Iterator[str]:
        """Lines as they come, until the attempt has ended; begins with ``text``."""
        while True:
            ended = self.state() != "running"  # asked first: what was printed before the end is read after it
            text += self._more() or ""
            *whole, text = text.split("\n")
            yield from whole
            if ended:
                break
            time.sleep(_LOOK_EVERY)
        yield from [text] if text else []

    def failure(self) -> Failure | None:
        """Why the attempt failed; None if it did not, or has not ended."""
        found = self._catalogue.attempt(self._address, self._number)
        return found.failure if isinstance(found, AttemptRecord) else None

    def state(self) -> str:
        """How the attempt stands; see `states`."""
        return attempt_state(self._catalogue, self._address, self._number, witness=self._witness)

    def _more(self) -> str | None:
        """What was added since the last call."""
        status = self._files.status(self._key)
        if status is None:
            return None
        data = self._files.range(self._key, start=self._read, stop=status.size)
        self._read += len(data)
        return self._decoder.decode(data)
