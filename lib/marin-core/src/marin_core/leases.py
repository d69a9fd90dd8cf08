"""Fenced leases: of all runners that want a step, one holds it, and one that has lost it cannot commit.

``{address}/lease.json`` names the holder (host, pid and the process's start time, so that a recycled pid is not taken
for it), a nonce, the epoch, the term and a beat that the holder advances. Every acquisition raises the epoch. The file
changes by compare-and-swap alone, and no two of its states are equal: a nonce is drawn for every acquisition, and
every change by its holder advances the beat. (Fencing tokens: Gray and Cheriton, "Leases", 1989; Kleppmann, 2016.)

**Judgement.** A holder whose process is dead on this very host is overtaken at once. Any other is judged by the clock
of a `Witness`: no change of nonce or beat for the lease's own term, since this witness first saw this beat. Clocks of
two hosts are never compared. A holder that cannot renew gives up before its term ends (`renewals`).

**Commit.** The pointer ``{address}/step.json`` is swapped against the version that it had when the lease was taken, on
condition that the lease still bears our nonce. A store that cannot check the two at once leaves a gap between the look
and the write, in which a sleeper could be overtaken. There, whoever overtakes a lease that was still held *fences*
first: it changes the pointer, to a copy with a higher ``fence``, or, where none is committed, to one that names no
attempt and that every reader takes for nothing. A sleeper's write is then against a version that is gone.

So there is at most one commit an epoch, and none of an earlier epoch once `acquire` has returned.
"""

import contextlib
import json
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from marin_core import faults
from marin_core.errors import ConflictError, LeaseLostError, NewerRecordError
from marin_core.processes import Process, kill_group, this_host
from marin_core.records import SCHEMA, build, check_schema, fenced
from marin_core.store import Guard, Store, Versioned

TERM = 60.0
"""Seconds without a sign of life after which a holder counts as gone, unless its runner says otherwise."""


def clock() -> float:
    """Seconds that also pass while this machine is suspended, where the system has such a clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@dataclass(frozen=True, kw_only=True)
class Lease:
    """What ``lease.json`` holds."""

    epoch: int
    nonce: str
    host: str
    holder: Process
    run_id: str
    term: float = TERM
    """Seconds for which the holder may be silent."""
    beat: int = 0
    body: Process | None = None
    """The process group that runs the step; until one has started, that of the holder who was overtaken."""
    held: bool = True
    schema: int = SCHEMA

    @property
    def who(self) -> str:
        """The holder, in words: its run, and the process to look for."""
        return f"run {self.run_id} (pid {self.holder.pid} on {self.host.split(':')[0]})"


@dataclass(frozen=True, kw_only=True)
class Holding:
    """A lease that this process has taken."""

    lease: Lease
    """As it was first written: its nonce, epoch and term stay."""
    pointer: str | None
    """Version of ``step.json`` that a commit replaces; None if there is none."""
    asked_at: float
    """On `clock`: when it was asked for, from which the term counts."""
    overtaken: Lease | None = None
    """The lease whose holder was overtaken, and whose body may still run somewhere."""

    @property
    def epoch(self) -> int:
        return self.lease.epoch


@dataclass
class Witness:
    """Judges foreign leases by when this process saw them change."""

    clock: Callable[[], float] = clock
    _seen: dict[str, tuple[tuple[str, int], float]] = field(default_factory=dict)

    def alive(self, address: str, lease: Lease) -> bool:
        """Whether the holder still has to be respected."""
        if not lease.held or (lease.host == this_host() and not lease.holder.alive()):
            return False
        mark, now = (lease.nonce, lease.beat), self.clock()
        seen, since = self._seen.get(address, (None, now))
        if seen != mark:
            self._seen[address] = (mark, now)
            return True
        return now - since < lease.term


def key(address: str) -> str:
    """The lease's key in the store."""
    return f"{address}/lease.json"


class Readable(Protocol):
    """A store, as far as reading goes."""

    def read(self, key: str) -> bytes | None: ...


def read(store: Readable, address: str) -> Lease | None:
    """The lease of a step, or None if it never had a readable one.

    Raises:
        NewerRecordError: it is of a later schema.
    """
    return _lease(store.read(key(address)), where=key(address))


def _lease(data: bytes | None, *, where: str) -> Lease | None:
    fields = _object(data, where=where)
    try:
        return build(Lease, fields) if fields else None
    except (ValueError, TypeError):
        return None


def _object(data: bytes | None, *, where: str) -> dict[str, Any] | None:
    """The JSON object that bytes hold; None if there is none, or nothing readable."""
    try:
        found = json.loads(data or b"")
        check_schema(found, where=where)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    return found


