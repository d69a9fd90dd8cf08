"""The ledger of a run: what is known of every node, told to a display and written to ``runs/{run_id}.json``.

The record is written when the run starts, soon after nodes have changed, and when it ends; a run whose driver was
killed stays ``running`` on disk, with every node as it last stood. Writes are spaced by their own cost, so that the
record of a large graph never takes more than a small share of the run; a change that comes too soon after one is
written at a moment of its own, for which the run's loop calls `catch_up`.
"""

import dataclasses
import functools
import hashlib
import os
import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from marin_core import faults
from marin_core.graph import Graph, Node
from marin_core.namesakes import Remembered, labels
from marin_core.processes import Process, this_host
from marin_core.provenance import environments, facts
from marin_core.reasons import Planned
from marin_core.records import Digests, FileEntry, NodeRecord, Origin, RunRecord, StepRecord, finite, to_json
from marin_core.steps import Step, find_steps
from marin_core.store import Store

_LEAST_PERIOD = 0.5
"""Least seconds between two writes of a changing record; a costly write is followed by twenty times its own cost."""
_MOST_ITEMS = 32
"""Items of a list, without steps among them, up to which a run's record has them all; see `reasons.flatten`."""
_LONGEST_TEXT, _LONGEST_WORD = 2000, 200
"""Characters of a text up to which it has all of it, and how many of a longer one."""


class Observer(Protocol):
    """What a display is told, always from the runner's own thread."""

    def started(self, run: "Ledger") -> None:
        """The plan stands, nothing ran yet."""
        ...

    def changed(self, node: NodeRecord) -> None:
        """A node's outcome changed."""
        ...

    def said(self, text: str) -> None:
        """Something worth a line."""
        ...

    def ended(self, record: RunRecord) -> None:
        """The run is over."""
        ...


class Silence:
    """An observer that shows nothing."""

    def started(self, run: "Ledger") -> None:
        """Nothing."""

    def changed(self, node: NodeRecord) -> None:
        """Nothing."""

    def said(self, text: str) -> None:
        """Nothing."""

    def ended(self, record: RunRecord) -> None:
        """Nothing."""


@dataclass(kw_only=True)
class Ledger:
    """The nodes of one run as they stand now."""

    store: Store
    graph: Graph
    observer: Observer
    later: Callable[[float, str], None] = lambda _seconds, _kind: None
    """Has the loop told in so many seconds that a ``record`` is due."""
    run_id: str = field(default_factory=lambda: _new_run_id(time.time()))
    nodes: dict[str, NodeRecord] = field(default_factory=dict)
    files: dict[str, tuple[FileEntry, ...]] = field(default_factory=dict)
    """Address -> manifest of the output that this run uses."""
    _gathering: facts.Gathering = field(init=False)
    _record: RunRecord | None = None
    _next_write: float = 0.0
    _is_due: bool = False

    def __post_init__(self) -> None:
        self._gathering = facts.Gathering(self.store)

    @property
    def record(self) -> RunRecord:
        """The run record; there is one once the run has opened."""
        assert self._record is not None
        return self._record

    def open(self, planned: tuple[Planned, ...]) -> None:
        """Enters the plan, writes the record for the first time and tells the display."""
        for p in planned:
            self.nodes[p.address] = planned_node(self.graph.nodes[p.address], self.graph, p)
        for environment in {n.environment for n in self.graph.nodes.values() if n.environment}:
            environments.keep(self.store, environment)
        script = self._gathering.invocation.script
        self._record = RunRecord(
            run_id=self.run_id,
            script=_relative(str(script)) if script else "",
            argv=tuple(sys.argv),
            targets=self.graph.targets,
            status="running",
            started_at=time.time(),
            ended_at=None,
            nodes=(),
            environment=facts.environment(self._gathering.lock),
            driver={"host": this_host(), **dataclasses.asdict(Process.of(os.getpid()))},
        )
        self._write()
        self.observer.started(self)

    @functools.cached_property
    def labels(self) -> dict[str, str]:
        """Address -> what each step is called where people read; see `namesakes`."""
        return labels(self.nodes.values())

    def label(self, node: NodeRecord) -> str:
        """What a step is called where people read."""
        return self.labels[node.address]

    def origin(self) -> Origin:
        """Where this run came from. Waits for git the first time."""
        origin = self._gathering.settled(self.record.environment)
        if self.record.origin is None:
            git = {"commit": origin.commit, "branch": origin.branch, "dirty": origin.dirty} if origin.repository else {}
            self._record = replace(self.record, origin=origin, git=git)
        return origin

    def provenance(self, address: str) -> dict[str, Any]:
        """The fields of a step's record by which it can be made again: ``origin`` and ``adopted``."""
        found = ((u, self.graph.nodes[u].step.external) for u in self.graph.nodes[address].upstream)
        return {
            "origin": dataclasses.asdict(self.origin()),
            "adopted": {u: path for u, path in found if path is not None},
        }

    def set(self, address: str, **changes: Any) -> None:
        """Changes fields of a node's record."""
        self.nodes[address] = replace(self.nodes[address], **changes)
        self.observer.changed(self.nodes[address])
        wait = self._next_write - time.monotonic()
        if wait <= 0:
            self._write()
        elif not self._is_due:
            self._is_due = True
            self.later(wait, "record")

    def catch_up(self) -> None:
        """Writes what has changed since the last write."""
        if self._is_due:
            self._write()

    def commit(self, address: str, record: StepRecord, **changes: Any) -> None:
        """Enters a committed output, made now or earlier, into a node's record."""
        self.files[address] = record.files
        self.set(address, **committed_fields(record), **changes)

    def close(self, stopped: str | None) -> RunRecord:
        """Settles what is left, writes the record for the last time and returns it.

        Args:
            stopped: why the run ended before its end: failed, refused or cancelled; None if it did not.
        """
        outcomes = {n.outcome for n in self.nodes.values()}
        status: Any = stopped
        if status is None:
            bad = next((o for o in ("failed", "refused") if o in outcomes), None)
            done = {self.nodes[a].outcome for a in self.graph.targets} <= {"succeeded", "reused", "unselected"}
            status = bad or ("succeeded" if done else "failed")
        for address, node in self.nodes.items():
            if node.outcome == "pending":
                self.nodes[address] = self._unstarted(node, status)
                self.observer.changed(self.nodes[address])
        self._record = replace(self.record, status=status, ended_at=time.time())
        self._write()
        self.observer.ended(self.record)
        return self.record

    def blocked_by(self, blocker: str) -> str:
        """The reason of a node without an input: names the first culprit, not the blocked ones in between."""
        culprit = self.nodes[blocker]
        if culprit.outcome == "blocked":
            return culprit.reason
        if culprit.outcome == "unselected":
            return f"blocked by {self.label(culprit)}, which has no committed output and is not selected"
        return f"blocked by {self.label(culprit)}"

    def _unstarted(self, node: NodeRecord, status: str) -> NodeRecord:
        bad = [u for u in node.upstream if self.nodes[u].outcome in ("failed", "refused", "blocked")]
        if bad:
            return replace(node, decision="blocked", outcome="blocked", reason=self.blocked_by(bad[0]))
        reason = f"not started, the run was {status}; would {node.decision}: {node.reason}"
        return replace(node, outcome="cancelled" if status == "cancelled" else "pending", reason=reason)

    def _write(self) -> None:
        self._is_due = False
        start = time.monotonic()
        try:
            if self._gathering.is_known or self.record.ended_at is not None:
                self.origin()
        finally:  # a patch may not fit where the record does
            self._record = replace(self.record, nodes=tuple(self.nodes.values()))
            self.store.write(f"runs/{self.run_id}.json", to_json(self._record).encode(), durable=False)
        faults.reached("run-recorded")
        now = time.monotonic()
        self._next_write = now + max(_LEAST_PERIOD, 20 * (now - start))


