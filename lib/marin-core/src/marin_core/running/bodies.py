"""Bodies: those of one run that are at work, how they start, and how the run learns that they have ended.

What happens to a body is told to the loop as an event, and the loop answers by calling the method of that name here:
``ended``, ``late`` or ``lost``; at last ``examined`` has the attempt retired. Only a lost lease does not wait for that:
the body is cancelled at once, whatever the loop is busy with.

Invariant: an attempt is in `running`, and its lease renewed, from before its body starts until its output is hashed and
uploaded.
"""

import queue
import threading
import time
import traceback
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

from marin_core import faults, leases, renewals
from marin_core.errors import LeaseLostError, MarinCoreError
from marin_core.launchers import JobStatus, Launcher
from marin_core.processes import Process
from marin_core.records import Failure
from marin_core.running import examination, interrupts
from marin_core.running.attempts import Attempt, Ended
from marin_core.running.beginning import changed_source
from marin_core.running.events import Events
from marin_core.running.interrupts import Interrupts
from marin_core.running.succession import Succession
from marin_core.store import Store


class Bodies:
    """The bodies of one run that are at work.

    Args:
        store: the prefix.
        launcher: where they run.
        events: what the loop is told by.
        interrupts: the run's, which end a body in this very thread.
    """

    def __init__(self, store: Store, launcher: Launcher, *, events: Events, interrupts: Interrupts) -> None:
        self._store, self._launcher, self._events, self._interrupts = store, launcher, events, interrupts
        self.blocking: bool = getattr(launcher, "blocking", False)
        """One body runs at a time, in this process."""
        self.silent: bool = not getattr(launcher, "notifies", False)
        """Nobody may tell of an end, so the loop has to ask from time to time."""
        self.running: dict[str, Attempt] = {}
        """By name of the job."""
        self._examining: set[str] = set()
        self._quick: queue.SimpleQueue[tuple[Attempt, JobStatus] | None] = queue.SimpleQueue()
        """Small outputs, for one thread that looks at them one after another."""
        self._overtime: set[str] = set()

    def start(self, going: Succession, environment: dict[str, str]) -> None:
        """Starts the body of an attempt in `running`, or goes on with the one that it has."""
        attempt = going.attempt
        limit = attempt.node.step.function.timeout_seconds
        if limit is not None and not self.blocking:
            self._events.later(limit - max(0.0, time.time() - attempt.record.started_at), "late", attempt.name)
        if going.adopted:
            self.note_end(attempt.name, going.ended)  # once more: what came before it was in `running` was dropped
        elif (edited := changed_source(attempt.node, in_process=self.blocking)) is not None:
            self._events.put("examined", attempt.name, Ended(failure=edited))
        else:
            self._launch(attempt, environment)

    def _launch(self, attempt: Attempt, environment: dict[str, str]) -> None:
        try:
            with self._interrupts.raised() if self.blocking else nullcontext():
                self._launcher.launch(replace(attempt.job, environment=environment), notify=self.note_end)
        except MarinCoreError:  # it would meet the others as well
            raise
        except Exception as e:
            message, trace = f"the body could not be started: {e}", traceback.format_exc()
            failure = Failure(type=type(e).__name__, message=message, traceback=trace)
            self._events.put("examined", attempt.name, Ended(failure=failure))
            return
        faults.reached("body-launched")
        status = self._launcher.poll(attempt.name)
        if status is not None and status.running and status.pid is not None:
            try:
                leases.update(self._store, attempt.address, attempt.lease, body=Process.of(status.pid))
            except LeaseLostError as e:
                self._note_loss(attempt.address, e)

    def ended(self, name: str, known: JobStatus | None, *, hurry: bool) -> Ended | None:
        """What a body has left, if it has ended and that is told at once; else an event ``examined`` will tell. A body
        that its launcher does not know is lost. In a ``hurry`` the loop starts others while the disk takes an output.
        """
        attempt = self.running[name]
        status = known or self._launcher.poll(name) or JobStatus(running=False)
        if status.running or name in self._examining:
            return None
        faults.reached("body-ended")
        self._examining.add(name)
        if examination.is_quick(self._store, attempt, status):
            if status.exit_code or not hurry:
                return examination.examine(self._store, attempt, status)
            self._quick.put((attempt, status))
            return None
        # A daemon, so that a run that is interrupted waits for no hash and no upload.
        threading.Thread(target=self._examine, args=(attempt, status), daemon=True).start()
        return None

    def ask(self) -> None:
        """Looks at every body, for a launcher that may not tell."""
        for name in self.running:
            self.note_end(name)

    def late(self, name: str) -> None:
        """A body has had its time. It ends in its own time, so nothing waits for that here. One that has ended by now
        was not too late: the loop was."""
        status = self._launcher.poll(name)
        if status is not None and status.running and name not in self._examining:
            self._overtime.add(name)
            threading.Thread(target=self._launcher.cancel, args=(name,), daemon=True).start()

    def lost(self, name: str) -> None:
        """The lease is gone: the body must be gone too."""
        self._launcher.cancel(name, grace=0)

    def retire(self, name: str) -> Attempt:
        """The attempt of a body that is done with."""
        self._examining.discard(name)
        return self.running.pop(name)

    def failure(self, attempt: Attempt, ended: Ended) -> Failure | None:
        """Why an attempt failed; None if it did not."""
        if attempt.name in self._overtime:
            return examination.overtime(attempt, ended)
        return ended.failure

    def end(self, *, grace: float) -> None:
        """Ends all that run, as far as the launcher can do it in time."""
        interrupts.end_all(self._launcher, tuple(self.running), grace=grace)

    def at_work(self, name: str) -> bool:
        """Whether a body runs, as far as the launcher knows."""
        status = self._launcher.poll(name)
        return status is not None and status.running

    # Called from other threads, too

    def note_end(self, name: str, status: JobStatus | None = None) -> None:
        """A body has, or may have, ended."""
        self._events.put("ended", name, status)

    @property
    def free(self) -> bool:
        """Whether the launcher can take another body: one that blocks has a single one at work."""
        return not self.blocking or len(self.running) <= len(self._examining)

    @contextmanager
    def examined(self) -> Generator[None]:
        """The thread for small outputs, as long as the context lasts; a daemon too."""

        def examine() -> None:
            for attempt, status in iter(self._quick.get, None):
                self._examine(attempt, status)

        thread = threading.Thread(target=examine, daemon=True, name="marin-outputs")
        thread.start()
        try:
            yield
        finally:
            self._quick.put(None)
            if not self._examining:  # it is idle; a run that is interrupted waits for no hash
                thread.join()

    def leases_kept(self, *, term: float) -> AbstractContextManager[None]:
        """Renews the leases of what runs as long as the context lasts."""
        return renewals.kept(self._store, self._held, lost=self._note_loss, term=term)

    def _held(self) -> list[tuple[str, leases.Holding]]:
        return [(attempt.address, attempt.lease) for attempt in list(self.running.values())]

    def _examine(self, attempt: Attempt, status: JobStatus) -> None:
        self._events.put("examined", attempt.name, examination.examine(self._store, attempt, status))

    def _note_loss(self, address: str, error: LeaseLostError) -> None:
        for name, attempt in list(self.running.items()):
            if attempt.address == address:
                # By the launcher, which knows whether a process that ran the body runs another one by now.
                threading.Thread(target=self.lost, args=(name,), daemon=True).start()
                self._events.put("lost", name, error)
