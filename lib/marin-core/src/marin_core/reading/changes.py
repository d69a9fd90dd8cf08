"""Changes: what is not the same in two steps or two runs, as one list.

A `Change` says where it belongs (config, code, environment, inputs, value, metrics, files, ...), what it is called and
what stood there before and after; None is what is not there. Everything else (numbers' deltas, the text, the JSON)
follows from that list. Nothing is a reason here: `reasons` says why a step runs, this says what came out otherwise.
Records are all that is looked at; `comparisons` finds them and brings in what lies beside them.
"""

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marin_core.quantities import is_number
from marin_core.reasons import flatten
from marin_core.records import NodeRecord, RunRecord, StepRecord, finite

SECTIONS = (
    "command",
    "git",
    "config",
    "code",
    "environment",
    "inputs",
    "decisions",
    "timings",
    "value",
    "metrics",
    "files",
)
"""The order in which changes are shown: what was asked, by what it was made, what came of it."""

NOT_FINITE = ("NaN", "Infinity", "-Infinity")
_MOST_CANDIDATES = 32
"""Steps of one name that a step is compared with to find its counterpart; the members of a sweep may be thousands."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One thing that is not the same. ``old`` and ``new`` are plain JSON; None is absence."""

    section: str
    name: str
    old: Any
    new: Any

    @property
    def delta(self) -> float | None:
        """How much a number has grown; None of what is no number, and beyond the floats."""
        with contextlib.suppress(OverflowError):
            return self.new - self.old if is_number(self.old) and is_number(self.new) else None
        return None

    @property
    def ratio(self) -> float | None:
        """By what a number was multiplied; None from zero as well."""
        with contextlib.suppress(OverflowError):
            return self.new / self.old if self.delta is not None and self.old else None
        return None

    def document(self) -> dict[str, Any]:
        """As strict JSON; numbers with their delta and ratio."""
        numbers = {"delta": self.delta, "ratio": self.ratio} if self.delta is not None else {}
        fields = {"name": self.name, "old": self.old, "new": self.new, **numbers}
        return {k: finite(v) if isinstance(v, float) else v for k, v in fields.items()}


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A step of one run beside its counterpart in another; None on the side that lacks it."""

    name: str
    old: NodeRecord | None
    new: NodeRecord | None
    changes: tuple[Change, ...]


def between_steps(old: StepRecord, new: StepRecord) -> list[Change]:
    """What differs in two committed steps by their records alone: config, code, inputs, value and files."""
    return [
        *_mapping("config", flatten(old.recipe), flatten(new.recipe)),
        *_mapping("code", old.code, new.code),
        *_mapping("inputs", old.inputs, new.inputs),
        *_mapping("value", leaves(old.value), leaves(new.value)),
        *_mapping("files", _files(old), _files(new)),
        *_mapping("timings", {"seconds": old.seconds}, {"seconds": new.seconds}),
    ]


def between_environments(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """What differs in two recorded environments; packages by name and version."""
    packages = [_texts(e.get("packages")) for e in (old, new)]
    rest = [{k: v for k, v in leaves(e).items() if k.split(".")[0] != "packages"} for e in (old, new)]
    return [*_mapping("environment", rest[0], rest[1]), *_mapping("environment", packages[0], packages[1])]


def between_metrics(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> list[Change]:
    """What differs in the last rows of two outputs' metrics; nothing can be said where one was collected."""
    return list(_mapping("metrics", old, new)) if old is not None and new is not None else []


def between_runs(old: RunRecord, new: RunRecord) -> tuple[list[Change], list[Pair]]:
    """What differs in two runs as wholes, and their steps side by side."""
    whole = [
        *_mapping("command", _command(old), _command(new)),
        *_mapping("git", old.git, new.git),
        *between_environments(old.environment, new.environment),
        *_mapping("timings", {"seconds": _took(old)}, {"seconds": _took(new)}),
    ]
    pairs = [
        Pair(name=(b or a).name, old=a, new=b, changes=tuple(_between_nodes(a, b)) if a and b else ())  # type: ignore[union-attr]
        for a, b in matched(old.nodes, new.nodes)
    ]
    return whole, pairs


