"""What ran: ``marin status``, ``marin report`` and ``marin logs``."""

import argparse
import codecs
import time
from collections.abc import Iterator

from marin_core import leases
from marin_core.commands import Answer
from marin_core.errors import UsageError
from marin_core.quantities import format_bytes, format_count, format_seconds
from marin_core.reading.catalogue import Catalogue
from marin_core.reading.heads import RunHead
from marin_core.reading.states import STATES, StepState, attempt_state, state_of
from marin_core.reading.tables import align
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
        *align([_step_row(s) for s in states], width=parsed.width, right=frozenset({2, 3, 4})),
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


def _step_row(step: StepState) -> tuple[str, ...]:
    c = step.commit
    numbers = (format_seconds(c.seconds), format_count(c.num_files, "file"), format_bytes(c.num_bytes)) if c else ()
    return step.address, step.state, *(numbers or ("",) * 3), step.note


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
    address, remark = catalogue.find_step(parsed.address)
    numbers = catalogue.attempts(address)
    if not numbers:
        raise UsageError(f"{address}: no attempt was made at it")
    number = parsed.attempt or numbers[-1]
    if number not in numbers:
        raise UsageError(f"{address}: there is no attempt {number}; there are {', '.join(map(str, numbers))}")
    log = Log(catalogue, address, number)
    text = log.tail(parsed.tail)
    state = log.state()
    if text is None and not parsed.follow:
        raise UsageError(f"{address}: attempt {number} ({state}) has no log")
    remarks = (*([remark] if remark else []), f"attempt {number} of {address}: {state}")
    if not parsed.json:
        lines = log.follow(text or "") if parsed.follow else _lines(text or "")
        return Answer(document=None, lines=lines, remarks=remarks)
    shown = "\n".join(log.follow(text or "")) if parsed.follow else text
    document = {"address": address, "attempt": number, "state": log.state(), "log": shown}
    return Answer(document=document, lines=(), remarks=remarks)


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
