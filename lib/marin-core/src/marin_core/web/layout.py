"""Coordinates for a layered drawing of a directed acyclic graph.

Sugiyama's four stages, each in its simplest form that draws a pipeline well: layers by longest path; an edge over
several layers becomes a chain of bends; the order within layers by barycenter sweeps, keeping the best seen; and
horizontal places by alternately pulling each layer toward its neighbours. That last stage is exact for each layer:
"as near as possible to where they want to be, in order and not overlapping" is isotonic regression, solved by
pooling adjacent violators in linear time.

Invariant: boxes never overlap, every edge runs downward, and the result is a function of its arguments alone.

See: Sugiyama, Tagawa, Toda 1981, "Methods for Visual Understanding of Hierarchical System Structures".
"""

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

type Point = tuple[float, float]

_BEND_WIDTH = 10.0
_BEND_WEIGHT = 4.0
"""How much straighter a long edge is kept than a box is kept near its neighbours."""
_TURNS = 24
"""Passes over the rows for each of order and place; drawings of pipelines settle in about ten."""
_MAX_BENDS = 3000
"""Beyond this many, long edges are drawn straight: the drawing is dense anyway, and must stay quick."""


@dataclass(frozen=True)
class Layout:
    """Where everything lies, in pixels from the top left corner."""

    centers: tuple[Point, ...]
    routes: tuple[tuple[Point, ...], ...]
    """For each edge given, the points it passes: box, bends, box."""
    width: float
    height: float


def lay_out(
    widths: Sequence[float], edges: Sequence[tuple[int, int]], *, row_height: float = 84.0, gap: float = 22.0
) -> Layout:
    """Places boxes in rows.

    Args:
        widths: of each box, pixels.
        edges: pairs (from, to) with from < to, as a topological order gives them.
        row_height: distance from one row to the next, pixels.
        gap: least distance between boxes of a row, pixels.
    """
    layers = _layers(len(widths), edges)
    chains, layer_of, size = _bend(layers, edges, widths)
    segments = [pair for chain in chains for pair in pairwise(chain)]
    above: list[list[int]] = [[] for _ in size]
    below: list[list[int]] = [[] for _ in size]
    for a, b in segments:
        above[b].append(a)
        below[a].append(b)
    rows: list[list[int]] = [[] for _ in range(max(layer_of, default=-1) + 1)]
    for vertex, layer in enumerate(layer_of):
        rows[layer].append(vertex)
    rows = _ordered(rows, above, below)
    xs = _placed(rows, above, below, size, len(widths), gap)
    shift = min((x - w / 2 for x, w in zip(xs, size, strict=True)), default=0.0)
    at = [(x - shift, (layer + 0.5) * row_height) for x, layer in zip(xs, layer_of, strict=True)]
    return Layout(
        centers=tuple(at[: len(widths)]),
        routes=tuple(tuple(at[v] for v in chain) for chain in chains),
        width=max((x + w / 2 for (x, _), w in zip(at, size, strict=True)), default=0.0),
        height=len(rows) * row_height,
    )


def _layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Longest path from the sources; a source is then lowered to just above its first consumer."""
    layer = [0] * count
    sources = set(range(count))
    nearest: dict[int, int] = {}
    for a, b in sorted(edges, key=lambda edge: edge[1]):
        layer[b] = max(layer[b], layer[a] + 1)
        sources.discard(b)
    for a, b in edges:
        nearest[a] = min(nearest.get(a, layer[b]), layer[b])
    for a in sources & nearest.keys():
        layer[a] = nearest[a] - 1
    return layer


def _bend(
    layers: list[int], edges: Sequence[tuple[int, int]], widths: Sequence[float]
) -> tuple[list[list[int]], list[int], list[float]]:
    """Each edge as a chain of vertices one layer apart, with the layers and widths of boxes and bends together."""
    layer_of, size = list(layers), list(widths)
    too_many = sum(layers[b] - layers[a] - 1 for a, b in edges) > _MAX_BENDS
    chains = []
    for a, b in edges:
        chain = [a]
        for layer in range(layers[a] + 1, layers[a] + 1 if too_many else layers[b]):
            chain.append(len(layer_of))
            layer_of.append(layer)
            size.append(_BEND_WIDTH)
        chains.append([*chain, b])
    return chains, layer_of, size


def _ordered(rows: list[list[int]], above: list[list[int]], below: list[list[int]]) -> list[list[int]]:
    """Barycenter sweeps down and up; of all orders seen, the one with the fewest crossings."""
    position = {v: float(i) for row in rows for i, v in enumerate(row)}

    def sweep(order: list[list[int]], neighbours: list[list[int]]) -> None:
        for row in order:
            key = {
                v: sum(position[n] for n in neighbours[v]) / len(neighbours[v]) if neighbours[v] else position[v]
                for v in row
            }
            row.sort(key=key.__getitem__)
            position.update((v, float(i)) for i, v in enumerate(row))

    best, fewest = [list(row) for row in rows], _crossings(rows, below)
    for turn in range(_TURNS):
        if fewest == 0:
            break
        sweep(rows[1:], above) if turn % 2 == 0 else sweep(rows[-2::-1], below)
        crossings = _crossings(rows, below)
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
    return best


def _crossings(rows: list[list[int]], below: list[list[int]]) -> int:
    """Pairs of segments between neighbouring rows whose ends are in opposite orders."""
    total = 0
    for row, next_row in pairwise(rows):
        place = {v: i for i, v in enumerate(next_row)}
        seen: list[int] = []
        for v in row:
            ends = sorted(place[w] for w in below[v] if w in place)
            total += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return total


def _placed(
    rows: list[list[int]],
    above: list[list[int]],
    below: list[list[int]],
    size: Sequence[float],
    num_boxes: int,
    gap: float,
) -> list[float]:
    """Horizontal centres: start from rows packed and centred, then pull toward the neighbours, down and up."""
    xs = [0.0] * len(size)
    for row in rows:
        for v, x in zip(row, _spread([0.0] * len(row), [1.0] * len(row), [size[v] for v in row], gap), strict=True):
            xs[v] = x
    for turn in range(_TURNS):
        neighbours = below if turn % 2 == 0 else above
        for row in reversed(rows) if turn % 2 == 0 else rows:
            wanted = [sum(xs[n] for n in neighbours[v]) / len(neighbours[v]) if neighbours[v] else xs[v] for v in row]
            weights = [_BEND_WEIGHT if v >= num_boxes else 1.0 + len(neighbours[v]) for v in row]
            for v, x in zip(row, _spread(wanted, weights, [size[v] for v in row], gap), strict=True):
                xs[v] = x
    return xs


def _spread(wanted: Sequence[float], weights: Sequence[float], widths: Sequence[float], gap: float) -> list[float]:
    """The places nearest to those wanted (weighted least squares) that keep the order and do not overlap."""
    offsets, offset = [], 0.0
    for i, width in enumerate(widths):
        offset += (widths[i - 1] + width) / 2 + gap if i else 0.0
        offsets.append(offset)
    blocks: list[tuple[float, float, int]] = []  # mean, weight, number of members
    for want, weight, shift in zip(wanted, weights, offsets, strict=True):
        mean, total, members = want - shift, weight, 1
        while blocks and blocks[-1][0] > mean:
            before, mass, count = blocks.pop()
            mean, total, members = (before * mass + mean * total) / (mass + total), mass + total, members + count
        blocks.append((mean, total, members))
    means = [mean for mean, _, members in blocks for _ in range(members)]
    return [mean + shift for mean, shift in zip(means, offsets, strict=True)]
