"""The event loop of one run: it decides on nodes as they become ready, starts bodies, and commits what they made.

One thread owns all state and waits for events: a body ended, its output is hashed, a lease was lost, a signal came.
Nothing on a step's path is polled: what is to happen later (another try, the end of a body's time) is a moment that
the wait for the next event ends at. A node is ready when its last upstream step is settled; it is decided on afresh
then, because only now its inputs are known, so an upstream step that came out the same rebuilds nothing below it
(early cutoff). `Slots` says which of the ready nodes start.

After a failure, unless the run keeps going, nothing new starts; bodies that run go on and are committed, because what
they have done is as good as it was.

Invariant: an output becomes visible by one conditional write, in this thread, under a lease that is still ours.
Signals are events too, and nothing is committed after one has come; see `interrupts`.
"""

import logging
import queue
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from marin_core import faults, leases, reasons, renewals
from marin_core.collection.removal import await_collection, last_collection
from marin_core.errors import (
    LeaseLostError,
    MarinCoreError,
    NewerRecordError,
    PrefixError,
    RunInterrupted,
    UnsettledError,
    UsageError,
)
from marin_core.graph import Graph, Node
from marin_core.handles import Input
from marin_core.launchers import JobStatus, Launcher
from marin_core.processes import Process, kill_group
from marin_core.quantities import format_seconds
from marin_core.reasons import Options
from marin_core.records import Decision, Failure, RunRecord, StepRecord
from marin_core.retries import retry_of
from marin_core.running import attempts, interrupts, succession
from marin_core.running.attempts import Attempt, Ended
from marin_core.running.events import Event, Events
from marin_core.running.interrupts import Interrupts
from marin_core.running.ledger import Ledger, Observer
from marin_core.running.slots import Capacity, Slots
from marin_core.steps import Step, typed_value
from marin_core.store import Store

log = logging.getLogger(__name__)

_CONTESTED_EVERY, _CONTESTED_EVERY_REMOTE = 0.1, 1.0
"""Seconds between looks at a lease that another runner holds."""
_POLL_EVERY = 1.0
"""Seconds between polls of running jobs, for launchers that may not notify."""


