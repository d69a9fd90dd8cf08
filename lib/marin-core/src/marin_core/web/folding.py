"""Equal steps of a drawing as one: the members of a fan-out, which differ in arguments alone.

Steps are equal that bear one name and were made from equal steps; those that failed are apart from those that did not,
and a few of a kind stay by themselves. So a sweep is one box, "train x 12", its failed member a box of its own, and
what became of that member stands below it.

Invariant: the boxes are in topological order, as the steps are.
"""

from collections.abc import Sequence

from marin_core.records import NodeRecord
from marin_core.web.view import FAILED

_FROM = 4
"""Fewer equal steps than this are drawn one by one."""


def fold(nodes: Sequence[NodeRecord], edges: Sequence[tuple[int, int]]) -> list[list[int]]:
    """The steps by box, each box's in order.

    Args:
        nodes: the steps, upstream before dependants.
        edges: (upstream, dependant) by position in `nodes`.
    """
    upstream: list[set[int]] = [set() for _ in nodes]
    for a, b in edges:
        upstream[b].add(a)
    kinds: dict[tuple[str, bool, frozenset[int]], int] = {}
    kind_of: list[int] = []
    for node, above in zip(nodes, upstream, strict=True):
        key = node.name, node.outcome in FAILED, frozenset(kind_of[a] for a in above)
        kind_of.append(kinds.setdefault(key, len(kinds)))
    members: list[list[int]] = [[] for _ in kinds]
    for i, kind in enumerate(kind_of):
        members[kind].append(i)
    return [box for group in members for box in ([group] if len(group) >= _FROM else [[i] for i in group])]
