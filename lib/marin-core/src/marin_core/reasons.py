"""Reasons: why a step runs, is reused or is refused, in words that name the field, the helper or the input.

`decide` is pure but for one look at the output's file sizes: from a node, the record of what is committed and the
output digests of its upstream steps it gives one `Decision` with its reason. `plan` applies it over a graph before
anything ran, where an upstream step that will run has no output digest yet; the runner applies it again when the
digests are known, and an upstream step that came out the same then rebuilds nothing (early cutoff).

A version is a promise: at a versioned address a changed recipe, code or input is refused until it is accepted or
rebuilt by name. An unversioned address changes with its recipe, so only code and inputs can differ there, and they
rebuild.
"""

import fnmatch
import hashlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from marin_core import identity
from marin_core.errors import CorruptRecordError, NewerRecordError, UsageError
from marin_core.graph import Graph, Node
from marin_core.records import Decision, StepRecord, Tombstone, from_json
from marin_core.steps import OnCodeChange
from marin_core.store import Store

_MOST_SIBLINGS = 64

_MOST_CHANGES = 6
_LONG = 32
"""Items of a list above which a text speaks of it as a whole."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a command asks of a plan. Each is a tuple of globs over step names and addresses.

    Args:
        only: nothing else may execute; committed outputs of other steps are used as they are.
        until: these steps become the targets.
        force: run even if up to date.
        accept: serve a drifted versioned output as it is.
        rebuild: make a new attempt at a drifted step.
        on_code_change: overrides every step's own setting.
    """

    only: tuple[str, ...] = ()
    until: tuple[str, ...] = ()
    force: tuple[str, ...] = ()
    accept: tuple[str, ...] = ()
    rebuild: tuple[str, ...] = ()
    on_code_change: OnCodeChange | None = None


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A decision about one node, before the run."""

    address: str
    name: str
    decision: Decision
    reason: str
    record: StepRecord | None


def matches(globs: tuple[str, ...], node: Node) -> bool:
    """Whether a step's name or address matches one of the globs."""
    return any(fnmatch.fnmatchcase(node.name, g) or fnmatch.fnmatchcase(node.address, g) for g in globs)


def restrict(graph: Graph, options: Options) -> Graph:
    """The graph that ``until`` leaves: the matching steps and all they depend on.

    Raises:
        UsageError: a glob of the options matches no step.
    """
    for flag in ("only", "until", "force", "accept", "rebuild"):
        for glob in getattr(options, flag):
            if not any(matches((glob,), n) for n in graph.nodes.values()):
                names = ", ".join(dict.fromkeys(n.name for n in list(graph.nodes.values())[:12]))
                raise UsageError(f"--{flag} {glob}: no step of that name; there are {names}")
    if not options.until:
        return graph
    targets = tuple(a for a, n in graph.nodes.items() if matches(options.until, n))
    keep = set(targets)
    for address in reversed(graph.addresses):
        if address in keep:
            keep.update(graph.nodes[address].upstream)
    nodes = {a: n for a, n in graph.nodes.items() if a in keep}
    return Graph(nodes=nodes, targets=targets, handles={s: a for s, a in graph.handles.items() if a in keep})


Found = StepRecord | CorruptRecordError | NewerRecordError | None
"""What is committed at an address: a record, nothing, or one that cannot be read and why."""


def read_record(store: Store, address: str) -> Found:
    """The committed record of a step; the error if there is one that cannot be read."""
    key = f"{address}/step.json"
    data = store.read(key)
    if data is None:
        return None
    try:
        return from_json(StepRecord, data, where=key)
    except (CorruptRecordError, NewerRecordError) as e:
        return e


def inputs_digest(node: Node, outputs: Mapping[str, str | None]) -> str:
    """The inputs digest of a node: over the output digests of its upstream steps, in order."""
    return identity.digest([outputs[a] for a in node.upstream])


def plan(graph: Graph, store: Store, *, options: Options) -> tuple[Planned, ...]:
    """Decisions for every node of a graph, in topological order. Reads; writes nothing."""
    planned: dict[str, Planned] = {}
    outputs: dict[str, str | None] = {}
    history = History(store)
    for address, node in restrict(graph, options).nodes.items():
        if node.step.external is not None:
            decision, reason = adopted(node)
            record, outputs[address] = None, node.recipe_digest
        else:
            found = read_record(store, address)
            decision, reason = decide(node, found, outputs=outputs, options=options, store=store, history=history)
            record = found if isinstance(found, StepRecord) else None
            kept = record is not None and decision in ("reuse", "accept")
            outputs[address] = record.output_digest if record is not None and kept else None
        planned[address] = Planned(address=address, name=node.name, decision=decision, reason=reason, record=record)
    return tuple(planned.values())