class Loop:
    """The state of one run. Every method but the last few belongs to the thread that calls `run`.

    Args:
        graph: what to bring up to date, already restricted to what is wanted.
        store: the prefix.
        launcher: where bodies run.
        capacity: what there is for bodies.
        keep_going: after a failure, still run what does not depend on it.
        options: forced, accepted or selected steps.
        observer: the display.
        lease_seconds: term of the leases; see `leases.Lease`.
    """

    def __init__(
        self,
        graph: Graph,
        store: Store,
        *,
        launcher: Launcher,
        capacity: Capacity,
        keep_going: bool,
        options: Options,
        observer: Observer,
        lease_seconds: float = leases.TERM,
    ) -> None:
        self.graph, self.store, self.launcher, self.options = graph, store, launcher, options
        self.blocking = getattr(launcher, "blocking", False)
        self.mute = not getattr(launcher, "notifies", False)
        self.keep_going = keep_going
        self.lease_seconds = lease_seconds
        self.ledger = Ledger(store=store, graph=graph, observer=observer)
        self.events = Events()
        self.stopping: Literal["failed", "refused", "cancelled"] | None = None
        self.interrupts = Interrupts(
            note=lambda number: self.events.put("signal", number),
            kill=lambda: interrupts.end_all(launcher, tuple(self.running), grace=0),
        )
        # What is known of nodes: the committed record, the output digest (None: no usable output), unsettled inputs.
        self.planned: dict[str, reasons.Planned] = {}
        self.found: dict[str, Any] = {}
        self.outputs: dict[str, str | None] = {}
        self.unfinished = {a: set(n.upstream) for a, n in graph.nodes.items()}
        self.dependants = graph.dependants()
        self.priority = graph.priorities()
        # Where nodes are: to be decided, waiting for slots, waiting for another runner, waiting for another try after
        # a failure, running (by job name).
        self.open: deque[str] = deque(a for a in graph.nodes if not self.unfinished[a])
        self.slots = Slots(capacity)
        self.contested: dict[str, str] = {}
        self.resting: dict[str, Failure] = {}
        self.running: dict[str, Attempt] = {}
        self.examining: set[str] = set()
        self.examiner: queue.SimpleQueue[tuple[Attempt, JobStatus] | None] = queue.SimpleQueue()
        self.overtime: set[str] = set()
        self.tries: dict[str, int] = {}
        self.witness = leases.Witness()
        self.history = reasons.History(store)

    def run(self) -> RunRecord:
        """Runs to the end and returns the record.

        Raises:
            PrefixError: the prefix cannot be written.
            UsageError: a step that has to run asks for accelerators that are not here; nothing ran.
            RunInterrupted: a signal came; the bodies are stopped and the record is written.
        """
        self.store.check_writable()
        seen = last_collection(self.store)
        planned = self._plan()
        for node in (self.graph.nodes[p.address] for p in planned if p.decision == "run"):
            self.slots.enter(node)
        if any(p.decision == "refuse" for p in planned) and not self.keep_going:
            self.stopping = "refused"
        self.ledger.open(planned)
        with self.interrupts.caught(), self._leases_kept(), self._examining():
            try:
                said, signalled = self.ledger.observer.said, lambda: not self.events.empty()
                if await_collection(self.store, said=said, interrupted=signalled) != seen:
                    self._plan()  # what the first one saw may be gone
                self._loop()
            except BaseException as e:
                level = logging.DEBUG if isinstance(e, PrefixError) else logging.WARNING  # which says it all itself
                self._stop("cancelled", level=level)
                self._close_quietly(level)
                raise
            self._stop(self.stopping)
            record = self.ledger.close(self.stopping)
        if self.interrupts.number is not None:
            raise RunInterrupted(self.interrupts.number)
        return record

    def _plan(self) -> tuple[reasons.Planned, ...]:
        self.history = reasons.History(self.store)
        planned = reasons.plan(self.graph, self.store, options=self.options, history=self.history)
        self.planned = {p.address: p for p in planned}
        self.found = {p.address: p.record for p in planned}
        return planned

    def _loop(self) -> None:
        while True:
            while self.open and self.stopping is None:
                self._decide(self.open.popleft())
            self._start_what_fits()
            if self.open and self.stopping is None:
                continue
            waiting = self.stopping is None and (self.contested or self.slots or self.resting)
            if self.stopping == "cancelled" or not (self.running or waiting):
                return
            self._handle(*self._next_event())

    def _next_event(self) -> Event:
        """The next event. It looks around by itself only for another runner's lease or a launcher that may be mute."""
        contested = bool(self.contested) and self.stopping is None
        look = _CONTESTED_EVERY if self.store.local else _CONTESTED_EVERY_REMOTE
        while True:
            event = self.events.next(period=look if contested else _POLL_EVERY if self.mute else None)
            if event is not None or contested:
                return event or ("look", None, None)
            for name in self.running:
                self.events.put("ended", name)

    def _handle(self, kind: str, subject: Any, detail: Any) -> None:
        if kind == "signal":
            self.stopping = "cancelled"
        elif kind == "rested":
            if self.resting.pop(subject, None) is not None:
                self._line_up(self.graph.nodes[subject])
        elif subject in self.running:
            handlers = {"ended": self._ended, "examined": self._examined, "lost": self._lost, "late": self._late}
            handlers[kind](subject, detail)

    # Deciding

    def _decide(self, address: str) -> None:
        """Decides on a node whose upstream steps are all settled."""
        node = self.graph.nodes[address]
        blocker = next((u for u in node.upstream if self.outputs.get(u) is None), None)
        if blocker is not None:
            reason = self.ledger.blocked_by(blocker)
            self._settle(address, None, decision="blocked", reason=reason, outcome="blocked")
        elif node.step.external is not None:
            decision, reason = reasons.adopted(node)
            digest = node.recipe_digest
            self._settle(address, digest, decision=decision, reason=reason, outcome="reused", output_digest=digest)
        else:
            self._act(node, *(self._as_planned(node) or self._decision(node)))

    def _as_planned(self, node: Node) -> tuple[Decision, str] | None:
        """The plan's decision, where it was made on the very inputs that have come out since."""
        planned = self.planned[node.address]
        if any(self.outputs[u] != self.planned[u].output for u in node.upstream):
            return None
        return planned.decision, planned.reason

    def _decision(self, node: Node) -> tuple[Decision, str]:
        return reasons.decide(
            node,
            self.found[node.address],
            outputs=self.outputs,
            options=self.options,
            store=self.store,
            history=self.history,
        )

    def _act(self, node: Node, decision: Decision, reason: str) -> None:
        address = node.address
        if decision == "run":
            self.ledger.set(address, decision=decision, reason=reason)
            self._line_up(node)
        elif decision in ("reuse", "accept"):
            record: StepRecord = self.found[address]
            self.ledger.commit(address, record, decision=decision, reason=reason, outcome="reused")
            self._settle(address, record.output_digest)
        else:
            if decision == "refuse" and not self.keep_going:
                self.stopping = self.stopping or "refused"
            outcome = "refused" if decision == "refuse" else "unselected"
            self._settle(address, None, decision=decision, reason=reason, outcome=outcome)

    def _settle(self, address: str, output: str | None, **changes: Any) -> None:
        """A node is through, with an output or without: dependants that waited for nothing else are open now."""
        self.outputs[address] = output
        if changes:
            self.ledger.set(address, **changes)
        for dependant in self.dependants[address]:
            self.unfinished[dependant].discard(address)
            if not self.unfinished[dependant]:
                self.open.append(dependant)

    # Starting

    def _line_up(self, node: Node) -> None:
        """A step has to run: it waits for its slots. One that was not planned to may ask for what is not here."""
        try:
            self.slots.enter(node)
        except UsageError as e:
            failure = Failure(type="UsageError", message=str(e), traceback="", exit_code=e.exit_code)
            self._give_up(node.address, failure)
        else:
            self.slots.push(node.address, priority=self.priority[node.address])

    def _start_what_fits(self) -> None:
        for address in list(self.contested):
            if self._may_start() and self.slots.fits(address):
                self._start(address)
        while self._may_start() and (address := self.slots.pop()) is not None:
            self._start(address)

    def _may_start(self) -> bool:
        return self.stopping is None and not (self.blocking and len(self.running) > len(self.examining))

    def _start(self, address: str) -> None:
        """Takes the lease, looks once more whether the output is there by now, and launches."""
        node = self.graph.nodes[address]
        try:
            lease = leases.acquire(
                self.store, address, run_id=self.ledger.run_id, witness=self.witness, term=self.lease_seconds
            )
        except NewerRecordError as e:
            self.contested.pop(address, None)
            self._act(node, "refuse", str(e))
            return
        if lease is None:
            if address not in self.contested:
                holder = leases.read(self.store, address)
                self.contested[address] = holder.run_id if holder else "unknown"
                by = holder.who if holder else "another run"
                self.ledger.observer.said(f"{node.name}: being made by {by}, waiting for it")
            return
        waited_for = self.contested.pop(address, None)
        try:
            decision, reason = self._decision_under_lease(node, waited_for)
            if decision == "run":
                self._launch(node, lease, reason)
                return
            if lease.overtaken is not None:
                succession.clear_away(self.store, address, launcher=self.launcher)
        except BaseException:
            leases.release(self.store, address, lease)
            raise
        leases.release(self.store, address, lease)
        self._act(node, decision, reason)

    def _decision_under_lease(self, node: Node, waited_for: str | None) -> tuple[Decision, str]:
        """The decision that counts: nobody else can commit now. What another runner has just made is not made again."""
        self.found[node.address] = found = reasons.read_record(self.store, node.address)
        decision, reason = self._decision(node)
        if waited_for is not None and decision == "run" and isinstance(found, StepRecord):
            wanted = (node.recipe_digest, node.code.digest, reasons.inputs_digest(node, self.outputs))
            if (found.digests.recipe, found.digests.code, found.digests.inputs) == wanted:
                return "reuse", f"made by run {waited_for} meanwhile"
        if waited_for is not None and decision == "reuse":
            return "reuse", f"made by run {waited_for} meanwhile"
        return decision, reason

    def _launch(self, node: Node, lease: leases.Holding, reason: str) -> None:
        going = succession.attempt_at(
            self.store,
            node,
            lease,
            launcher=self.launcher,
            notify=self._note_end,
            run_id=self.ledger.run_id,
            reason=reason,
            arguments=attempts.arguments_for(node.step, committed=self._input, value=self._value),
            inputs={a: self.outputs[a] or "" for a in node.upstream},
            fresh=node.address not in self.tries and reasons.matches(self.options.force + self.options.rebuild, node),
        )
        attempt = going.attempt
        self.running[attempt.name] = attempt
        self.tries[node.address] = self.tries.get(node.address, 0) + 1
        environment = self.slots.take(node.address)
        self.ledger.set(
            node.address,
            reason=going.reason,
            outcome="running",
            attempt=attempt.record.attempt,
            started_at=attempt.record.started_at,
            digests=attempt.record.digests,
            log=attempt.record.log,
            failure=None,
        )
        limit = node.step.function.timeout_seconds
        if limit is not None and not self.blocking:
            self.events.later(limit - max(0.0, time.time() - attempt.record.started_at), "late", attempt.name)
        if going.adopted:
            self._note_end(attempt.name, going.ended)  # once more: an end before this line found no attempt
        elif (edited := attempts.changed_source(node, in_process=self.blocking)) is not None:
            self.events.put("examined", attempt.name, Ended(failure=edited))
        else:
            self._start_body(attempt, environment)

    def _start_body(self, attempt: Attempt, environment: dict[str, str]) -> None:
        job = replace(attempt.job, environment=environment)
        self.interrupts.raising = self.blocking
        self.launcher.launch(job, notify=self._note_end)
        self.interrupts.raising = False
        faults.reached("body-launched")
        status = self.launcher.poll(attempt.name)
        if status is not None and status.running and status.pid is not None:
            try:
                leases.update(self.store, attempt.address, attempt.lease, body=Process.of(status.pid))
            except LeaseLostError as e:
                self._note_loss(attempt.address, e)

    def _input(self, step: Step) -> Input:
        if step.external is not None:
            return Input(step.external)
        address = self.graph.handles[step]
        url = self.store.child(f"{address}/attempts/{self.ledger.nodes[address].attempt}/out")
        return Input(url, cache="" if self.store.local else str(self._cache))

    @property
    def _cache(self) -> Path:
        """Where bodies keep what they fetch from a remote prefix, on whichever host they run."""
        return Path(tempfile.gettempdir()) / f"marin-inputs-{self.ledger.run_id}"

    def _value(self, step: Step) -> Any:
        return typed_value(step, self.ledger.nodes[self.graph.handles[step]].value)

    # Ending

    def _ended(self, name: str, known: JobStatus | None) -> None:
        attempt, status = self.running[name], known or self.launcher.poll(name)
        if status is None or status.running or attempt.address in self.examining:
            return
        faults.reached("body-ended")
        quick = attempts.is_quick(attempt, status)
        if quick and (status.exit_code or not self.slots):
            self._examined(name, attempts.examine(attempt, status))
            return
        self.examining.add(attempt.address)
        if quick:  # the next body starts while the disk takes this one's output
            self.examiner.put((attempt, status))
        else:  # a daemon, so that a run that is interrupted waits for no hash
            threading.Thread(target=self._examine, args=(attempt, status), daemon=True).start()

    def _late(self, name: str, _: Any) -> None:
        """A body has had its time. It ends in its own time, so nothing waits for that here."""
        if self.running[name].address not in self.examining:
            self.overtime.add(name)
            threading.Thread(target=self.launcher.cancel, args=(name,), daemon=True).start()

    def _retire(self, name: str) -> Attempt:
        attempt = self.running.pop(name)
        self.examining.discard(attempt.address)
        self.slots.give_back(attempt.address)
        return attempt

    def _examined(self, name: str, ended: Ended) -> None:
        if self.interrupts.number is not None:
            return
        attempt = self._retire(name)
        faults.reached("output-hashed")
        failure = attempts.overtime(attempt, ended) if name in self.overtime else ended.failure
        record = None
        try:
            if failure is None:
                provenance = self.ledger.provenance(attempt.address)
                record = attempts.commit(self.store, attempt, ended, provenance=provenance)
            else:  # whoever takes a step over kills the body that it finds: such a death is no crash, to be tried again
                leases.check(self.store, attempt.address, attempt.lease)
        except (LeaseLostError, PrefixError) as e:
            void = Failure(type=type(e).__name__, message=str(e), traceback="", exit_code=e.exit_code)
            self._failed(attempt, void, settled=not isinstance(e, UnsettledError))
            return
        if record is None:
            assert failure is not None
            self._failed(attempt, failure)
            return
        attempts.close(self.store, attempt, state="succeeded")
        self.ledger.commit(attempt.address, record)
        self._settle(attempt.address, record.output_digest, outcome="succeeded", ended_at=record.committed_at)

    def _failed(self, attempt: Attempt, failure: Failure, *, settled: bool = True) -> None:
        """Another try if the step has one left for such a failure; else the node has failed."""
        address, now, node = attempt.address, time.time(), attempt.node
        attempts.close(self.store, attempt, state="failed", failure=failure, settled=settled)
        rule, tries = retry_of(node.step.retries), self.tries[address]
        if self.stopping is None and rule.covers(failure, tries=tries):
            seconds = rule.wait_seconds(address, tries=tries)
            when = f"again in {format_seconds(seconds)}" if seconds else "again"
            text = f"failed ({failure.type}: {failure.message}), trying {when}"
            self.ledger.observer.said(f"{node.name}: {text}")
            self.ledger.set(address, outcome="pending", reason=text, failure=failure)
            if seconds:
                self.resting[address] = failure
                self.events.later(seconds, "rested", address)
            else:
                self._line_up(node)
            return
        self._give_up(address, failure, ended_at=now, seconds=now - attempt.record.started_at)

    def _give_up(self, address: str, failure: Failure, **changes: Any) -> None:
        if not self.keep_going:
            self.stopping = self.stopping or "failed"
        self._settle(address, None, outcome="failed", failure=failure, **changes)

    def _lost(self, name: str, error: Exception) -> None:
        """The lease is gone: the body must be gone too."""
        self.launcher.cancel(name, grace=0)
        failure = Failure(type="LeaseLostError", message=str(error), traceback="", exit_code=3)
        self._failed(self._retire(name), failure)

    def _stop(self, why: Literal["failed", "refused", "cancelled"] | None, *, level: int = logging.WARNING) -> None:
        """Ends every body that still runs; at the end of an orderly run there is none."""
        self.stopping = why
        interrupts.end_all(self.launcher, tuple(self.running), grace=interrupts.GRACE)
        if self.store.local is None:
            shutil.rmtree(self._cache, ignore_errors=True)
        now, reason = time.time(), "the run was interrupted"
        for attempt in list(self.running.values()):
            try:
                attempts.close(self.store, attempt, state="cancelled")
                self.ledger.set(attempt.address, outcome="cancelled", reason=reason, ended_at=now)
            except MarinCoreError as e:
                log.log(level, "end of %s not written: %s", attempt.name, e)
        self.running.clear()
        for address, failure in self.resting.items():
            outcome = "cancelled" if why == "cancelled" else "failed"
            self.ledger.set(address, outcome=outcome, reason=f"{failure.type}, not tried again", failure=failure)

    def _close_quietly(self, level: int) -> None:
        """Writes the last record while another error is on its way; that one is what the user has to see."""
        try:
            self.ledger.close(self.stopping)
        except MarinCoreError as e:
            log.log(level, "run record not written: %s", e)

    # Beside the loop: these are called from other threads, or from a signal

    def _leases_kept(self) -> AbstractContextManager[None]:
        return renewals.kept(self.store, self._held, lost=self._note_loss, term=self.lease_seconds)

    @contextmanager
    def _examining(self) -> Generator[None]:
        """A thread that looks at small outputs, one after another; a daemon too."""

        def examine() -> None:
            for attempt, status in iter(self.examiner.get, None):
                self._examine(attempt, status)

        thread = threading.Thread(target=examine, daemon=True, name="marin-outputs")
        thread.start()
        try:
            yield
        finally:
            self.examiner.put(None)
            if not self.examining:  # it is idle; a run that is interrupted waits for no hash
                thread.join()

    def _examine(self, attempt: Attempt, status: JobStatus) -> None:
        self.events.put("examined", attempt.name, attempts.examine(attempt, status))

    def _held(self) -> list[tuple[str, leases.Holding]]:
        return [(attempt.address, attempt.lease) for attempt in list(self.running.values())]

    def _note_end(self, name: str, status: JobStatus | None = None) -> None:
        self.events.put("ended", name, status)

    def _note_loss(self, address: str, error: LeaseLostError) -> None:
        """Kills the body's processes on this host at once, whatever the loop is busy with, and has it end the rest."""
        for name, attempt in list(self.running.items()):
            if attempt.address == address:
                self.events.put("lost", name, error)
                status = self.launcher.poll(name)
                if status is not None and status.running and status.pid is not None:
                    kill_group(Process.of(status.pid))
