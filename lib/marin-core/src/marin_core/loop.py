"""The event loop of one run: it decides on nodes as they become ready, starts bodies, and commits what they made.

One thread owns all state and waits for events: a body ended, its output is hashed, a lease was lost, a signal came.
Nothing on a step's path is polled. A node is ready when its last upstream step is settled; it is decided on afresh
then, because only now its inputs are known, so an upstream step that came out the same rebuilds nothing below it
(early cutoff). Ready nodes start longest path first, while their cores fit.

Invariant: an output becomes visible by one conditional write, in this thread, under a lease that is still ours.
Signals are events too: after one is handled this thread commits nothing more, so nothing turns successful after an
interrupt.
"""

import heapq
import logging
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Literal

from marin_core import attempts, leases, reasons
from marin_core.attempts import Attempt, Ended
from marin_core.errors import LeaseLostError, MarinCoreError, NewerRecordError, PrefixError, RunInterrupted
from marin_core.graph import Graph, Node
from marin_core.launchers import Launcher
from marin_core.ledger import Ledger, Observer
from marin_core.reasons import Options
from marin_core.records import Decision, Failure, RunRecord, StepRecord
from marin_core.removal import await_collection, last_collection
from marin_core.steps import Step, typed_value
from marin_core.store import Store

log = logging.getLogger(__name__)

_CONTESTED_EVERY = 0.1
"""Seconds between looks at a lease that another runner holds."""
_POLL_EVERY = 1.0
"""Seconds between polls of running jobs, for launchers that do not notify."""


