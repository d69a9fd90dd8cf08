"""Fenced leases: of all runners that want a step, one holds it, and one that has lost it cannot commit.

``{address}/lease.json`` names the holder (host, pid and the process's start time, so that a recycled pid is not taken
for it), a nonce, the epoch and a beat that the holder advances. Every acquisition raises the epoch. A commit happens
under the lease's lock and only if the nonce is still the holder's own, which is the fence: whoever was overtaken,
even asleep in the middle of it, is rejected. (Fencing tokens: Gray and Cheriton, "Leases", 1989; Kleppmann, 2016.)

A holder whose process is dead on this very host is overtaken at once. A holder elsewhere is judged by the clock of
a `Witness`: no beat for `EXPIRY` seconds since it first saw this one. Clocks of two hosts are never compared.
"""

import functools
import json
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from marin_core.errors import LeaseLostError, MarinCoreError, NewerRecordError
from marin_core.records import SCHEMA, build, check_schema
from marin_core.store import Store

log = logging.getLogger(__name__)

BEAT = 10.0
"""Seconds between a holder's beats."""
EXPIRY = 60.0
"""Seconds without a beat after which a holder on another host counts as gone."""


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process: pid, and the tick at which it started (0 where the system does not tell)."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> "Process":
        """The process that has this pid now."""
        return cls(pid=pid, started=_start_tick(pid) or 0)

    def alive(self) -> bool:
        """True while this very process, not a later one of the same pid, exists on this host."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return not self.started or _start_tick(self.pid) == self.started


@dataclass(frozen=True, kw_only=True)
class Lease:
    """What ``lease.json`` holds. ``body`` is the process group that runs the step, once it has started."""

    epoch: int
    nonce: str
    host: str
    holder: Process
    run_id: str
    beat: int = 0
    body: Process | None = None
    held: bool = True
    schema: int = SCHEMA

    @property
    def who(self) -> str:
        """The holder, in words: its run, and the process to look for."""
        return f"run {self.run_id} (pid {self.holder.pid} on {self.host.split(':')[0]})"


@dataclass
class Witness:
    """Judges foreign leases by when this process saw them change."""

    clock: Callable[[], float] = time.monotonic
    _seen: dict[str, tuple[tuple[str, int], float]] = field(default_factory=dict)

    def alive(self, address: str, lease: Lease) -> bool:
        """Whether the holder still has to be respected."""
        if not lease.held:
            return False
        if lease.host == this_host():
            return lease.holder.alive()
        mark, now = (lease.nonce, lease.beat), self.clock()
        seen, since = self._seen.get(address, (None, now))
        if seen != mark:
            self._seen[address] = (mark, now)
            return True
        return now - since < EXPIRY


def key(address: str) -> str:
    """The lease's key in the store."""
    return f"{address}/lease.json"


def read(store: Store, address: str) -> Lease | None:
    """The lease of a step, or None if it never had a readable one.

    Raises:
        NewerRecordError: it is of a later schema.
    """
    fields = _object(store, key(address))
    try:
        return build(Lease, fields) if fields else None
    except (ValueError, TypeError):
        return None


def _object(store: Store, key: str) -> dict[str, Any] | None:
    """The JSON object at a key; None if there is none, or nothing readable."""
    try:
        data = json.loads(store.read(key) or b"")
        check_schema(data, where=key)
    except (ValueError, TypeError, AttributeError):
        return None
    return data


def acquire(store: Store, address: str, *, run_id: str, witness: Witness) -> Lease | None:
    """Takes the lease, or returns None while another holder is alive. A dead holder's body is killed first.

    Raises:
        NewerRecordError: the lease, or an attempt at the step, is of a later schema.
    """
    with store.exclusive(key(address)):
        current = read(store, address)
        if current is not None and witness.alive(address, current):
            return None
        if current is not None and current.body is not None and current.host == this_host():
            _kill_group(current.body)
        last = _last_epoch(store, address)  # asked for in any case: it refuses a step that a later version works on
        lease = Lease(
            epoch=(current.epoch if current else last) + 1,
            nonce=secrets.token_hex(8),
            host=this_host(),
            holder=Process.of(os.getpid()),
            run_id=run_id,
        )
        _write(store, address, lease)
        return lease


