"""Whose turn it is: which component each draw of a run goes to, in closed form between the moments that shares change.

Number all draws of the run 0, 1, 2, ... A component's *target* after n draws is the sum of the shares it had in them.
The components that have a share are halved again and again, as a binary tree; a node's draws are numbered on their
own, and of the first m of them its left half gets

    floor(target of the left half when the node's own target is m, + 1/2)

which rises by 0 or 1 a draw, so that every count, and every draw, is known without walking those before it.

Where shares change, at a stage or when a component has reached its limit, a new *segment* begins. Targets and counts go
on from where they were: nothing is rounded anew, so that a share too small for one draw a stage adds up over stages. A
half that has more than its target waits, one that has less gets every draw of its node until it has caught up, and a
component without a share gets none, whatever it is owed.

Invariants: under constant shares no count is ever further from its target than half the depth of the tree, which is
half of ``log2`` of the number of components, rounded up: each level adds its own half, and passes on no more error than
it was given. Catching up keeps it at a few sequences however often shares change. Shares are integers over 2^96, and
targets sums of them: nothing drifts however long the run.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate

import numpy as np

from marin_train.errors import ConfigError, ExhaustedError

WHOLE = 1 << 96
"""What the shares of a segment sum to."""

MAX_DRAWS = 1 << 62
"""Draws are counted in 64 bits."""

_FRACTION_BITS = 48
_MAX_WINDOW = 1 << 13
"""Draws at a time; with the bits of the fraction below 2^63."""


@dataclass(frozen=True)
class Draws:
    """A run of consecutive draws: each one's component, and how often that component was drawn before.

    Attributes:
        component: Int64[n], index into the names.
        ordinal: Int64[n].
    """

    component: np.ndarray
    ordinal: np.ndarray


@dataclass(frozen=True)
class Segment:
    """Draws from ``start`` on, as long as shares stay as they are.

    Attributes:
        start: the first draw.
        shares: a component's part of `WHOLE`; 0 where it is not drawn.
        counts: how often each was drawn before ``start``.
        targets: how often it should have been, in units of ``1 / WHOLE``.
    """

    start: int
    shares: tuple[int, ...]
    counts: tuple[int, ...]
    targets: tuple[int, ...]
    _active: tuple[int, ...]
    """The components that have a share, in the order in which they are halved."""
    _sums: tuple[tuple[int, ...], ...]
    """Of the active components' shares, counts and targets, running sums from 0: a node is a difference."""

    @classmethod
    def begin(
        cls, start: int, shares: Sequence[int], counts: Sequence[int], targets: Sequence[int], *, order: Sequence[int]
    ) -> "Segment":
        """The segment of these shares, whose tree follows ``order``."""
        active = tuple(i for i in order if shares[i])
        sums = tuple(tuple(accumulate((v[i] for i in active), initial=0)) for v in (shares, counts, targets))
        return cls(start, tuple(shares), tuple(counts), tuple(targets), active, sums)

    def counts_at(self, num_draws: int) -> list[int]:
        """How often each component comes among the first ``num_draws``, at least ``start``."""
        counts = list(self.counts)
        nodes = [(0, len(self._active), num_draws - self.start + self._sums[1][-1])]
        while nodes:
            lo, hi, count = nodes.pop()
            if hi - lo == 1:
                counts[self._active[lo]] = count
                continue
            mid = (lo + hi) // 2
            left = self._left(lo, mid, hi, count)
            nodes += (lo, mid, left), (mid, hi, count - left)
        return counts

    def count_of(self, component: int, num_draws: int) -> int:
        """How often one that has a share comes among the first ``num_draws``, at least ``start``."""
        place = self._active.index(component)
        lo, hi, count = 0, len(self._active), num_draws - self.start + self._sums[1][-1]
        while hi - lo > 1:
            mid = (lo + hi) // 2
            left = self._left(lo, mid, hi, count)
            lo, hi, count = (lo, mid, left) if place < mid else (mid, hi, count - left)
        return count

    def targets_at(self, num_draws: int) -> list[int]:
        """The targets after ``num_draws``."""
        return [t + s * (num_draws - self.start) for t, s in zip(self.targets, self.shares, strict=True)]

    def fill(self, start: int, component: np.ndarray, ordinal: np.ndarray) -> None:
        """Writes the draws from ``start`` on into the two arrays, Int64[n] each."""
        everything = np.arange(len(component))
        nodes = [(0, len(self._active), start - self.start + self._sums[1][-1], everything)]
        while nodes:
            lo, hi, count, slots = nodes.pop()
            if hi - lo == 1:
                component[slots] = self._active[lo]
                ordinal[slots] = np.arange(count, count + len(slots))
                continue
            mid = (lo + hi) // 2
            base, slope, unit, least, before = self._line(lo, mid, hi)
            line = _floors(base + count * slope, slope, unit, len(slots) + 1)
            left = np.minimum(np.maximum(line, least), np.arange(count, count + len(slots) + 1) + (least - before))
            takes = left[1:] > left[:-1]
            first, to_left = int(left[0]), slots[takes]
            if len(to_left):
                nodes.append((lo, mid, first, to_left))
            if len(to_left) < len(slots):
                nodes.append((mid, hi, count - first, slots[~takes]))

    def _left(self, lo: int, mid: int, hi: int, count: int) -> int:
        """How many of a node's first ``count`` draws its left half gets."""
        base, slope, unit, least, before = self._line(lo, mid, hi)
        return min(max((base + count * slope) // unit, least), least + count - before)

    def _line(self, lo: int, mid: int, hi: int) -> tuple[int, int, int, int, int]:
        """Of a node's first m draws its left half should have ``(base + m * slope) // unit``.

        Also the counts of the left half and of the node when the segment began.
        """
        shares, counts, targets = self._sums
        share, left_share = shares[hi] - shares[lo], shares[mid] - shares[lo]
        target, left_target = targets[hi] - targets[lo], targets[mid] - targets[lo]
        base = 2 * (left_target * share - target * left_share) + WHOLE * share
        return base, 2 * WHOLE * left_share, 2 * WHOLE * share, counts[mid] - counts[lo], counts[hi] - counts[lo]


class Interleave:
    """All draws of a run.

    Args:
        names: the components; their alphabetical order, and not the given one, decides ties.
        stages: first draw and weights by name, the first stage from draw 0 on, in order. A component that is not named
            has weight 0. The decimal that was written counts (0.1 is a tenth), not the binary fraction nearest to it.
        limits: component name -> how often it may be drawn at most. Once it was, its share goes to the others.

    Raises:
        ConfigError: a weight is negative or not finite, or a stage has none above 0.
    """

    def __init__(
        self,
        names: Sequence[str],
        stages: Sequence[tuple[int, Mapping[str, float]]],
        *,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        self.names = tuple(names)
        self._limits = {self.names.index(name): limit for name, limit in (limits or {}).items()}
        self.segments: list[Segment] = []
        self.exhausted: dict[str, int] = {}
        """Component name -> the draw from which on it has none left."""
        self.end: int | None = None
        """The number of draws there are; None where there is no end."""
        self._build(stages)
        self._starts = [segment.start for segment in self.segments]

    def counts(self, num_draws: int) -> np.ndarray:
        """How often each component comes among the first ``num_draws``: Int64[components], summing to it.

        Raises:
            ConfigError: they are more than `MAX_DRAWS`.
            ExhaustedError: there are not so many.
        """
        self._check(num_draws)
        return np.array(self._segment(num_draws).counts_at(num_draws), np.int64)

    def draws(self, start: int, stop: int) -> Draws:
        """Draws ``start`` to ``stop``, at a cost that does not depend on ``start``.

        Raises:
            ConfigError: they go beyond `MAX_DRAWS`.
            ExhaustedError: there are not so many.
        """
        self._check(stop)
        component, ordinal = np.empty(stop - start, np.int64), np.empty(stop - start, np.int64)
        at = start
        while at < stop:
            index = bisect_right(self._starts, at)
            until = min(stop, at + _MAX_WINDOW, *self._starts[index : index + 1])
            window = slice(at - start, until - start)
            self.segments[index - 1].fill(at, component[window], ordinal[window])
            at = until
        return Draws(component, ordinal)

    def _segment(self, draw: int) -> Segment:
        return self.segments[bisect_right(self._starts, draw) - 1]

    def _check(self, num_draws: int) -> None:
        if num_draws > MAX_DRAWS:
            raise ConfigError(f"{num_draws} sequences are more than 2**62, which no run has; lower steps or batch_size")
        if self.end is not None and num_draws > self.end:
            raise ExhaustedError(
                f"draw {num_draws - 1} of a mixture that ends after {self.end}: of the components that have a weight "
                f"there, all were gone through Component.max_epochs times ({', '.join(self.exhausted)})"
            )

    def _build(self, stages: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        """Lays segment after segment: one a stage, and one more wherever a component reaches its limit."""
        order = sorted(range(len(self.names)), key=self.names.__getitem__)
        counts = targets = [0] * len(self.names)
        stops = [start for start, _ in stages[1:]]
        for (begin, weights), stop in zip(stages, [*stops, None], strict=True):
            exact = _exact_weights(self.names, weights, where=begin)
            while stop is None or begin < stop:
                left = [0 if name in self.exhausted else w for name, w in zip(self.names, exact, strict=True)]
                if not any(left):
                    self.end = begin
                    return
                segment = Segment.begin(begin, _shares(left, order), counts, targets, order=order)
                self.segments.append(segment)
                until = self._first_exhaustion(segment, stop)
                if until is None:
                    return
                counts, targets, begin = segment.counts_at(until), segment.targets_at(until), until
                for index, limit in self._limits.items():
                    if counts[index] >= limit:
                        self.exhausted.setdefault(self.names[index], until)

    def _first_exhaustion(self, segment: Segment, stop: int | None) -> int | None:
        """The number of draws after which a component of the segment reaches its limit, or ``stop`` if none does."""
        for index, limit in self._limits.items():
            if segment.shares[index]:
                stop = _draws_until(segment, index, limit, stop=stop)
        return stop


def _draws_until(segment: Segment, component: int, limit: int, *, stop: int | None) -> int | None:
    """The number of draws after which a component has come ``limit`` times, or ``stop`` if that is less."""
    low = segment.start
    high = low + 1 if stop is None else stop
    while segment.count_of(component, high) < limit:
        if stop is not None:
            return stop
        low, high = high, high + 2 * (high - segment.start)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if segment.count_of(component, middle) >= limit else (middle, high)
    return high


def _floors(base: int, slope: int, unit: int, num: int) -> np.ndarray:
    """``(base + i * slope) // unit`` for i below ``num``: Int64[num], exact, with ``slope <= unit``.

    In fixed point, whose error is below ``num`` of its units; where that could matter, in exact integers.
    """
    whole, rest = divmod(base, unit)
    steps = np.arange(num) * ((slope << _FRACTION_BITS) // unit) + (rest << _FRACTION_BITS) // unit
    floors = steps >> _FRACTION_BITS
    near = (steps & ((1 << _FRACTION_BITS) - 1)) >= (1 << _FRACTION_BITS) - num - 1
    for i in np.flatnonzero(near).tolist():
        floors[i] = (rest + i * slope) // unit
    return floors + whole


def _exact_weights(names: Sequence[str], weights: Mapping[str, float], *, where: int) -> list[int]:
    """Integers in the ratio of the decimals that were written."""
    ratios = []
    for name in names:
        weight = weights.get(name, 0)
        if not 0 <= weight < math.inf:
            raise ConfigError(f"Component.weight={weight} of {name!r} must be finite and not negative")
        ratios.append(Decimal(str(weight)).as_integer_ratio())
    if not any(numerator for numerator, _ in ratios):
        raise ConfigError(f"no component has a weight above 0 from draw {where} on; give one to Component or Stage")
    denominator = math.lcm(*(d for _, d in ratios))
    return [numerator * (denominator // d) for numerator, d in ratios]


def _shares(weights: Sequence[int], order: Sequence[int]) -> list[int]:
    """Integers in the ratio of the weights that sum to `WHOLE`; no weight above 0 gets none, however small."""
    total = sum(weights)
    shares = [max(1, weight * WHOLE // total) if weight else 0 for weight in weights]
    heaviest = max(order, key=lambda i: shares[i])
    shares[heaviest] += WHOLE - sum(shares)
    return shares
