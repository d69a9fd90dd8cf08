"""Running: `StepRunner` brings a graph up to date under one prefix and reports; `run` and `resolve` are its short
forms.

A step that failed is in the report rather than raised, because the others' outcomes are worth having too. The values
of a report are the recorded ones, read back from JSON, so that a value that was just made and one that was made last
week are the same.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from marin_core import reasons
from marin_core.errors import (
    DriftError,
    MissingOutputError,
    NewerRecordError,
    RunInterrupted,
    StepFailedError,
    UsageError,
)
from marin_core.graph import Graph, lower
from marin_core.handles import Input
from marin_core.launchers import Launcher, make_launcher
from marin_core.leases import TERM
from marin_core.reasons import Options
from marin_core.records import NodeRecord, RunRecord, StepRecord
from marin_core.running.ledger import Observer, Silence
from marin_core.running.loop import Loop
from marin_core.running.slots import capacity
from marin_core.steps import Step, find_steps, replace_steps, typed_value
from marin_core.store import open_store

_WITH_OUTPUT = ("succeeded", "reused")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RunReport:
    """What a run came to. Steps are given by handle, by address, or by a name that only one step has."""

    record: RunRecord
    graph: Graph
    prefix: str
    html: str | None = None
    """Where the run's page lies, once it is written."""

    def __repr__(self) -> str:
        outcomes = Counter(node.outcome for node in self.record.nodes)
        counts = ", ".join(f"{n:,} {outcome}" for outcome, n in outcomes.items())
        return f"<RunReport {self.record.run_id} under {self.prefix}: {self.record.status} ({counts})>"

    @property
    def ok(self) -> bool:
        """True if the run brought its targets up to date."""
        return self.record.status == "succeeded"

    @property
    def exit_code(self) -> int:
        """0 succeeded, 1 failed, 3 refused; a user's mistake in a body has its own code, usually 2."""
        if self.record.status == "failed":
            codes = (n.failure.exit_code for n in self.record.nodes if n.failure is not None)
            return next((code for code in codes if code), 1)
        return {"succeeded": 0, "refused": 3}.get(self.record.status, 1)

    @property
    def executed(self) -> tuple[str, ...]:
        """Addresses of the steps whose bodies ran and were committed."""
        return tuple(n.address for n in self.record.nodes if n.outcome == "succeeded")

    @property
    def values(self) -> dict[str, Any]:
        """Address -> recorded value, for each target that has an output."""
        return {a: self.value(a) for a in self.record.targets if self.node(a).outcome in _WITH_OUTPUT}

    def node(self, step: Step | str) -> NodeRecord:
        """What this run did with a step.

        Raises:
            UsageError: no step of the run, or more than one, goes by that name.
        """
        wanted = self.graph.handles.get(step, "") if isinstance(step, Step) else step
        found = [n for n in self.record.nodes if n.address == wanted] or [
            n for n in self.record.nodes if n.name == wanted
        ]
        if len(found) != 1:
            raise UsageError(f"{step!r} is {'no step' if not found else 'the name of several steps'} of this run")
        return found[0]

    def value(self, step: Step | str) -> Any:
        """The recorded value of a step, as the dataclass its function's return annotation names, if it names one.

        Raises:
            StepFailedError: the step has no output in this run.
            DriftError: because it was refused.
        """
        node = self._with_output(step)
        return typed_value(self.graph.nodes[node.address].step, node.value)

    def path(self, step: Step | str) -> Path:
        """The directory of a step's committed output.

        Raises:
            StepFailedError: the step has no output in this run.
            DriftError: because it was refused.
        """
        node = self._with_output(step)
        external = self.graph.nodes[node.address].step.external
        return Input(external or f"{self.prefix}/{node.address}/attempts/{node.attempt}/out").local()

    def _with_output(self, step: Step | str) -> NodeRecord:
        node = self.node(step)
        if node.outcome == "refused":
            raise DriftError(f"step {node.address}: {node.reason}")
        if node.outcome not in _WITH_OUTPUT:
            why = f"{node.failure.type}: {node.failure.message}" if node.failure else node.reason
            raise StepFailedError(f"step {node.address} has no output: {node.outcome} ({why})")
        return node