def _new_run_id(now: float) -> str:
    """The second, the fraction of it in 4096ths, and twelve random bits: ids sort as the runs began."""
    second = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    return f"{second}-{int(now % 1 * 4096):03x}{secrets.randbits(12):03x}"


def committed_fields(record: StepRecord) -> dict[str, Any]:
    """The fields of a `NodeRecord` that tell of a committed output."""
    return {
        "attempt": record.attempt,
        "seconds": record.seconds,
        "num_files": len(record.files),
        "num_bytes": record.num_bytes,
        "digests": record.digests,
        "output_digest": record.output_digest,
        "value": record.value,
        "log": f"{record.address}/attempts/{record.attempt}/log.txt",
    }


def planned_node(node: Node, graph: Graph, planned: Planned) -> NodeRecord:
    """The record of a node before anything ran."""
    step = node.step
    return NodeRecord(
        address=node.address,
        name=step.name,
        version=step.version,
        upstream=tuple(node.upstream),
        arguments=_arguments(node, graph),
        decision=planned.decision,
        reason=planned.reason,
        outcome="refused" if planned.decision == "refuse" else "pending",
        digests=Digests(recipe=node.recipe_digest, code=node.code.digest, environment=node.environment, inputs=""),
        doc=next(iter((step.function.__doc__ or "").strip().splitlines()), ""),
    )


def labels_in(graph: Graph) -> dict[str, str]:
    """Address -> what each step of a graph is called where people read; see `namesakes`."""
    nodes = graph.nodes.values()
    return labels(Remembered(n.address, n.name, tuple(n.upstream), _arguments(n, graph)) for n in nodes)


def _arguments(node: Node, graph: Graph) -> dict[str, Any]:
    return {k: _shown(v, lambda s: {"step": graph.handles[s]}) for k, v in node.step.arguments.items()}


def _shown(value: Any, of_step: Callable[[Step], Any]) -> Any:
    """A literal argument as JSON for people to read. What is long is told by its size and digest; `StepRecord.recipe`
    has what identity needs."""
    if isinstance(value, Step):
        return of_step(value)
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        return f"{value[:_LONGEST_WORD]}… ({len(value)} characters, sha256 {_sha256(value)})"
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, dict):
        return {str(k): _shown(v, of_step) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        shown = [_shown(v, of_step) for v in value]
        if isinstance(value, set | frozenset):
            shown.sort(key=repr)
        is_long = len(shown) > _MOST_ITEMS and next(find_steps(value), None) is None
        return f"{len(shown)} items, sha256 {_sha256(repr(shown))}" if is_long else shown
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _shown(getattr(value, f.name), of_step) for f in dataclasses.fields(value)}
    return getattr(value, "__qualname__", None) or _shown(str(value), of_step)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:12]


def _relative(script: str) -> str:
    relative = os.path.relpath(script)
    return Path(script).name if relative.startswith("..") else relative