def acquire(
    store: Store,
    address: str,
    *,
    run_id: str,
    witness: Witness,
    term: float = TERM,
    nonce: Callable[[], str] = lambda: secrets.token_hex(8),
) -> Holding | None:
    """Takes the lease, or returns None while another holder is alive. The body that a dead holder left on this host is
    killed before this returns.

    Args:
        store: the prefix.
        address: the step.
        run_id: the run that wants it.
        witness: who judges the present holder.
        term: seconds for which this process may be silent before it is overtaken.
        nonce: draws what no other acquisition has.

    Raises:
        NewerRecordError: the lease, or an attempt at the step, is of a later schema.
    """
    asked_at = witness.clock()
    found = store.read_versioned(key(address))
    current = _lease(found.data if found else None, where=key(address))
    if current is not None and witness.alive(address, current):
        return None
    last = _last_epoch(store, address)  # asked for in any case: it refuses a step that a later version works on
    lease = Lease(
        epoch=(current.epoch if current else last) + 1,
        nonce=nonce(),
        host=this_host(),
        holder=Process.of(os.getpid()),
        run_id=run_id,
        term=term,
        body=current.body if current and current.host == this_host() else None,
    )
    try:
        store.swap(key(address), _json(lease), expected=found.version if found else None)
    except ConflictError:
        return None
    faults.reached("lease-acquired")
    if lease.body is not None:
        kill_group(lease.body)
    # A lease that was given back has no write under way. One that cannot be read, or is lost, may be anyone's.
    fresh = current is None and found is None and last == 0
    settled = fresh or (current is not None and not current.held)
    pointer = _version(store.read_versioned(_pointer(address))) if settled or store.guards else None
    if not settled and not store.guards:
        pointer = _fence(store, address, lease.epoch)
    return Holding(lease=lease, pointer=pointer, asked_at=asked_at, overtaken=None if settled else current)


def _last_epoch(store: Store, address: str) -> int:
    """The highest epoch of an attempt: where to go on when the lease itself was lost, as in a power failure."""
    epochs = [0]
    for number in store.names(f"{address}/attempts"):
        where = f"{address}/attempts/{number}/attempt.json"
        record = _object(store.read(where), where=where) or {}
        if isinstance(record.get("epoch"), int):
            epochs.append(record["epoch"])
    return max(epochs)


def _fence(store: Store, address: str, epoch: int) -> str:
    """Changes the pointer's version, and nothing that it says of a committed attempt; returns the new version."""
    while True:
        found = store.read_versioned(_pointer(address))
        data = fenced(found.data if found else None, address=address, epoch=epoch)
        try:
            return store.swap(_pointer(address), data, expected=_version(found))
        except ConflictError:  # a commit of the epoch before came first: it stands, and is fenced in its turn
            continue


def update(store: Store, address: str, holding: Holding, *, body: Process | None) -> None:
    """Records which process group runs the step. Raises `LeaseLostError` if the lease is no longer ours."""
    _change(store, address, holding, body=body)


def renew(store: Store, address: str, holding: Holding) -> None:
    """Advances the beat. Raises `LeaseLostError` if the lease is no longer ours."""
    _change(store, address, holding)


def release(store: Store, address: str, holding: Holding) -> None:
    """Gives the lease back, if it is still ours. The epoch stays, so that the next holder's is higher."""
    with contextlib.suppress(LeaseLostError):
        _change(store, address, holding, held=False, body=None)
    faults.reached("lease-released")


def check(store: Store, address: str, holding: Holding) -> None:
    """Raises `LeaseLostError` if the lease is no longer ours."""
    _ours(store.read(key(address)), address, holding)


def commit(store: Store, address: str, holding: Holding, data: bytes) -> None:
    """Swaps the pointer in.

    Raises:
        LeaseLostError: another runner has taken the step over; nothing is committed.
        UnsettledError: the store did not answer; it may yet be committed, so the lease must not be given back.
    """

    def still_ours(lease: bytes | None) -> bool:
        try:
            return bool(_ours(lease, address, holding))
        except LeaseLostError:
            return False

    guard = Guard(key(address), still_ours)
    try:
        store.swap(_pointer(address), data, expected=holding.pointer, guard=guard, durable=True)
    except ConflictError as e:
        check(store, address, holding)
        raise LeaseLostError(f"step {address}: its step.json was changed by someone else meanwhile") from e


def _change(store: Store, address: str, holding: Holding, **changes: Any) -> None:
    while True:
        found = store.read_versioned(key(address))
        current = _ours(found.data if found else None, address, holding)
        try:
            changed = replace(current, beat=current.beat + 1, **changes)
            store.swap(key(address), _json(changed), expected=_version(found))
            return
        except ConflictError:  # our own other thread, or a successor: the next look tells
            continue


def _ours(data: bytes | None, address: str, holding: Holding) -> Lease:
    """The lease as it stands, if it is the one that we hold."""
    lost = f"step {address}: the lease of epoch {holding.epoch} is lost"
    try:
        current = _lease(data, where=key(address))
    except NewerRecordError as e:
        raise LeaseLostError(f"{lost}: {e}") from e
    if current is None or current.nonce != holding.lease.nonce or not current.held:
        raise LeaseLostError(f"{lost} to {current.who if current else 'no one'}; this attempt is void")
    return current


def _pointer(address: str) -> str:
    return f"{address}/step.json"


def _version(found: Versioned | None) -> str | None:
    return None if found is None else found.version


def _json(lease: Lease) -> bytes:
    return _encode(lease).encode()


_encode = json.JSONEncoder(sort_keys=True, allow_nan=False, default=vars).encode