class StepRunner:
    """Runs graphs against one prefix.

    Args:
        prefix: local path or fsspec URL; default ``MARIN_PREFIX`` or ``./.marin``.
        launcher: ``inline``, ``process``, ``ray``, ``module:factory`` or a `Launcher`. One that is given as an object
            stays open after a run; what was made here for a name is closed.
        max_workers: cores to fill; a step takes ``resources.cpus`` of them, at most all.
        slots: accelerators by kind, as ``{"gpu": 2}``, in place of those of this machine that can be detected.
        keep_going: after a failure, still run what does not depend on it.
        options: forced, accepted or selected steps.
        observer: a display; None for silence.
        lease_seconds: how long this runner may be silent before another one takes over what it runs.
        unsafe_single_writer: take a prefix whose store has no conditional writes; see `open_store`.

    Raises:
        UsageError: no such launcher, or one that cannot reach the prefix; slots that cannot be meant.
        PrefixError: the prefix's store is not supported.
    """

    def __init__(
        self,
        prefix: str | Path | None = None,
        *,
        launcher: str | Launcher = "process",
        max_workers: int = 2,
        slots: Mapping[str, int] | None = None,
        keep_going: bool = False,
        options: Options | None = None,
        observer: Observer | None = None,
        lease_seconds: float = TERM,
        unsafe_single_writer: bool = False,
    ) -> None:
        if max_workers < 1:
            raise UsageError(f"max_workers={max_workers} must be at least 1")
        if not lease_seconds > 0:
            raise UsageError(f"lease_seconds={lease_seconds} must be above 0")
        self.store = open_store(prefix, unsafe_single_writer=unsafe_single_writer)
        self.lease_seconds = lease_seconds
        self.launcher = make_launcher(launcher)
        self._owns_launcher = isinstance(launcher, str)
        self.capacity = capacity(max_workers, slots=slots, bounded=not getattr(self.launcher, "places", False))
        self.keep_going = keep_going
        self.options = options or Options()
        self.observer = observer or Silence()
        if not self.store.shared and launcher != "inline":
            raise UsageError(f"prefix {self.store.url} lives in this process alone; use launcher='inline'")

    def run(self, graph: Graph) -> RunReport:
        """Brings every target of the graph up to date.

        Returns:
            The report; a failed step is in it, not raised.

        Raises:
            PrefixError: the prefix cannot be written.
            UsageError: an option names no step, or a step asks for accelerators that are not here.
            RunInterrupted: a KeyboardInterrupt, after the bodies were stopped and the run recorded as cancelled; its
                ``report`` is what would have been returned.
        """
        loop = Loop(
            reasons.restrict(graph, self.options),
            self.store,
            launcher=self.launcher,
            capacity=self.capacity,
            keep_going=self.keep_going,
            options=replace(self.options, until=()),
            observer=self.observer,
            lease_seconds=self.lease_seconds,
        )
        try:
            self._make_prefix()
            return RunReport(record=loop.run(), graph=loop.graph, prefix=self.store.url)
        except RunInterrupted as e:
            e.report = RunReport(record=loop.ledger.record, graph=loop.graph, prefix=self.store.url)
            raise
        finally:
            if self._owns_launcher and hasattr(self.launcher, "close"):
                self.launcher.close()

    def _make_prefix(self) -> None:
        is_new = self.store.local is not None and not self.store.local.exists()
        self.store.check_writable()
        if is_new:  # no version control of the directory around it is to take notice
            self.store.write(".gitignore", b"# made by marin\n*\n", durable=False)


def run(*handles: Any, prefix: str | Path | None = None, **options: Any) -> RunReport:
    """Lowers handles and runs them: ``run(a, b, launcher="inline")``. Options are those of `StepRunner`."""
    return StepRunner(prefix, **options).run(lower(*handles))


def resolve(handle: Any, *, prefix: str | Path | None = None, **options: Any) -> Any:
    """The recorded value of a step, which is run if needed; a container of steps gives a container of values.

    Raises:
        StepFailedError: a step, or one it depends on, failed.
        DriftError: a step was refused.
    """
    report = run(handle, prefix=prefix, **options)
    for step in find_steps(handle):
        report.value(step)
    return replace_steps(handle, report.value)


def committed_path(step: Step, *, prefix: str | Path | None = None) -> Path:
    """The directory of a step's committed output; see `Step.path`."""
    if step.external is not None:
        return Path(step.external)
    store = open_store(prefix, unsafe_single_writer=True)
    address = lower(step).handles[step]
    record = reasons.read_record(store, address)
    if isinstance(record, NewerRecordError):
        raise record
    if not isinstance(record, StepRecord):
        why = str(record) if record else "it was never run there"
        raise MissingOutputError(f"step {address} has no output under {store.url}: {why}")
    return Input(store.child(f"{address}/attempts/{record.attempt}/out")).local()