class Loop:
    """The state of one run. Every method but the last few belongs to the thread that calls `run`.

    Args:
        graph: what to bring up to date, already restricted to what is wanted.
        store: the prefix.
        launcher: where bodies run.
        max_workers: cores to fill.
        keep_going: after a failure, still run what does not depend on it.
        options: forced, accepted or selected steps.
        observer: the display.
    """

    def __init__(
        self,
        graph: Graph,
        store: Store,
        *,
        launcher: Launcher,
        max_workers: int,
        keep_going: bool,
        options: Options,
        observer: Observer,
    ) -> None:
        self.graph, self.store, self.launcher, self.options = graph, store, launcher, options
        self.blocking = getattr(launcher, "blocking", False)
        self.max_workers = 1 if self.blocking else max_workers
        self.keep_going = keep_going
        self.ledger = Ledger(store=store, graph=graph, observer=observer)
        self.events: queue.SimpleQueue[tuple[str, Any, Any]] = queue.SimpleQueue()
        self.stopping: Literal["failed", "refused", "cancelled"] | None = None
        self.signal: int | None = None
        # What is known of nodes: the committed record, the output digest (None: no usable output), unsettled inputs.
        self.found: dict[str, Any] = {}
        self.outputs: dict[str, str | None] = {}
        self.unfinished = {a: set(n.upstream) for a, n in graph.nodes.items()}
        self.dependants = graph.dependants()
        self.priority = graph.priorities()
        # Where nodes are: to be decided, waiting for cores, waiting for another runner, running (by job name).
        self.open: deque[str] = deque(a for a in graph.nodes if not self.unfinished[a])
        self.ready: list[tuple[tuple[int, int], str]] = []
        self.contested: dict[str, str] = {}
        self.running: dict[str, Attempt] = {}
        self.free = float(self.max_workers)
        self.examining: set[str] = set()
        self.tries: dict[str, int] = {}
        self.witness = leases.Witness()
        self.history = reasons.History(store)
        self.examiners = ThreadPoolExecutor(2, thread_name_prefix="marin-examine")

    def run(self) -> RunRecord:
        """Runs to the end and returns the record.

        Raises:
            PrefixError: the prefix cannot be written.
            RunInterrupted: a signal came; the bodies are stopped and the record is written.
        """
        self.store.check_writable()
        seen = last_collection(self.store)
        planned = reasons.plan(self.graph, self.store, options=self.options)
        self.found = {p.address: p.record for p in planned}
        if any(p.decision == "refuse" for p in planned) and not self.keep_going:
            self.stopping = "refused"
        self.ledger.open(planned)
        with self._signals_as_events(), leases.kept(self.store, self._held, lost=self._note_loss):
            try:
                said, signalled = self.ledger.observer.said, lambda: not self.events.empty()
                if await_collection(self.store, said=said, interrupted=signalled) != seen:
                    self.found = dict.fromkeys(self.found)  # what the plan saw may be gone
                self._loop()
            except BaseException as e:
                level = logging.DEBUG if isinstance(e, PrefixError) else logging.WARNING  # which says it all itself
                self._stop("cancelled", level=level)
                self._close_quietly(level)
                raise
            self._stop(self.stopping)
            record = self.ledger.close(self.stopping)
        if self.signal is not None:
            raise RunInterrupted(self.signal)
        return record

    def _loop(self) -> None:
        while True:
            while self.open and self.stopping is None:
                self._decide(self.open.popleft())
            self._start_what_fits()
            if self.open and self.stopping is None:
                continue
            waiting = self.stopping is None and (self.contested or self.ready)
            if self.stopping == "cancelled" or not (self.running or waiting):
                return
            self._handle(*self._next_event())

    def _next_event(self) -> tuple[str, Any, Any]:
        """The next event. It looks around by itself only for another runner's lease or a launcher that may be mute."""
        while True:
            contested = bool(self.contested) and self.stopping is None
            try:
                return self.events.get(timeout=_CONTESTED_EVERY if contested else _POLL_EVERY)
            except queue.Empty:
                if contested:
                    return ("look", None, None)
                for name in self.running:
                    self.events.put(("ended", name, None))

    def _handle(self, kind: str, subject: Any, detail: Any) -> None:
        if kind == "signal":
            self.stopping, self.signal = "cancelled", subject
        elif subject in self.running:
            handler = {"ended": self._ended, "examined": self._examined, "lost": self._lost}[kind]
            handler(subject, detail)

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
            self._act(node, *self._decision(node))

    def _decision(self, node: Node) -> tuple[Decision, str]:
        if self.found[node.address] is None:
            self.found[node.address] = reasons.read_record(self.store, node.address)
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
            heapq.heappush(self.ready, (self.priority[address], address))
        elif decision in ("reuse", "accept"):
            record: StepRecord = self.found[address]
            self.ledger.commit(address, record)
            self._settle(address, record.output_digest, decision=decision, reason=reason, outcome="reused")
        else:
            if decision == "refuse" and not self.keep_going:
                self.stopping = self.stopping or "refused"
            outcome = "refused" if decision == "refuse" else "unselected"
            self._settle(address, None, decision=decision, reason=reason, outcome=outcome)

    def _settle(self, address: str, output: str | None, **changes: Any) -> None:
        """A node is through, with an output or without: dependants that waited for nothing else are open now."""
        self.outputs[address] = output
        self.ledger.set(address, **changes)
        for dependant in self.dependants[address]:
            self.unfinished[dependant].discard(address)
            if not self.unfinished[dependant]:
                self.open.append(dependant)

    # Starting

    def _cores(self, node: Node) -> float:
        return min(node.step.resources.cpus, self.max_workers)

    def _start_what_fits(self) -> None:
        for address in list(self.contested):
            if self.stopping is None and self._cores(self.graph.nodes[address]) <= self.free:
                self._start(address)
        while self.ready and self.stopping is None and self._cores(self.graph.nodes[self.ready[0][1]]) <= self.free:
            self._start(heapq.heappop(self.ready)[1])

    def _start(self, address: str) -> None:
        """Takes the lease, looks once more whether the output is there by now, and launches."""
        node = self.graph.nodes[address]
        try:
            lease = leases.acquire(self.store, address, run_id=self.ledger.run_id, witness=self.witness)
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

    def _launch(self, node: Node, lease: leases.Lease, reason: str) -> None:
        attempt = attempts.begin(
            self.store,
            node,
            lease,
            run_id=self.ledger.run_id,
            reason=reason,
            arguments=attempts.arguments_for(node.step, committed=self._output_url, value=self._value),
            inputs={a: self.outputs[a] or "" for a in node.upstream},
            fresh=node.address not in self.tries and reasons.matches(self.options.force + self.options.rebuild, node),
        )
        self.running[attempt.job.name] = attempt
        self.tries[node.address] = self.tries.get(node.address, 0) + 1
        self.free -= self._cores(node)
        self.ledger.set(
            node.address,
            reason=reason,
            outcome="running",
            attempt=attempt.record.attempt,
            started_at=attempt.record.started_at,
            digests=attempt.record.digests,
            log=attempt.record.log,
        )
        if (edited := attempts.changed_source(node)) is not None:
            self.events.put(("examined", attempt.job.name, Ended(failure=edited)))
            return
        self.launcher.launch(attempt.job, notify=lambda name: self.events.put(("ended", name, None)))
        status = self.launcher.poll(attempt.job.name)
        if status is not None and status.running and status.pid is not None:
            try:
                leases.update(self.store, node.address, lease, body=leases.Process.of(status.pid))
            except LeaseLostError as e:
                self._note_loss(node.address, e)

    def _output_url(self, step: Step) -> str:
        address = self.graph.handles[step]
        return step.external or self.store.child(f"{address}/attempts/{self.ledger.nodes[address].attempt}/out")

    def _value(self, step: Step) -> Any:
        return typed_value(step, self.ledger.nodes[self.graph.handles[step]].value)

    # Ending

    def _ended(self, name: str, _: Any) -> None:
        attempt, status = self.running[name], self.launcher.poll(name)
        if status is None or status.running or attempt.address in self.examining:
            return
        self.examining.add(attempt.address)
        future = self.examiners.submit(attempts.examine, attempt, status)
        future.add_done_callback(lambda f: None if f.cancelled() else self.events.put(("examined", name, f.result())))

    def _retire(self, name: str) -> Attempt:
        attempt = self.running.pop(name)
        self.examining.discard(attempt.address)
        self.free += self._cores(attempt.node)
        return attempt

    def _examined(self, name: str, ended: Ended) -> None:
        attempt = self._retire(name)
        if ended.failure is not None:
            self._failed(attempt, ended.failure)
            return
        try:
            record = attempts.commit(self.store, attempt, ended)
        except (LeaseLostError, PrefixError) as e:
            self._failed(attempt, Failure(type=type(e).__name__, message=str(e), traceback="", exit_code=e.exit_code))
            return
        attempts.close(self.store, attempt, state="succeeded")
        self.ledger.commit(attempt.address, record)
        self._settle(attempt.address, record.output_digest, outcome="succeeded", ended_at=record.committed_at)

    def _failed(self, attempt: Attempt, failure: Failure) -> None:
        """Another try if the step has one left and the failure is not a user's mistake; else the node has failed."""
        address, now = attempt.address, time.time()
        attempts.close(self.store, attempt, state="failed", failure=failure)
        if failure.exit_code is None and self.tries[address] <= attempt.node.step.retries and self.stopping is None:
            self.ledger.observer.said(f"{attempt.node.name}: failed ({failure.type}: {failure.message}), trying again")
            self.ledger.set(address, outcome="pending")
            heapq.heappush(self.ready, (self.priority[address], address))
            return
        if not self.keep_going:
            self.stopping = self.stopping or "failed"
        seconds = now - attempt.record.started_at
        self._settle(address, None, outcome="failed", failure=failure, ended_at=now, seconds=seconds)

    def _lost(self, name: str, error: Exception) -> None:
        """The lease is gone: the body must be gone too."""
        self.launcher.cancel(name, grace=0)
        failure = Failure(type="LeaseLostError", message=str(error), traceback="", exit_code=3)
        self._failed(self._retire(name), failure)

    def _stop(self, why: Literal["failed", "refused", "cancelled"] | None, *, level: int = logging.WARNING) -> None:
        """Ends every body that still runs; at the end of an orderly run there is none."""
        self.stopping = why
        stoppers = [threading.Thread(target=self.launcher.cancel, args=(name,)) for name in self.running]
        for stopper in stoppers:
            stopper.start()
        for stopper in stoppers:
            stopper.join()
        self.examiners.shutdown(wait=False, cancel_futures=True)
        now, reason = time.time(), "the run was interrupted"
        for attempt in list(self.running.values()):
            try:
                attempts.close(self.store, attempt, state="cancelled")
                self.ledger.set(attempt.address, outcome="cancelled", reason=reason, ended_at=now)
            except MarinCoreError as e:
                log.log(level, "end of %s not written: %s", attempt.job.name, e)
        self.running.clear()

    def _close_quietly(self, level: int) -> None:
        """Writes the last record while another error is on its way; that one is what the user has to see."""
        try:
            self.ledger.close(self.stopping)
        except MarinCoreError as e:
            log.log(level, "run record not written: %s", e)

    # Beside the loop: these are called from other threads, or from a signal

    def _held(self) -> list[tuple[str, leases.Lease]]:
        return [(attempt.address, attempt.lease) for attempt in list(self.running.values())]

    def _note_loss(self, address: str, error: LeaseLostError) -> None:
        for name, attempt in list(self.running.items()):
            if attempt.address == address:
                self.events.put(("lost", name, error))

    @contextmanager
    def _signals_as_events(self) -> Generator[None]:
        """SIGINT and SIGTERM become events of the loop; a body in this very thread is interrupted at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def note(number: int, _frame: object) -> None:
            self.events.put(("signal", number, None))
            if self.blocking:
                self.signal = number
                raise RunInterrupted(number)

        before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