def adopted(node: Node) -> tuple[Decision, str]:
    """Data that exists already is only ever read."""
    return "reuse", f"adopted from {node.step.external}"


def decide(
    node: Node,
    found: Found,
    *,
    outputs: Mapping[str, str | None],
    options: Options,
    store: Store,
    history: "History",
) -> tuple[Decision, str]:
    """The decision about one node, and its reason.

    Args:
        node: the node.
        found: what is committed at its address.
        outputs: output digest by upstream address; None for one that will run first.
        options: what the command asks for.
        store: to look at the committed files' sizes.
        history: earlier recipes of the same step, to say what is new.
    """
    selected = not options.only or matches(options.only, node)
    if found is None:
        if not selected:
            return "unselected", "no committed output, and not selected by --only"
        return "run", history.what_is_new(node)
    if isinstance(found, NewerRecordError):
        return "refuse", str(found)
    if isinstance(found, CorruptRecordError):
        return (
            ("run", f"record is corrupt: {found}") if selected else ("unselected", f"{found}; not selected by --only")
        )
    if selected and matches(options.force, node):
        return "run", "forced by --force"
    decision, reason = _stale(node, found, outputs=outputs, options=options)
    damage = store.damage(f"{node.address}/attempts/{found.attempt}/out", found.files)
    if damage and decision != "refuse":
        more = f" and {len(damage) - 1} more" if len(damage) > 1 else ""
        damaged = f"committed output is damaged: {damage[0]}{more}"
        if not selected:
            return "unselected", f"{damaged}; not selected by --only"
        if decision == "accept":
            return "refuse", f"step {node.address}: {damaged}; --rebuild {node.name} makes it again"
        return "run", reason if decision == "run" else damaged
    if decision == "run" and not selected:
        return "reuse", f"not selected by --only, used although {reason}"
    return decision, reason


def _stale(
    node: Node, record: StepRecord, *, outputs: Mapping[str, str | None], options: Options
) -> tuple[Decision, str]:
    """What follows from the differences between what is committed and what is asked; the first that counts decides."""
    reported = ""
    for rule, reason in _drifts(node, record, outputs):
        if matches(options.rebuild, node):
            return "run", f"{reason}; rebuilt by --rebuild"
        if matches(options.accept, node):
            return "accept", f"{reason}; old output accepted by --accept"
        action = _action(rule, node, options)
        if action == "refuse":
            name = f"versioned step {node.address}" if node.step.version else f"step {node.address}"
            fix = f"--accept {node.name} serves the old output, --rebuild {node.name} makes a new one"
            return "refuse", f"{name}: {reason}; {fix}"
        if action == "rebuild":
            return "run", reason
        reported = f"{reason}; only reported"
    if reported:
        return "reuse", reported
    if record.digests.environment != node.environment:
        return "reuse", "up to date; environment changed since"
    return "reuse", "up to date"


def _drifts(node: Node, record: StepRecord, outputs: Mapping[str, str | None]) -> Iterator[tuple[str, str]]:
    """The differences between what is committed and what is asked: kind and description of each."""
    if record.digests.recipe != node.recipe_digest:
        yield "recipe", "recipe changed: " + "; ".join(recipe_changes(record.recipe, node.recipe))
    if record.digests.code != node.code.digest:
        yield "code", "code changed: " + code_changes(record.code, node)
    pending = [p for a, p in node.upstream.items() if outputs[a] is None]
    if pending:
        yield "pending", f"input {', '.join(dict.fromkeys(pending))} will be made again"
    elif record.digests.inputs != inputs_digest(node, outputs):
        changed = [p for a, p in node.upstream.items() if record.inputs.get(a) != outputs[a]]
        yield "inputs", f"input {', '.join(dict.fromkeys(changed)) or 'order'} changed"


def _action(rule: str, node: Node, options: Options) -> OnCodeChange:
    versioned = node.step.version is not None
    if rule == "code":
        own = node.step.function.on_code_change
        if options.on_code_change is not None:
            return options.on_code_change
        return "refuse" if versioned and own == "rebuild" else own
    if rule == "pending":
        return "rebuild"
    return "refuse" if versioned else "rebuild"


def code_changes(recorded: Mapping[str, str], node: Node) -> str:
    """Names of the units that changed, came or went; the step's own function first."""
    own = node.recipe["function"]
    names = [n for n in {**recorded, **node.code.units} if recorded.get(n) != node.code.units.get(n)]
    said = []
    for name in sorted(names, key=lambda n: (n != own, n)):
        kind = "step function" if name == own else node.code.kinds.get(name, "code")
        suffix = " (new)" if name not in recorded else " (gone)" if name not in node.code.units else ""
        said.append(f"{kind} {name}{suffix}")
    more = f" and {len(said) - 4} more" if len(said) > 4 else ""
    return ", ".join(said[:4]) + more


