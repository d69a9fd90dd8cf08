"""Renewal: how a holder keeps its leases, and when it must give one up by itself.

A thread renews each lease six times a term, and a renewal that failed again soon after. A successor counts the term
from the last beat that it has seen, which is never before we asked for it; so a holder that had no renewal confirmed
for three quarters of a term, counted from when it asked, stops its body while nobody else can hold the lease yet.

A machine that was suspended, or a process that was stopped, wakes with that time already gone. Then one question
decides, asked at once: a renewal that succeeds proves that nobody has taken the step over; one that is refused, or not
answered within a beat, ends the body.

Renewals run on threads of their own, so that a store that does not answer holds up neither the count nor the others.
"""

import logging
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass

from marin_core import leases
from marin_core.errors import LeaseLostError, MarinCoreError
from marin_core.leases import Holding
from marin_core.store import Store
from marin_core.threads import DaemonExecutor

log = logging.getLogger(__name__)

_BEATS = 6
"""Renewals a term."""
_UNCONFIRMED = 0.75
"""Share of a term after which a holder gives up."""
_LOOKS = 24
"""Looks a term at what is due; also how soon a failed renewal is tried again."""
_THREADS = 8


@dataclass
class _Watch:
    due: float
    until: float
    """When the lease has to be given up, unless a renewal is confirmed before."""
    asked_at: float = 0.0
    renewal: Future[None] | None = None
    over: bool = False


class Keeper:
    """Renews what is held, look by look.

    Args:
        store: the prefix.
        held: address and holding of each step that is held now.
        lost: told once of a lease that is lost or has to be given up.
        term: seconds.
        executor: where renewals run.
        clock: seconds; see `leases.clock`.
    """

    def __init__(
        self,
        store: Store,
        held: Callable[[], Iterable[tuple[str, Holding]]],
        *,
        lost: Callable[[str, LeaseLostError], None],
        term: float,
        executor: Executor,
        clock: Callable[[], float] = leases.clock,
    ) -> None:
        self.store, self.held, self.lost, self.term = store, held, lost, term
        self.executor, self.clock = executor, clock
        self._watches: dict[str, _Watch] = {}
        self._looked_at = clock()

    def look(self) -> None:
        """Renews what is due, and gives up what could not be renewed for too long."""
        now, beat = self.clock(), self.term / _BEATS
        woke = now - self._looked_at > beat
        self._looked_at = now
        holdings = {holding.lease.nonce: (address, holding) for address, holding in self.held()}
        self._watches = {nonce: watch for nonce, watch in self._watches.items() if nonce in holdings}
        for nonce, (address, holding) in holdings.items():
            watch = self._watches.get(nonce)
            if watch is None:
                asked_at = holding.asked_at
                watch = self._watches[nonce] = _Watch(due=asked_at + beat, until=asked_at + _UNCONFIRMED * self.term)
            if woke:
                watch.due, watch.until = now, max(watch.until, now + beat)
            if not watch.over:
                self._look_at(address, holding, watch, now=now)

    def _look_at(self, address: str, holding: Holding, watch: _Watch, *, now: float) -> None:
        error = self._outcome(address, watch, now=now)
        if error is None and watch.renewal is None and now >= watch.due:
            watch.asked_at = now
            watch.renewal = self.executor.submit(leases.renew, self.store, address, holding)
            error = self._outcome(address, watch, now=now)
        if error is None and now >= watch.until:
            silent = f"it could not be renewed for {_UNCONFIRMED * self.term:.3g} s"
            error = LeaseLostError(f"step {address}: the lease of epoch {holding.epoch} is given up: {silent}")
        if error is not None:
            watch.over = True
            self.lost(address, error)

    def _outcome(self, address: str, watch: _Watch, *, now: float) -> LeaseLostError | None:
        """Takes note of a renewal that has ended; the error if it found the lease lost."""
        if watch.renewal is None or not watch.renewal.done():
            return None
        error, watch.renewal = watch.renewal.exception(), None
        if error is None:
            watch.due = watch.asked_at + self.term / _BEATS
            watch.until = max(watch.until, watch.asked_at + _UNCONFIRMED * self.term)
        elif isinstance(error, LeaseLostError):
            return error
        else:
            log.log(
                logging.WARNING if isinstance(error, MarinCoreError) else logging.ERROR,
                "lease of %s not renewed: %s",
                address,
                error,
            )
            watch.due = now + self.term / _LOOKS
        return None


@contextmanager
def kept(
    store: Store,
    held: Callable[[], Iterable[tuple[str, Holding]]],
    *,
    lost: Callable[[str, LeaseLostError], None],
    term: float,
) -> Generator[None]:
    """Keeps leases from a thread as long as the context lasts; see `Keeper`."""
    over = threading.Event()
    renewers = DaemonExecutor(_THREADS, name="marin-renew")
    keeper = Keeper(store, held, lost=lost, term=term, executor=renewers)

    def watch() -> None:
        while not over.wait(term / _LOOKS):
            keeper.look()

    threading.Thread(target=watch, daemon=True, name="marin-leases").start()
    try:
        yield
    finally:
        over.set()
        renewers.shutdown(wait=False, cancel_futures=True)
