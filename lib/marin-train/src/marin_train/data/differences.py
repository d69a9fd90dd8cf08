"""Two mixtures compared: which of a run's steps would train on other data, and what in the mixtures is why.

A row of a batch is known by its store's manifest and its number there, so that no token is read: rows that agree in
both hold the same tokens, rows that do not are counted as different ones.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from marin_train.certificates import flatten
from marin_train.data.mixture import Mixture, Rows

_DRAWS_AT_A_TIME = 1 << 16
_MAX_RANGES = 8


@dataclass(frozen=True, kw_only=True)
class MixtureDifference:
    """Where two mixtures differ.

    Attributes:
        steps: steps compared, from 0.
        num_differing: how many differ.
        ranges: the steps that differ, as ``(first, one past the last)`` in ascending order.
        reasons: what is not the same in the mixtures, whether or not it shows in these steps.
    """

    steps: int
    num_differing: int
    ranges: tuple[tuple[int, int], ...]
    reasons: tuple[str, ...]

    @property
    def first(self) -> int | None:
        """The first step that differs."""
        return self.ranges[0][0] if self.ranges else None

    def to_dict(self) -> dict[str, Any]:
        """The difference as JSON-able values."""
        return asdict(self) | {"first": self.first}


def diff(a: Mixture, b: Mixture, *, steps: int) -> MixtureDifference:
    """Compares the first ``steps`` batches of two mixtures, row by row.

    Args:
        a: one mixture.
        b: the other.
        steps: how many steps to compare. One that only one of them has data for differs.
    """
    one, other = a.identity(), b.identity()
    reasons, ranges = _reasons(one, other), ()
    alike = steps if all(one[name] == other[name] for name in ("seq_len", "packing")) else 0
    alike = min(alike, _first_other_size(a, b, steps))
    if reasons:
        ranges = _compare(a, b, alike)
    if alike < steps:
        joined = ranges and ranges[-1][1] == alike
        ranges = (*(ranges[:-1] if joined else ranges), (ranges[-1][0] if joined else alike, steps))
    num_differing = sum(stop - start for start, stop in ranges)
    return MixtureDifference(steps=steps, num_differing=num_differing, ranges=ranges, reasons=reasons)


def to_text(difference: MixtureDifference) -> str:
    """The difference for people: steps first, then reasons."""
    d = difference
    if not d.ranges:
        lines = [f"no step of {d.steps:,} differs"]
    else:
        spans = [f"{a:,}" if b == a + 1 else f"{a:,}-{b - 1:,}" for a, b in d.ranges[:_MAX_RANGES]]
        more = len(d.ranges) - len(spans)
        lines = [
            f"{d.num_differing:,} of {d.steps:,} steps differ, the first is step {d.first:,}",
            f"steps: {', '.join(spans)}" + (f", and {more:,} more stretches" if more else ""),
        ]
    if d.reasons:
        lines += ["what is not the same:", *(f"  {reason}" for reason in d.reasons)]
    else:
        lines.append("the mixtures are the same")
    return "\n".join(lines)


def _compare(a: Mixture, b: Mixture, steps: int) -> tuple[tuple[int, int], ...]:
    """The steps that differ, of mixtures with equal batches."""
    stores = {digest: i for i, digest in enumerate({*a.manifests.values(), *b.manifests.values()})}
    both, either = sorted(steps if m.num_steps is None else min(steps, m.num_steps) for m in (a, b))
    edges, differed, stop = [], False, 0
    while (start := stop) < both:
        stop = min(start + max(1, _DRAWS_AT_A_TIME // a.sizes.at(start)), a.sizes.until(start) or both, both)
        one, other = (_by_store(m, m.rows_between(start, stop), stores) for m in (a, b))
        rows = (one.component != other.component) | (one.number != other.number)
        differs = rows.reshape(stop - start, -1).any(axis=1)
        edges += (start + np.flatnonzero(np.diff(differs, prepend=differed))).tolist()
        differed = bool(differs[-1])
    # What only one of them has follows what both have.
    if differed != (both < either):
        edges.append(both)
    if both < either:
        edges.append(either)
    return tuple(zip(edges[::2], edges[1::2], strict=True))


def _first_other_size(a: Mixture, b: Mixture, steps: int) -> int:
    """The first step whose batches have not equal sizes; after it they begin at other draws, whatever their sizes."""
    changes = sorted({start for mixture in (a, b) for start, _ in mixture.sizes.listed()})
    return next((step for step in changes if step < steps and a.sizes.at(step) != b.sizes.at(step)), steps)


def _by_store(mixture: Mixture, rows: Rows, stores: dict[str, int]) -> Rows:
    """The rows with their stores' places in ``stores`` for components."""
    places = np.array([stores[mixture.manifests[name]] for name in mixture.names])
    return Rows(places[rows.component], rows.number)


def _reasons(a: dict[str, Any], b: dict[str, Any]) -> tuple[str, ...]:
    """What differs between two mixtures' identities, in words."""
    reasons = [f"component {name!r} is only in the first" for name in sorted(a["components"].keys() - b["components"])]
    reasons += [
        f"component {name!r} is only in the second" for name in sorted(b["components"].keys() - a["components"])
    ]
    for name in sorted(a["components"].keys() & b["components"].keys()):
        one, other = a["components"][name], b["components"][name]
        for field in one:
            if one[field] != other[field]:
                reasons.append(f"component {name!r}: {_change(field, one[field], other[field])}")
    for i in range(max(len(a["stages"]), len(b["stages"]))):
        one, other = (s["stages"][i] if i < len(s["stages"]) else None for s in (a, b))
        if one != other:
            reasons.append(f"stage {i + 1}: {_stage(one)} -> {_stage(other)}")
    rest_a, rest_b = (
        dict(flatten({name: value for name, value in m.items() if name not in ("components", "stages")}))
        for m in (a, b)
    )
    for name in sorted(rest_a.keys() | rest_b.keys()):
        if rest_a.get(name) != rest_b.get(name):
            reasons.append(_change(name, rest_a.get(name), rest_b.get(name)))
    return tuple(reasons)


def _change(field: str, one: Any, other: Any) -> str:
    if field == "manifest":
        return f"the store is another one, manifest {one[:12]} -> {other[:12]}"
    return f"{field} {_value(one)} -> {_value(other)}"


def _stage(stage: dict[str, Any] | None) -> str:
    if stage is None:
        return "none"
    weights = ", ".join(f"{name} {_value(weight)}" for name, weight in sorted(stage["weights"].items()))
    return f"from step {stage['start']:,} on {weights}"


def _value(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