class History:
    """Earlier recipes of a step, to say what is new in this one. Read once a name."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._siblings: dict[str, frozenset[str]] = {}
        self._earlier: dict[str, list[tuple[StepRecord, dict[str, str]]]] = {}

    def what_is_new(self, node: Node) -> str:
        """The reason why a step without a committed output runs."""
        if (collected := self._collected(node)) is not None:
            return collected
        nearest = self.nearest(node)
        if nearest is None:
            return "no committed output"
        changes = recipe_changes(nearest.recipe, node.recipe)
        more = f"; and {len(changes) - _MOST_CHANGES} more" if len(changes) > _MOST_CHANGES else ""
        return "recipe is new: " + "; ".join(changes[:_MOST_CHANGES]) + more

    def nearest(self, node: Node) -> StepRecord | None:
        """The committed step of the same name whose recipe differs in the fewest leaves, the newest of several."""
        if node.step.version is not None:
            return None
        if node.name not in self._earlier:
            self._earlier[node.name] = self._read(node.name)
        own = flatten(node.recipe)
        ranked = [(_distance(leaves, own), -r.committed_at, r) for r, leaves in self._earlier[node.name]]
        return min(ranked, key=lambda rank: rank[:2], default=(0, 0.0, None))[2]

    def _collected(self, node: Node) -> str | None:
        """The reason of a step whose output was collected."""
        name, _, last = node.address.rpartition("/")
        key = f"{node.address}/tombstone.json"
        data = self._store.read(key) if last in self._names(name) else None
        try:
            stone = from_json(Tombstone, data, where=key) if data is not None else None
        except (CorruptRecordError, NewerRecordError):
            return None
        return f"collected by gc on {time.strftime('%Y-%m-%d', time.localtime(stone.collected_at))}" if stone else None

    def _names(self, name: str) -> frozenset[str]:
        if name not in self._siblings:
            self._siblings[name] = frozenset(self._store.names(name))
        return self._siblings[name]

    def _read(self, name: str) -> list[tuple[StepRecord, dict[str, str]]]:
        siblings = self._names(name)
        if len(siblings) > _MOST_SIBLINGS:
            return []
        found = [read_record(self._store, f"{name}/{s}") for s in sorted(siblings)]
        return [(r, flatten(r.recipe)) for r in found if isinstance(r, StepRecord) and r.version is None]


def _distance(before: Mapping[str, str], after: Mapping[str, str]) -> int:
    """Number of leaves in which two recipes differ."""
    return len(dict(before.items() ^ after.items()))


def recipe_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Differences between two recipes as ``field: old -> new``, one for each leaf that differs."""
    before, after = flatten(old), flatten(new)
    changes = []
    for name in dict.fromkeys((*before, *after)):
        a, b = before.get(name, "absent"), after.get(name, "absent")
        if a != b:
            same_kind = a[:5] == b[:5] == "step "
            changes.append(f"{name}: upstream recipe changed" if same_kind else f"{name}: {_brief(a)} -> {_brief(b)}")
    return changes


def _brief(leaf: str) -> str:
    return leaf[:17] if leaf.startswith("step ") else leaf  # the twelve digits of an address


def flatten(recipe: Mapping[str, Any]) -> dict[str, str]:
    """Every leaf of a recipe: its path (``config.optimizer.lr``) -> its value as text."""
    leaves = {"function": str(recipe.get("function")), "version": repr(recipe.get("version"))}
    stack = [(name, value) for name, value in reversed(recipe.get("arguments", {}).items())]
    while stack:
        at, (tag, *rest) = stack.pop()
        if tag == "dataclass":
            leaves[f"type({at})"] = rest[0]
            stack.extend((f"{at}.{k}", v) for k, v in reversed(rest[1].items()))
        elif tag in ("list", "tuple"):
            if not rest[0]:
                leaves[at] = f"empty {tag}"
            if len(rest[0]) > _LONG:
                leaves[at] = f"{len(rest[0])} items, sha256 {hashlib.sha256(repr(rest[0]).encode()).hexdigest()[:12]}"
                continue
            stack.extend((f"{at}[{i}]", v) for i, v in reversed(list(enumerate(rest[0]))))
        elif tag == "dict":
            if not rest[0]:
                leaves[at] = "empty dict"
            stack.extend((f"{at}[{_leaf(*k)}]", v) for k, v in reversed(rest[0]))
        else:
            leaves[at] = _leaf(tag, *rest)
    return leaves


def _leaf(tag: str, *rest: Any) -> str:
    if tag == "float":
        return repr(float.fromhex(rest[0]) if "0x" in rest[0] else float(rest[0]))
    if tag == "int":
        return rest[0]
    if tag in ("str", "bool", "none"):
        return repr(rest[0])
    return f"{tag} " + " ".join(x if isinstance(x, str) else repr(x) for x in rest)
