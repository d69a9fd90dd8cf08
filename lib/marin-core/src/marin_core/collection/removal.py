"""Removal of what a survey found, beside runners that go on working and whom it does not ask.

A record is never removed, only what it describes: ``attempt.json`` stays, so that no number is given twice, and a
committed step leaves a `Tombstone`. The order is tombstone, then pointer, then files, so a crash at any moment leaves
either a committed step or a tombstone, and the next collection removes the rest.

Two leases make it safe. Each step is collected under its own, so never while it is being made. And a collection holds
``runs/gc`` from before it looks for runs until its end, while a runner looks at that lease after it has written its
run record (`await_collection`): of the two at least one sees the other, so either the run keeps what it uses, or the
runner waits and then decides on what is left. (The flags of Dekker's algorithm: Dijkstra, 1965.)
"""

import itertools
import secrets
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from marin_core import leases, renewals
from marin_core.collection.garbage import Garbage, is_inside
from marin_core.collection.pins import PIN
from marin_core.collection.references import PLACES
from marin_core.errors import MarinCoreError, RefusedError
from marin_core.reasons import read_record
from marin_core.records import StepRecord, Tombstone, fenced, to_json
from marin_core.store import Store

COLLECTION = "runs/gc"
"""Where the lease of a collection lies; no step can have this address."""
_LOOK_EVERY = 0.2
"""Seconds between looks at the lease of a collection that is waited for."""


@dataclass(frozen=True, kw_only=True)
class Removed:
    """What came of one piece of garbage."""

    garbage: Garbage
    left: str = ""
    """Why it was left where it is; empty if it is gone."""


class Collection:
    """The right to collect under one prefix, for as long as a ``collecting`` context lasts."""

    def __init__(self, store: Store, lease: leases.Holding, *, run_id: str) -> None:
        self._store, self._run_id = store, run_id
        self._held: dict[str, leases.Holding] = {COLLECTION: lease}
        self._lost, self._spared = "", False
        self._runs = frozenset(store.names("runs"))
        self._witness = leases.Witness()

    @classmethod
    @contextmanager
    def begun(cls, store: Store) -> "Generator[Collection]":
        """Takes the right to collect; survey inside this context, since a run that begins before it is a root.

        Raises:
            RefusedError: another collection is under way.
        """
        run_id = f"gc-{secrets.token_hex(3)}"
        lease = leases.acquire(store, COLLECTION, run_id=run_id, witness=leases.Witness())
        if lease is None:
            holder = leases.read(store, COLLECTION)
            raise RefusedError(f"another collection is under way: {holder.who if holder else 'unknown'}")
        made = cls(store, lease, run_id=run_id)
        try:
            with renewals.kept(store, lambda: list(made._held.items()), lost=made._note_loss, term=leases.TERM):
                yield made
        finally:
            leases.release(store, COLLECTION, lease)

    def collect(self, garbage: tuple[Garbage, ...]) -> Iterator[Removed]:
        """Removes what a survey found, step by step; says of each piece what came of it."""
        for removed in self._collect(garbage):
            self._spared = self._spared or bool(removed.left)
            yield removed

    def _collect(self, garbage: tuple[Garbage, ...]) -> Iterator[Removed]:
        for address, pieces in itertools.groupby(garbage, key=lambda g: g.address):
            group = list(pieces)
            if self._lost:
                yield from (Removed(garbage=g, left=self._lost) for g in group)
            elif all(g.kind == "temporary" for g in group):
                yield from map(self._remove, group)
            elif address in PLACES:
                yield from map(self._beside, group)
            else:
                yield from self._at(address, group)

    def _at(self, address: str, group: list[Garbage]) -> Iterator[Removed]:
        """What lies at one step, under its lease."""
        lease = leases.acquire(self._store, address, run_id=self._run_id, witness=self._witness)
        if lease is None:
            yield from (Removed(garbage=g, left="it is being made by now") for g in group)
            return
        self._held[address] = lease
        try:
            found = read_record(self._store, address)
            for g in group:
                if g.attempt != (found.attempt if isinstance(found, StepRecord) else None):
                    yield Removed(garbage=g, left="the step has changed since")
                elif g.kind == "step" and self._store.read(f"{address}/{PIN}") is not None:
                    yield Removed(garbage=g, left="it is pinned by now")
                else:
                    if g.kind == "step" and isinstance(found, StepRecord):
                        self._bury(found, g.why, epoch=lease.epoch)
                    yield self._remove(g)
        finally:
            del self._held[address]
            leases.release(self._store, address, lease)

    def _beside(self, garbage: Garbage) -> Removed:
        """What belongs to no step: a run that began after the survey, or a step that stays, may refer to any of it."""
        if self._spared or set(self._store.names("runs")) - self._runs:
            return Removed(garbage=garbage, left="a run has begun since, or a step stays, that may refer to it")
        return self._remove(garbage)

    def _bury(self, step: StepRecord, why: str, *, epoch: int) -> None:
        """From here on the step is not committed, and its tombstone says what it was."""
        stone = Tombstone(step=step, collected_at=time.time(), reason=why)
        self._store.write(f"{step.address}/tombstone.json", to_json(stone).encode())
        pointer = f"{step.address}/step.json"
        if self._store.guards:
            self._store.delete(pointer)
        else:  # a pointer that is gone could be made by a sleeper who knew none; see `leases`
            self._store.write(pointer, fenced(None, address=step.address, epoch=epoch))

    def _remove(self, garbage: Garbage) -> Removed:
        try:
            for key in garbage.keys:
                if not is_inside(self._store, key):  # asked again: this is where it would do harm
                    return Removed(garbage=garbage, left=f"{key} is reached through a symbolic link")
                remove(self._store, key)
        except (OSError, MarinCoreError) as e:
            return Removed(garbage=garbage, left=str(e))
        return Removed(garbage=garbage)

    def _note_loss(self, address: str, error: MarinCoreError) -> None:
        if address == COLLECTION:
            self._lost = str(error)


def remove(store: Store, key: str) -> None:
    """Removes a file, a link (not what it leads to), or a directory with all that is in it."""
    if store.local is not None:
        path = store.local / key
        if path.is_dir() and not path.is_symlink():
            store.remove_tree(key)
        else:
            path.unlink(missing_ok=True)
    elif store.tree(key):
        store.remove_tree(key)
    else:
        store.delete(key)


def last_collection(store: Store) -> int:
    """The epoch of the last collection that has ended; -1 if one is under way, or was cut off and may have taken
    anything. Asked for before a plan, it tells what the plan has seen; see `await_collection`."""
    lease = leases.read(store, COLLECTION)
    return 0 if lease is None else -1 if lease.held else lease.epoch


def await_collection(
    store: Store, *, said: Callable[[str], None] = lambda _: None, interrupted: Callable[[], bool] = lambda: False
) -> int:
    """Returns once no collection is under way: at once, but for the rare moments when one is.

    Args:
        store: the prefix.
        said: told whom it waits for.
        interrupted: asked while waiting; ends it.

    Returns:
        The epoch of the last collection: if it is not `last_collection`'s, what was read since then may be gone.
    """
    witness, told = leases.Witness(), False
    while True:
        lease = leases.read(store, COLLECTION)
        if lease is None or not witness.alive(COLLECTION, lease) or interrupted():
            return lease.epoch if lease is not None else 0
        if not told:
            said(f"a collection is under way ({lease.who}), waiting for it")
            told = True
        time.sleep(_LOOK_EVERY)
