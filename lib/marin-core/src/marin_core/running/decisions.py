"""Decisions of a run: what is known of each node, which nodes are ready, and what is to be done with them.

A node is ready when its last upstream step is settled; it is decided on afresh then, because only now its inputs are
known, so an upstream step that came out the same rebuilds nothing below it (early cutoff). Under the step's lease it is
decided on once more: nobody else can commit then, and what another run has just made is not made again.
"""

from collections import deque
from typing import Any

from marin_core import earlier, reasons
from marin_core.graph import Graph, Node
from marin_core.history import History
from marin_core.reasons import Found, Options, Planned
from marin_core.records import Decision, StepRecord
from marin_core.store import Store


class Decisions:
    """What one run knows, and decides by.

    Args:
        graph: the nodes.
        store: the prefix.
        options: what the command asks for.
    """

    def __init__(self, graph: Graph, store: Store, options: Options) -> None:
        self._graph, self._store, self._options = graph, store, options
        self._history = History(store)
        self._planned: dict[str, Planned] = {}
        self._found: dict[str, Found] = {}
        self._earlier: dict[str, StepRecord] = {}
        """Records of earlier attempts that were decided to be used, and that no pointer names yet."""
        self._outputs: dict[str, str | None] = {}
        """Output digests of settled nodes; None: no usable output."""
        self._unsettled = {a: set(n.upstream) for a, n in graph.nodes.items()}
        self._dependants = graph.dependants()
        self.ready: deque[Node] = deque(n for a, n in graph.nodes.items() if not self._unsettled[a])
        """Nodes to be decided on."""

    def plan(self) -> tuple[Planned, ...]:
        """Decides on all nodes as far as can be told before anything has run."""
        self._history = History(self._store)
        planned = reasons.plan(self._graph, self._store, options=self._options, history=self._history)
        self._planned = {p.address: p for p in planned}
        self._found = {p.address: p.superseded_by or p.record for p in planned}
        self._earlier = {p.address: p.record for p in planned if p.superseded_by is not None and p.record is not None}
        return planned

    def blocker(self, node: Node) -> str | None:
        """The first upstream step of a ready node that has no output."""
        return next((u for u in node.upstream if self._outputs.get(u) is None), None)

    def of(self, node: Node) -> tuple[Decision, str]:
        """The decision on a ready node, with its reason: the plan's, where that was made on the very inputs that have
        come out since."""
        if node.step.external is not None:
            return reasons.adopted(node)
        planned = self._planned[node.address]
        if all(self._outputs[u] == self._planned[u].output for u in node.upstream):
            return planned.decision, planned.reason
        return self._afresh(node)

    def under_lease(self, node: Node, *, contested: bool) -> tuple[Decision, str]:
        """The decision that counts.

        Args:
            node: a node whose lease is held.
            contested: another run held the lease while this one waited for it; what it has made is used even where
                this run was told to make it.
        """
        before = self._found[node.address]
        self._found[node.address] = found = reasons.read_record(self._store, node.address)
        decision, reason = self._afresh(node)
        if not contested or not isinstance(found, StepRecord) or decision not in ("run", "reuse"):
            return decision, reason
        wanted = (node.recipe_digest, node.code.digest, reasons.inputs_digest(node, self._outputs))
        is_new = not isinstance(before, StepRecord) or before.attempt != found.attempt
        if is_new and (found.digests.recipe, found.digests.code, found.digests.inputs) == wanted:
            return "reuse", f"made by run {found.run_id} meanwhile"
        return decision, reason

    def _afresh(self, node: Node) -> tuple[Decision, str]:
        found, store, history = self._found[node.address], self._store, self._history
        verdict = earlier.decide(
            node, found, outputs=self._outputs, options=self._options, store=store, history=history
        )  # fmt: skip
        self._earlier.pop(node.address, None)
        if verdict.earlier is not None:
            self._earlier[node.address] = verdict.earlier
        return verdict.decision, verdict.reason

    def earlier(self, address: str) -> StepRecord | None:
        """The record of the earlier attempt that was decided to be used; None once the pointer names it."""
        return self._earlier.get(address)

    def restored(self, address: str, record: StepRecord) -> None:
        """The pointer names an earlier attempt again."""
        self._found[address] = record
        self._earlier.pop(address, None)

    def committed(self, address: str) -> StepRecord:
        """The record that was decided to be used."""
        found: Any = self._found[address]
        return found

    def inputs(self, node: Node) -> dict[str, str]:
        """Output digest by upstream address of a node that is to run."""
        return {a: self._outputs[a] or "" for a in node.upstream}

    def settle(self, address: str, output: str | None) -> None:
        """A node is through, with an output or without: dependants that waited for nothing else are ready now."""
        self._outputs[address] = output
        for dependant in self._dependants[address]:
            self._unsettled[dependant].discard(address)
            if not self._unsettled[dependant]:
                self.ready.append(self._graph.nodes[dependant])