def _last_epoch(store: Store, address: str) -> int:
    """The highest epoch of an attempt: where to go on when the lease itself was lost, as in a power failure."""
    epochs = [0]
    for number in store.names(f"{address}/attempts"):
        record = _object(store, f"{address}/attempts/{number}/attempt.json") or {}
        if isinstance(record.get("epoch"), int):
            epochs.append(record["epoch"])
    return max(epochs)


@contextmanager
def fenced(store: Store, address: str, lease: Lease) -> Generator[Lease]:
    """Holds the lease's lock after making sure that the lease is still ours; yields it as it stands on disk.

    Raises:
        LeaseLostError: another runner has taken the step over.
    """
    with store.exclusive(key(address)):
        try:
            current = read(store, address)
        except NewerRecordError as e:
            raise LeaseLostError(f"step {address}: the lease of epoch {lease.epoch} is lost: {e}") from e
        if current is None or current.nonce != lease.nonce or not current.held:
            by = current.who if current else "no one"
            raise LeaseLostError(
                f"step {address}: the lease of epoch {lease.epoch} is lost to {by}; this attempt is void"
            )
        yield current


def update(store: Store, address: str, lease: Lease, *, body: Process | None) -> None:
    """Records which process group runs the step."""
    with fenced(store, address, lease) as current:
        _write(store, address, replace(current, body=body))


def renew(store: Store, address: str, lease: Lease) -> None:
    """Advances the beat. Raises `LeaseLostError` if the lease is no longer ours."""
    with fenced(store, address, lease) as current:
        _write(store, address, replace(current, beat=current.beat + 1))


@contextmanager
def kept(
    store: Store, held: Callable[[], list[tuple[str, Lease]]], *, lost: Callable[[str, LeaseLostError], None]
) -> Generator[None]:
    """Renews leases from a thread as long as the context lasts; a write that fails is tried again at the next beat.

    Args:
        store: the prefix.
        held: address and lease of each step that is held now; called at every beat.
        lost: told of a lease that another runner has taken over.
    """
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT):
            for address, lease in held():
                try:
                    renew(store, address, lease)
                except LeaseLostError as e:
                    lost(address, e)
                except MarinCoreError as e:
                    log.warning("lease of %s not renewed: %s", address, e)

    threading.Thread(target=beat, daemon=True, name="marin-leases").start()
    try:
        yield
    finally:
        over.set()


def release(store: Store, address: str, lease: Lease) -> None:
    """Gives the lease back, if it is still ours. The epoch stays, so that the next holder's is higher."""
    try:
        with fenced(store, address, lease) as current:
            _write(store, address, replace(current, held=False, body=None))
    except LeaseLostError:
        pass


def _write(store: Store, address: str, lease: Lease) -> None:
    store.write(key(address), json.dumps(asdict(lease), sort_keys=True, allow_nan=False).encode(), durable=False)


@functools.cache
def this_host() -> str:
    """This machine since its last boot, and this pid namespace of it: where a pid means the same process."""
    parts = [socket.gethostname()]
    for source in (
        lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        lambda: str(Path("/proc/self/ns/pid").readlink()),
    ):
        try:
            parts.append(source())
        except OSError:
            parts.append("")
    return ":".join(parts)


def _start_tick(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat; the command in field 2 may hold spaces and parentheses. None for a zombie as well."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def _kill_group(body: Process) -> None:
    """Kills what a dead holder left running, and waits until it is gone. A pid alone may be another's by now."""
    deadline = time.monotonic() + 10
    while body.started and body.alive() and time.monotonic() < deadline:
        try:
            os.killpg(body.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return
        time.sleep(0.005)
