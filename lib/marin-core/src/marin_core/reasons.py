"""Reasons: why a step runs, is reused or is refused, in words that name the field, the helper or the input.

`decide` is pure but for one look at the output's file sizes, on a local disk: from a node, the record of what is
committed and the output digests of its upstream steps it gives one `Decision` with its reason. `plan` applies it over a
graph before anything ran, where an upstream step that will run has no output digest yet; the runner applies it again
when the digests are known, and an upstream step that came out the same then rebuilds nothing (early cutoff).

A version is a promise: at a versioned address a changed recipe, code or input is refused until it is accepted or
rebuilt by name. An unversioned address changes with its recipe, so only code and inputs can differ there, and they
rebuild.
"""

import fnmatch
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from marin_core import encoding
from marin_core.ahead import side_by_side
from marin_core.errors import CorruptRecordError, NewerRecordError, UsageError
from marin_core.graph import Graph, Node
from marin_core.records import Decision, StepRecord, committed
from marin_core.steps import OnCodeChange
from marin_core.store import Store

if TYPE_CHECKING:
    from marin_core.history import History

_LONG = 32
"""Items of a list above which a text speaks of it as a whole."""
_LONGEST = 80
"""Characters of a value that a text shows."""
_PARAMETER = re.compile(r"[.\[]")

CODE_OF = "code of "
UPSTREAM = "upstream recipe changed"


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
    superseded_by: StepRecord | None = None
    """What is committed, where ``record`` is that of an earlier attempt, which is used in its stead; see `earlier`."""
    output: str | None = None
    """Output digest that dependants are decided on; None where the step would run first, or has none."""


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
    try:
        return committed(store.read(key), where=key)
    except (CorruptRecordError, NewerRecordError) as e:
        return e


def inputs_digest(node: Node, outputs: Mapping[str, str | None]) -> str:
    """The inputs digest of a node: over the output digests of its upstream steps, in order."""
    return encoding.digest([outputs[a] for a in node.upstream])


def plan(graph: Graph, store: Store, *, options: Options, history: "History | None" = None) -> tuple[Planned, ...]:
    """Decisions for every node of a graph, in topological order. Reads; writes nothing.

    All records are read before the first decision, side by side: a decision depends on the upstream ones, what is
    committed does not.

    Args:
        graph: the nodes.
        store: the prefix.
        options: what the command asks for.
        history: earlier recipes that have been read already, and where to keep what is read now.
    """
    from marin_core import earlier
    from marin_core.history import History

    planned: list[Planned] = []
    outputs: dict[str, str | None] = {}
    stops: dict[str, str] = {}
    history = history or History(store)
    nodes = restrict(graph, options).nodes
    asked = [n for n in nodes.values() if n.step.external is None]
    records = side_by_side(store, lambda n: _sharing(n, read_record(store, n.address)), asked)
    found = {n.address: record for n, record in zip(asked, records, strict=True)}
    history.read_ahead(n.name for n in asked if found[n.address] is None)
    for address, node in nodes.items():
        if node.step.external is not None:
            decision, reason = adopted(node)
            record, outputs[address], before = None, node.recipe_digest, None
        else:
            here = found[address]
            decision, reason, again = earlier.decide(
                node, here, outputs=outputs, options=options, store=store, history=history
            )
            record = here if isinstance(here, StepRecord) else None
            record, before = (again, record) if again is not None else (record, None)
            stuck = next((s for u in node.upstream if (s := stops.get(u))), None)
            if stuck is not None and decision in ("run", "reuse", "accept"):
                decision, reason = "blocked", stuck
            if decision in ("refuse", "unselected"):
                lacks = ", which has no committed output and is not selected" if decision == "unselected" else ""
                stuck = f"blocked by {node.name}{lacks}"
            if stuck is not None:
                stops[address] = stuck
            kept = record is not None and decision in ("reuse", "accept")
            outputs[address] = record.output_digest if record is not None and kept else None
        entry = Planned(
            address=address,
            name=node.name,
            decision=decision,
            reason=reason,
            record=record,
            superseded_by=before,
            output=outputs[address],
        )
        planned.append(entry)
    return tuple(planned)


def _sharing(node: Node, found: Found) -> Found:
    """The record with the node's own objects in place of equal ones: thousands of steps of one function reach the same
    code, and one copy of what it is called is enough."""
    if not isinstance(found, StepRecord):
        return found
    code = node.code.units if found.code == node.code.units else found.code
    recipe = node.recipe if found.recipe == node.recipe else found.recipe
    return replace(found, code=code, recipe=recipe)


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
    decision, reason = _stale(node, found, outputs=outputs, options=options, history=history)
    # Only where a look costs no round trip: an object of a remote store is written whole, and `verify` looks there.
    damage = store.damage(f"{node.address}/attempts/{found.attempt}/out", found.files) if store.local else []
    if damage and decision != "refuse":
        more = f" and {len(damage) - 1} more" if len(damage) > 1 else ""
        damaged = f"committed output is damaged: {damage[0]}{more}"
        if not selected:
            return "unselected", f"{damaged}; not selected by --only"
        if decision == "accept":
            return "refuse", f"{damaged}; --rebuild {node.name} makes it again"
        return "run", reason if decision == "run" else damaged
    if decision == "run" and not selected:
        return "reuse", f"not selected by --only, used although {reason}"
    return decision, reason


