"""States: how a step and an attempt stand now, by what their files say together.

A step is ``committed``, ``running`` (its lease is held by a process that lives), ``failed`` (the last attempt ended
without a commit), ``collected``, ``corrupt``, or ``newer`` (of a later schema). A committed step that is being made
again is ``running``; one whose later attempt failed stays ``committed`` and says so. An attempt that says running, and
that nobody's lease speaks for any more, has ``died``.
"""

import time
from dataclasses import dataclass
from typing import Any

from marin_core import leases
from marin_core.errors import NewerRecordError
from marin_core.quantities import format_seconds
from marin_core.reading.catalogue import Catalogue, Commit
from marin_core.records import AttemptRecord

STATES = ("committed", "running", "failed", "collected", "corrupt", "newer")


@dataclass(frozen=True, kw_only=True)
class StepState:
    """One step as it stands now."""

    address: str
    state: str
    commit: Commit | None
    note: str = ""
    """Who runs it, why it failed, what is wrong with its record."""

    def document(self) -> dict[str, Any]:
        c = self.commit
        known = {"version": c.version, "seconds": c.seconds, "num_bytes": c.num_bytes} if c else {}
        value = {"attempt": c.attempt, "committed_at": c.committed_at, "value": c.value} if c else {}
        name = self.address.rpartition("/")[0]
        return {"address": self.address, "name": name, "state": self.state, "note": self.note, **known, **value}


def state_of(catalogue: Catalogue, address: str, *, witness: leases.Witness) -> StepState:
    """What a step's files say together."""
    found = catalogue.commit(address)
    if isinstance(found, Exception):
        newer = isinstance(found, NewerRecordError)
        note = str(found) if newer else f"corrupt: {found}"
        return StepState(address=address, state="newer" if newer else "corrupt", commit=None, note=note)
    try:
        lease = catalogue.lease(address)
    except NewerRecordError as e:
        return StepState(address=address, state="newer", commit=found, note=str(e))
    if lease is not None and witness.alive(address, lease):
        return StepState(address=address, state="running", commit=found, note=_running(catalogue, address, lease))
    if found is not None and lease is not None and lease.epoch == found.epoch:
        return StepState(address=address, state="committed", commit=found)  # no attempt was begun since
    number = max(catalogue.attempts(address), default=0)
    if found is not None and number <= found.attempt:
        return StepState(address=address, state="committed", commit=found)
    last = catalogue.attempt(address, number) if number else None
    if found is not None and isinstance(last, AttemptRecord) and last.state == "succeeded":
        return StepState(address=address, state="committed", commit=found)  # an earlier attempt was pointed at again
    ended = _ending(last) if isinstance(last, AttemptRecord) else str(last or "no attempt was recorded")
    if found is not None:
        return StepState(address=address, state="committed", commit=found, note=f"attempt {number} since: {ended}")
    stone = catalogue.tombstone(address)
    if stone is not None and not (isinstance(last, AttemptRecord) and last.state == "failed"):
        when = "" if isinstance(stone, Exception) else time.strftime("%Y-%m-%d", time.localtime(stone.collected_at))
        return StepState(address=address, state="collected", commit=None, note=f"collected by gc on {when}")
    return StepState(address=address, state="failed", commit=None, note=ended)


def attempt_state(catalogue: Catalogue, address: str, number: int, *, witness: leases.Witness) -> str:
    """An attempt's recorded state; ``died`` when it says running and nobody holds the step's lease any more."""
    record = catalogue.attempt(address, number)
    if not isinstance(record, AttemptRecord):
        return "unreadable" if record else "unrecorded"
    if record.state != "running":
        return record.state
    try:
        lease = catalogue.lease(address)
    except NewerRecordError:
        return "running"
    held = lease is not None and lease.epoch == record.epoch and witness.alive(address, lease)
    return "running" if held else "died"


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
