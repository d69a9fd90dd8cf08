"""What ran: ``marin status``, ``marin report`` and ``marin logs``.

A step's state is what its files say together: ``committed``, ``running`` (its lease is held by a process that lives),
``failed`` (the last attempt ended without a commit), ``collected``, or ``corrupt``. A committed step that is being
made again is ``running``; one whose later attempt failed stays ``committed`` and says so.
"""

import argparse
import codecs
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from marin_core import leases
from marin_core.commands import Answer
from marin_core.errors import CorruptRecordError, NewerRecordError, UsageError
from marin_core.quantities import format_bytes, format_count, format_seconds
from marin_core.reading.catalogue import Catalogue, RunHead
from marin_core.reading.tables import align
from marin_core.records import AttemptRecord, StepRecord

_LOOK_EVERY = 0.25
"""Seconds between looks at a log that is followed."""


@dataclass(frozen=True, kw_only=True)
class StepState:
    """One step as it stands now."""

    address: str
    state: str
    record: StepRecord | None
    note: str = ""
    """Who runs it, why it failed, what is wrong with its record."""

    def document(self) -> dict[str, Any]:
        r = self.record
        known = {"version": r.version, "seconds": r.seconds, "num_bytes": r.num_bytes} if r else {}
        value = {"attempt": r.attempt, "committed_at": r.committed_at, "value": r.value} if r else {}
        name = self.address.rpartition("/")[0]
        return {"address": self.address, "name": name, "state": self.state, "note": self.note, **known, **value}


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
    counts = {s: sum(x.state == s for x in states) for s in ("committed", "running", "failed", "collected", "corrupt")}
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
    r = step.record
    numbers = (
        (format_seconds(r.seconds), format_count(len(r.files), "file"), format_bytes(r.num_bytes)) if r else ("",) * 3
    )
    return step.address, step.state, *numbers, step.note


def state_of(catalogue: Catalogue, address: str, *, witness: leases.Witness) -> StepState:
    """What a step's files say together."""
    found = catalogue.record(address)
    if isinstance(found, CorruptRecordError | NewerRecordError):
        kind = "corrupt: " if isinstance(found, CorruptRecordError) else ""
        return StepState(address=address, state="corrupt", record=None, note=f"{kind}{found}")
    try:
        lease = leases.read(catalogue.store, address)
    except NewerRecordError as e:
        return StepState(address=address, state="corrupt", record=found, note=str(e))
    if lease is not None and witness.alive(address, lease):
        return StepState(address=address, state="running", record=found, note=_running(catalogue, address, lease))
    if found is not None and lease is not None and lease.epoch == found.epoch:
        return StepState(address=address, state="committed", record=found)  # no attempt was begun since
    number = max(catalogue.attempts(address), default=0)
    if found is not None and number <= found.attempt:
        return StepState(address=address, state="committed", record=found)
    last = catalogue.attempt(address, number) if number else None
    ended = _ending(last) if isinstance(last, AttemptRecord) else str(last or "no attempt was recorded")
    if found is not None:
        return StepState(address=address, state="committed", record=found, note=f"attempt {number} since: {ended}")
    stone = catalogue.tombstone(address)
    if stone is not None and not (isinstance(last, AttemptRecord) and last.state == "failed"):
        when = "" if isinstance(stone, Exception) else time.strftime("%Y-%m-%d", time.localtime(stone.collected_at))
        return StepState(address=address, state="collected", record=None, note=f"collected by gc on {when}")
    return StepState(address=address, state="failed", record=None, note=ended)


def _running(catalogue: Catalogue, address: str, lease: leases.Lease) -> str:
    number = max(catalogue.attempts(address), default=0)
    attempt = catalogue.attempt(address, number) if number else None
    since = ""
    if isinstance(attempt, AttemptRecord) and attempt.epoch == lease.epoch:
        since = f", attempt {number} for {format_seconds(time.time() - attempt.started_at)}"
    return f"{lease.who}{since}"


def _ending(attempt: AttemptRecord) -> str:
    if attempt.failure is not None:
        return f"{attempt.failure.type}: {attempt.failure.message}"
    if attempt.state == "running":
        return f"its driver died (pid {attempt.pid} on {attempt.host})"
    return f"{attempt.state}, not committed"


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
        self._file: BinaryIO | None = None
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
        """The attempt's recorded state; ``died`` when it says running and nobody holds the step's lease any more."""
        record = self._catalogue.attempt(self._address, self._number)
        if not isinstance(record, AttemptRecord):
            return "unreadable" if record else "unrecorded"
        if record.state != "running":
            return record.state
        lease = leases.read(self._catalogue.store, self._address)
        held = lease is not None and lease.epoch == record.epoch and self._witness.alive(self._address, lease)
        return "running" if held else "died"

    def _more(self) -> str | None:
        """What was added since the last call."""
        store = self._catalogue.store
        if store.local is None:
            data = store.read(self._key)
            if data is None:
                return None
            added, self._read = data[self._read :], len(data)
            return self._decoder.decode(added)
        if self._file is None:
            try:
                # Neither a link to elsewhere nor a pipe, whose opening waits for its writer.
                self._file = os.fdopen(
                    os.open(store.local / self._key, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb"
                )
            except FileNotFoundError:
                return None
        return self._decoder.decode(self._file.read())