def _stale(
    node: Node, record: StepRecord, *, outputs: Mapping[str, str | None], options: Options, history: "History"
) -> tuple[Decision, str]:
    """What follows from the differences between what is committed and what is asked; the first that counts decides."""
    reported = ""
    drifts = list(_drifts(node, record, outputs))
    for rule, reason in drifts:
        if matches(options.rebuild, node):
            return "run", f"{reason}; rebuilt by --rebuild"
        if matches(options.accept, node):
            return "accept", f"{reason}; old output accepted by --accept"
        action = _action(rule, node, options)
        if action == "refuse":
            fix = f"--accept {node.name} serves the old output this once, --rebuild {node.name} makes a new one"
            return "refuse", "; ".join([*(why for rule, why in drifts if rule != "pending"), fix])
        if action == "rebuild":
            return "run", reason
        reported = f"{reason}; only reported"
    if reported:
        return "reuse", reported
    since = history.environment_since(record, node)
    return "reuse", f"up to date; {since}" if since else "up to date"


def _drifts(node: Node, record: StepRecord, outputs: Mapping[str, str | None]) -> Iterator[tuple[str, str]]:
    """The differences between what is committed and what is asked: kind and description of each."""
    if record.digests.recipe != node.recipe_digest:
        yield "recipe", "recipe changed: " + "; ".join(recipe_changes(record.recipe, node.recipe))
    if record.digests.code != node.code.digest:
        yield "code", "code changed: " + code_changes(record.code, node)
    pending = [p for a, p in node.upstream.items() if outputs[a] is None]
    if pending:
        refused = ", and refused if it comes out different" if node.step.version is not None else ""
        inputs = list(dict.fromkeys(pending))
        yield "pending", f"input{'s' * (len(inputs) > 1)} {', '.join(inputs)} will be made again{refused}"
    elif record.digests.inputs != inputs_digest(node, outputs):
        yield "inputs", _input_changes(node, record, outputs)


def _input_changes(node: Node, record: StepRecord, outputs: Mapping[str, str | None]) -> str:
    """The parameters whose upstream outputs changed: one with the beginning of the output digests, many by number."""
    changed: dict[str, list[str]] = {}
    for address, parameter in node.upstream.items():
        old, new = record.inputs.get(address), outputs[address]
        if old != new:
            changed.setdefault(parameter, []).append(f"output {(old or 'none')[:12]} -> {(new or 'none')[:12]}")
    total = Counter(node.upstream.values())
    said = (
        f"input {p} changed: {outputs_of[0]}"
        if len(outputs_of) == 1
        else f"{len(outputs_of)} of {total[p]} inputs {p} changed"
        for p, outputs_of in changed.items()
    )
    return "; ".join(said) or "input order changed"


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
        same_text = not suffix and recorded[name].partition("+")[0] == node.code.units[name].partition("+")[0]
        said.append(f"{'imports of ' if same_text else ''}{kind} {name}{suffix}")
    more = f" and {len(said) - 4} more" if len(said) > 4 else ""
    return ", ".join(said[:4]) + more


def recipe_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Differences between two recipes as ``field: old -> new``, one for each leaf that differs; upstream steps of one
    parameter are one."""
    before, after = flatten(old), flatten(new)
    changes: list[str] = []
    upstream: dict[str, list[str]] = {}
    for name in dict.fromkeys((*before, *after)):
        a, b = before.get(name, "absent"), after.get(name, "absent")
        if a[:5] == b[:5] == "step " and a != b and "/" not in a + b:  # both without a version: digests say nothing
            upstream.setdefault(_PARAMETER.split(name)[0], []).append(name)
        elif a != b and a.split()[:2] == b.split()[:2] and a.startswith(("function ", "class ")):
            changes.append(f"{name}: {CODE_OF}{a.split()[1]} changed")
        elif a != b:
            changes.append(f"{name}: {_brief(a)} -> {_brief(b)}")
    for parameter, names in upstream.items():
        changes.append(
            f"{names[0]}: {UPSTREAM}" if len(names) == 1 else f"{parameter}: {len(names)} upstream recipes changed"
        )
    return changes


def _brief(leaf: str) -> str:
    if leaf.startswith("step "):
        return leaf[:17]  # the twelve digits of an address
    if leaf.startswith(("function ", "class ")):
        return " ".join(leaf.split()[:2])
    return leaf if len(leaf) <= _LONGEST else f"{leaf[: _LONGEST - 20]}… ({len(leaf):,} characters)"


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
        elif tag in ("dict", "OrderedDict", "defaultdict"):
            if not rest[0]:
                leaves[at] = f"empty {tag}"
            elif tag == "OrderedDict":
                leaves[f"order({at})"] = ", ".join(_leaf(*k) for k, _ in rest[0])
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
