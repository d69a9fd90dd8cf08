"""The event loop of one run: it starts the bodies of nodes that have to run, and commits what they made.

One thread owns all state and waits for events: a body ended, its output is hashed, a lease was lost, a signal came.
Nothing on a step's path is polled: what is to happen later (another try, the end of a body's time, a look at another
runner's lease) is a moment that the wait for the next event ends at. `Decisions` says what is to be done with a node,
`Slots` which of those that are to run may start, and `Bodies` what becomes of those that have.

After a failure, unless the run keeps going, nothing new starts; bodies that run go on and are committed, because what
they have done is as good as it was.

Invariant: an output becomes visible by one conditional write, in this thread, under a lease that is still ours.
Signals are events too, and nothing starts or is committed after one has come; see `interrupts`.
"""

import logging
import shutil
import time
from dataclasses import replace
from typing import Any, Literal

from marin_core import faults, leases
from marin_core.code.bytecode import forget_racy
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
from marin_core.launchers import Launcher, kind_of
from marin_core.quantities import format_seconds
from marin_core.reasons import Options, matches
from marin_core.records import Decision, Failure, RunRecord
from marin_core.retries import retry_of
from marin_core.running import attempts, beginning, interrupts, succession
from marin_core.running.attempts import Attempt, Ended
from marin_core.running.bodies import Bodies
from marin_core.running.decisions import Decisions
from marin_core.running.events import Events
from marin_core.running.interrupts import Interrupts
from marin_core.running.ledger import Ledger, Observer
from marin_core.running.slots import Capacity, Slots
from marin_core.running.succession import Succession
from marin_core.store import Store

log = logging.getLogger(__name__)

_LOOK_EVERY, _LOOK_EVERY_REMOTE = 0.1, 1.0
"""Seconds between looks at leases that other runners hold."""
_ASK_EVERY = 1.0
"""Seconds between looks at running jobs, for launchers that may not notify."""
_Stopping = Literal["failed", "refused", "cancelled"]