def matched(
    old: Sequence[NodeRecord], new: Sequence[NodeRecord]
) -> Iterator[tuple[NodeRecord | None, NodeRecord | None]]:
    """Steps of two runs side by side: those of one address, then of one name, each with the one left that shares most
    of its arguments; at last those without a counterpart. In the order of the new run."""
    here = {n.address for n in new}
    there = {n.address: n for n in old}
    left: dict[str, list[NodeRecord]] = defaultdict(list)
    for n in old:
        if n.address not in here:
            left[n.name].append(n)
    for n in new:
        partner = there.get(n.address)
        if partner is None and left[n.name]:
            partner = left[n.name].pop(_nearest(n, left[n.name][:_MOST_CANDIDATES]))
        yield partner, n
    for unmatched in left.values():
        yield from ((n, None) for n in unmatched)


def _nearest(node: NodeRecord, others: Sequence[NodeRecord]) -> int:
    """Position of the step whose arguments differ least."""
    if len(others) == 1:
        return 0
    own = leaves(node.arguments)
    distances = [sum(1 for _ in _mapping("", leaves(o.arguments), own)) for o in others]
    return distances.index(min(distances))


def _between_nodes(old: NodeRecord, new: NodeRecord) -> Iterator[Change]:
    """What differs in two steps by what their runs recorded of them."""
    if old.digests is not None and new.digests is not None:
        yield from _mapping("code", {"code": old.digests.code}, {"code": new.digests.code})
        if old.digests.inputs and new.digests.inputs:  # one that did not run has read none
            yield from _mapping("inputs", {"inputs": old.digests.inputs}, {"inputs": new.digests.inputs})
    yield from _mapping("config", leaves(old.arguments), leaves(new.arguments))
    yield from _mapping("decisions", _decision(old), _decision(new))
    yield from _mapping("timings", {"seconds": old.seconds}, {"seconds": new.seconds})
    yield from _mapping("value", leaves(old.value), leaves(new.value))
    yield from _mapping("files", _output(old), _output(new))


def leaves(value: Any, *, at: str = "") -> dict[str, Any]:
    """The scalars inside plain JSON by their dotted path; a scalar by itself is called ``value``."""
    found: dict[str, Any] = {}
    stack = [(at, value)]
    while stack:
        path, inner = stack.pop()
        if isinstance(inner, Mapping):
            stack.extend((f"{path}.{k}" if path else str(k), v) for k, v in reversed(list(inner.items())))
        elif isinstance(inner, list | tuple):
            stack.extend((f"{path}[{i}]", v) for i, v in reversed(list(enumerate(inner))))
        elif inner is not None:
            found[path or "value"] = inner
    return found


def _mapping(section: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for name in dict.fromkeys((*old, *new)):
        a, b = old.get(name), new.get(name)
        if a != b or type(a) is not type(b):
            yield Change(section=section, name=name, old=a, new=b)


def _files(record: StepRecord) -> dict[str, str]:
    return {f.path: f"{f.size} bytes, sha256 {f.sha256[:12]}" for f in record.files}


def _command(run: RunRecord) -> dict[str, Any]:
    return {"script": run.script, "arguments": " ".join(run.argv[1:]), "status": run.status}


def _took(run: RunRecord) -> float | None:
    return None if run.ended_at is None else run.ended_at - run.started_at


def _output(node: NodeRecord) -> dict[str, Any]:
    return {"num_files": node.num_files, "num_bytes": node.num_bytes, "output": node.output_digest}


def _decision(node: NodeRecord) -> dict[str, Any]:
    return {"decision": f"{node.decision}: {node.reason}", "outcome": node.outcome}


def _texts(packages: Any) -> dict[str, str]:
    return {str(k): str(v) for k, v in packages.items()} if isinstance(packages, Mapping) else {}