class Loop:
    """The state of one run.

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
        self.keep_going = keep_going
        self.lease_seconds = lease_seconds
        self.events = Events()
        self.ledger = Ledger(store=store, graph=graph, observer=observer, later=self.events.later)
        self.stopping: _Stopping | None = None
        self.interrupts = Interrupts(
            note=lambda number: self.events.put("signal", number), kill=lambda: self.bodies.end(grace=0)
        )
        self.decisions = Decisions(graph, store, options)
        self.priority = graph.priorities()
        # Where nodes are that have to run: in line for slots, waiting for another runner, waiting for another try after
        # a failure, running. Those that go back to an earlier attempt wait for the lease alone.
        self.slots = Slots(capacity)
        self.contested: set[str] = set()
        self.returning: set[str] = set()
        self.resting: dict[str, Failure] = {}
        self.bodies = Bodies(store, launcher, events=self.events, interrupts=self.interrupts)
        self.tries: dict[str, int] = {}
        self.witness = leases.Witness()
        self._looking = False

    def run(self) -> RunRecord:
        """Runs to the end and returns the record.

        Raises:
            PrefixError: the prefix cannot be written.
            UsageError: a step that has to run asks for what is not here, as accelerators; nothing ran.
            RunInterrupted: a signal came; the bodies are stopped and the record is written.
        """
        seen = last_collection(self.store)
        planned = self.decisions.plan()
        for node in (self.graph.nodes[p.address] for p in planned if p.decision == "run"):
            self._check(node)
        if any(p.decision == "refuse" for p in planned) and not self.keep_going:
            self.stopping = "refused"
        self.ledger.open(planned)
        if not self.bodies.blocking:
            forget_racy({path for node in self.graph.nodes.values() for path in node.code.files})
        with self.interrupts.caught(), self.bodies.leases_kept(term=self.lease_seconds), self.bodies.examined():
            try:
                said, signalled = self.ledger.observer.said, lambda: not self.events.empty()
                if await_collection(self.store, said=said, interrupted=signalled) != seen:
                    self.decisions.plan()  # what the first one saw may be gone
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

    def _loop(self) -> None:
        if self.bodies.silent:
            self.events.later(_ASK_EVERY, "ask")
        while True:
            while self.decisions.ready and self.stopping is None:
                self._decide(self.decisions.ready.popleft())
            while self._may_start() and (address := self.slots.pop()) is not None:
                self._start(address)
            if self.decisions.ready and self.stopping is None:
                continue
            waiting = self.stopping is None and (self.contested or self.slots or self.resting)
            if self.stopping == "cancelled" or not (self.bodies.running or waiting):
                return
            self._handle(*self.events.next())

    def _handle(self, kind: str, subject: Any, detail: Any) -> None:
        if kind == "signal":
            self.stopping = "cancelled"
        elif kind == "record":
            self.ledger.catch_up()
        elif kind == "look":
            self._look()
        elif kind == "ask":
            self.bodies.ask()
            self.events.later(_ASK_EVERY, "ask")
        elif kind == "rested":
            if self.resting.pop(subject, None) is not None:
                self._line_up(self.graph.nodes[subject])
        elif subject not in self.bodies.running:
            return  # told of an attempt that is over
        elif kind == "late":
            self.bodies.late(subject)
        elif kind == "lost":
            self.bodies.lost(subject)
            self._failed(self._retire(subject), attempts.failure_of(detail))
        elif kind == "examined":
            self._examined(subject, detail)
        elif kind == "ended" and (ended := self.bodies.ended(subject, detail, hurry=bool(self.slots))) is not None:
            self._examined(subject, ended)

    # Deciding

    def _decide(self, node: Node) -> None:
        """Decides on a node whose upstream steps are all settled."""
        blocker = self.decisions.blocker(node)
        if blocker is not None:
            reason = self.ledger.blocked_by(blocker)
            self._settle(node.address, None, decision="blocked", reason=reason, outcome="blocked")
        else:
            self._act(node, *self.decisions.of(node))

    def _act(self, node: Node, decision: Decision, reason: str) -> None:
        address = node.address
        if decision == "run":
            self.ledger.set(address, decision=decision, reason=reason)
            self._line_up(node)
        elif node.step.external is not None:
            digest = node.recipe_digest
            self._settle(address, digest, decision=decision, reason=reason, outcome="reused", output_digest=digest)
        elif decision in ("reuse", "accept"):
            if self.decisions.earlier(address) is not None:
                self._go_back(address)
                return
            record = self.decisions.committed(address)
            self.ledger.commit(address, record, decision=decision, reason=reason, outcome="reused")
            self._settle(address, record.output_digest)
        else:
            if decision == "refuse" and not self.keep_going:
                self.stopping = self.stopping or "refused"
            outcome = "refused" if decision == "refuse" else "unselected"
            self._settle(address, None, decision=decision, reason=reason, outcome=outcome)

    def _settle(self, address: str, output: str | None, **changes: Any) -> None:
        """A node is through, with an output or without."""
        self.decisions.settle(address, output)
        if changes:
            self.ledger.set(address, **changes)

    # Starting

    def _check(self, node: Node) -> None:
        """Raises `UsageError` if a step asks for what is not here."""
        beginning.check_place(self.store, node)
        self.slots.enter(node)

    def _line_up(self, node: Node) -> None:
        """A step has to run: it waits for its slots. One that was not planned to may ask for what is not here."""
        try:
            self._check(node)
        except UsageError as e:
            self._give_up(node.address, attempts.failure_of(e))
        else:
            self.slots.push(node.address, priority=self.priority[node.address])

    def _may_start(self) -> bool:
        return self.bodies.free and self.stopping is None and self.interrupts.number is None

    def _look(self) -> None:
        """Tries the steps again that other runners hold."""
        self._looking = False
        for address in sorted(self.contested, key=self.priority.__getitem__):
            if self._may_start() and (address in self.returning or self.slots.fits(address)):
                self._start(address)
        self._look_later()

    def _look_later(self) -> None:
        if self.contested and not self._looking:
            self._looking = True
            self.events.later(_LOOK_EVERY if self.store.local else _LOOK_EVERY_REMOTE, "look")

    def _go_back(self, address: str) -> None:
        """A step is served an earlier attempt, which needs no slots; after a signal it stays as it is."""
        if self.interrupts.number is None:
            self.returning.add(address)
            self._start(address)

    def _start(self, address: str) -> None:
        """Takes the lease, looks once more whether the output is there by now, and starts a body if it is not."""
        node, run_id = self.graph.nodes[address], self.ledger.run_id
        try:
            lease = leases.acquire(self.store, address, run_id=run_id, witness=self.witness, term=self.lease_seconds)
        except NewerRecordError as e:
            self.contested.discard(address)
            self._act(node, "refuse", str(e))
            return
        if lease is None:
            self._contest(node)
            return
        contested, returning = address in self.contested, address in self.returning
        self.contested.discard(address)
        self.returning.discard(address)
        try:
            decision, reason = self.decisions.under_lease(node, contested=contested)
            going = self._attempt(node, lease, reason) if decision == "run" and not returning else None
            if decision != "run" and lease.overtaken is not None:
                succession.clear_away(self.store, address, launcher=self.launcher)
            if (record := self.decisions.earlier(address)) is not None:
                self.decisions.restored(address, attempts.restore(self.store, lease, record))
        except BaseException as e:
            if not isinstance(e, UnsettledError):
                leases.release(self.store, address, lease)
            if not isinstance(e, UsageError | LeaseLostError) or isinstance(e, PrefixError):
                raise
            self._give_up(address, attempts.failure_of(e))
            return
        if going is not None:
            self._run_body(going)
            return
        leases.release(self.store, address, lease)
        self._act(node, decision, reason)

    def _contest(self, node: Node) -> None:
        """Another runner holds a step's lease: it is waited for."""
        if node.address not in self.contested:
            self.contested.add(node.address)
            holder = leases.read(self.store, node.address)
            by = holder.who if holder else "another run"
            self.ledger.observer.said(f"{self.ledger.labels[node.address]}: being made by {by}, waiting for it")
            self._look_later()

    def _attempt(self, node: Node, lease: leases.Holding, reason: str) -> Succession:
        asked = matches(self.options.force + self.options.rebuild, node)
        going = succession.attempt_at(
            self.store,
            node,
            lease,
            launcher=self.launcher,
            notify=self.bodies.note_end,
            run_id=self.ledger.run_id,
            reason=reason,
            arguments=beginning.arguments_for(node.step, self.ledger, launcher=kind_of(self.launcher)),
            inputs=self.decisions.inputs(node),
            fresh=asked and node.address not in self.tries,
        )
        return replace(going, attempt=replace(going.attempt, given=beginning.given_to(node.step, self.ledger)))

    def _run_body(self, going: Succession) -> None:
        """From here on the lease is given back by whoever closes the attempt, once its body has ended."""
        attempt, address = going.attempt, going.attempt.address
        self.bodies.running[attempt.name] = attempt
        self.tries[address] = self.tries.get(address, 0) + 1
        environment = self.slots.take(address)
        self.ledger.set(
            address,
            reason=going.reason,
            outcome="running",
            attempt=attempt.record.attempt,
            started_at=attempt.record.started_at,
            digests=attempt.record.digests,
            log=attempt.record.log,
            failure=None,
        )
        self.bodies.start(going, environment)

    # Ending

    def _retire(self, name: str) -> Attempt:
        attempt = self.bodies.retire(name)
        self.slots.give_back(attempt.address)
        return attempt

    def _examined(self, name: str, ended: Ended) -> None:
        if self.interrupts.number is not None:
            return
        attempt = self._retire(name)
        faults.reached("output-hashed")
        failure = self.bodies.failure(attempt, ended)
        record = None
        try:
            if failure is None:
                provenance = self.ledger.provenance(attempt.address)
                record = attempts.commit(self.store, attempt, ended, provenance=provenance)
            else:  # whoever takes a step over kills the body that it finds: such a death is no crash, to be tried again
                leases.check(self.store, attempt.address, attempt.lease)
        except (LeaseLostError, PrefixError) as e:
            self._failed(attempt, attempts.failure_of(e), settled=not isinstance(e, UnsettledError))
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
            when = f"in {format_seconds(seconds)}" if seconds else "at once"
            text = f"failed ({failure.type}: {failure.message}), attempt {tries + 1} of {rule.times + 1} {when}"
            self.ledger.observer.said(f"{self.ledger.labels[address]}: {text}")
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

    def _stop(self, why: _Stopping | None, *, level: int = logging.WARNING) -> None:
        """Ends every body that still runs; at the end of an orderly run there is none."""
        self.stopping = why
        self.bodies.end(grace=interrupts.GRACE)
        if self.store.local is None:
            shutil.rmtree(beginning.inputs_cache(self.ledger, launcher=kind_of(self.launcher)), ignore_errors=True)
        now = time.time()
        for attempt in list(self.bodies.running.values()):
            reason = "the run was interrupted"
            try:
                if self.bodies.at_work(attempt.name):  # left as if this driver had died: whoever comes next sees to it
                    reason += ", and its body could not be ended"
                else:
                    attempts.close(self.store, attempt, state="cancelled")
                self.ledger.set(attempt.address, outcome="cancelled", reason=reason, ended_at=now)
            except MarinCoreError as e:
                log.log(level, "end of %s not written: %s", attempt.name, e)
        self.bodies.running.clear()
        for address, failure in self.resting.items():
            outcome = "cancelled" if why == "cancelled" else "failed"
            self.ledger.set(address, outcome=outcome, reason=f"{failure.type}, not tried again", failure=failure)

    def _close_quietly(self, level: int) -> None:
        """Writes the last record while another error is on its way; that one is what the user has to see."""
        try:
            self.ledger.close(self.stopping)
        except MarinCoreError as e:
            log.log(level, "run record not written: %s", e)
