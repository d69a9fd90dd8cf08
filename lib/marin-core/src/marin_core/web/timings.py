"""Where the time went: which steps ran beside which, which kinds of step took most, and what nothing could shorten.

The timeline packs the executed steps into lanes, each step into the first that is free, so that the number of lanes
is the most that ran at once. The longest chain (each step after the upstream that ended last) is what more workers
would not have made shorter. A run of thousands shows its longest steps, and says how many it left out.
"""

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from marin_core.quantities import format_count, format_seconds
from marin_core.web.charts import nice_ticks
from marin_core.web.markup import Markup, element, fragment, note
from marin_core.web.view import RunView, outcome_class

_MAX_DRAWN = 300
_MAX_LANES = 24
_MAX_NAMES = 12
_MAX_CHAIN = 12
_TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400)
_LANE_HEIGHT = 20
_AXIS_HEIGHT = 24
_CHARACTER_WIDTH = 6.6
_WIDE, _NARROW = 860.0, 340.0
"""The least widths, in pixels, of the drawing on a screen and on a telephone."""


@dataclass(frozen=True)
class Interval:
    """When a step's body ran, in seconds since the run's start."""

    index: int
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


def executed(view: RunView) -> list[Interval]:
    """The steps whose bodies ran in this run, in order of their start; what still runs ends now."""
    begin, end = view.span
    found = []
    for i, node in enumerate(view.record.nodes):
        if node.started_at is None or node.outcome == "reused":
            continue
        start = max(0.0, node.started_at - begin)
        found.append(Interval(i, start, max(start, (node.ended_at or end) - begin)))
    return sorted(found, key=lambda interval: (interval.start, interval.index))


def lanes(intervals: Sequence[Interval]) -> list[int]:
    """A lane for each interval, given in order of their starts, so that none overlap: as few lanes as there can be."""
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    chosen = []
    for interval in intervals:
        while busy and busy[0][0] <= interval.start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (interval.end, lane))
        chosen.append(lane)
    return chosen


def longest_chain(intervals: Sequence[Interval], edges: Sequence[tuple[int, int]]) -> list[Interval]:
    """The path of the graph whose steps took longest together; `edges` lead from lower to higher positions."""
    by_index = {interval.index: interval for interval in intervals}
    upstream: dict[int, list[int]] = defaultdict(list)
    for a, b in edges:
        if a in by_index and b in by_index:
            upstream[b].append(a)
    total: dict[int, float] = {}
    before: dict[int, int | None] = {}
    for i in sorted(by_index):
        before[i] = max(upstream[i], key=total.__getitem__, default=None)
        total[i] = by_index[i].seconds + (total[before[i]] if before[i] is not None else 0.0)  # type: ignore[index]
    chain: list[Interval] = []
    at = max(total, key=total.__getitem__, default=None)
    while at is not None:
        chain.append(by_index[at])
        at = before[at]
    return chain[::-1]


def render_timings(view: RunView) -> Markup | None:
    """The section; None when nothing ran."""
    intervals = executed(view)
    if not intervals:
        return None
    drawn = sorted(sorted(intervals, key=lambda i: -i.seconds)[:_MAX_DRAWN], key=lambda i: (i.start, i.index))
    left_out = len(intervals) - len(drawn)
    return element(
        "section",
        element("h2", "Timings"),
        element("p", _summary(view, intervals)),
        _timeline(view, drawn),
        note(f"The {len(drawn):,} longest steps are drawn; {format_count(left_out, 'shorter one')} ran too.")
        if left_out
        else None,
        _by_name(view, intervals),
        id="timings",
    )


def _summary(view: RunView, intervals: Sequence[Interval]) -> list[Markup | str | None]:
    total = sum(interval.seconds for interval in intervals)
    wall = max(i.end for i in intervals) - min(i.start for i in intervals)
    chain = longest_chain(intervals, view.edges)
    beside = f", {total / wall:.1f} at a time on average" if len(intervals) > 1 and wall > 0 else ""
    ran = (
        f"{format_count(len(intervals), 'step')} ran for {format_seconds(total)} within {format_seconds(wall)}{beside}."
    )
    if len(chain) < 2:
        return [ran]
    took = format_seconds(sum(interval.seconds for interval in chain))
    shown = sorted(sorted(chain, key=lambda i: -i.seconds)[:_MAX_CHAIN], key=lambda i: i.index)
    links = [
        fragment(" → " if rank else "", element("a", view.label(i.index), href=f"#s{i.index}"))
        for rank, i in enumerate(shown)
    ]
    of = f" (its longest {len(shown)} of {len(chain):,} steps)" if len(shown) < len(chain) else ""
    return [f"{ran} The longest chain took {took}{of}: ", *links, "."]


def _timeline(view: RunView, intervals: Sequence[Interval]) -> Markup:
    chosen = lanes(intervals)
    shown = [(interval, lane) for interval, lane in zip(intervals, chosen, strict=True) if lane < _MAX_LANES]
    end = max(interval.end for interval in intervals) or 1.0
    height = _LANE_HEIGHT * (min(max(chosen), _MAX_LANES - 1) + 1)
    hidden = len(intervals) - len(shown)
    plot = element(
        "svg",
        _axis(end, height),
        [_bar(view, interval, lane=lane, end=end) for interval, lane in shown],
        height=height + _AXIS_HEIGHT,
        class_="timeline",
    )
    more = f"{format_count(hidden, 'step')} in further lanes, beyond {_MAX_LANES} at a time." if hidden else None
    return fragment(plot, note(more) if more else None)


def _bar(view: RunView, interval: Interval, *, lane: int, end: float) -> Markup:
    """A nested SVG, which would cut off a name that is longer than its bar."""
    node = view.record.nodes[interval.index]
    label, took = view.label(interval.index), format_seconds(interval.seconds)
    bar = element(
        "svg",
        element("rect", width="100%", height="100%", rx=2),
        bar_name(label, node.name, share=interval.seconds / end),
        x=f"{100 * interval.start / end:.3f}%",
        y=lane * _LANE_HEIGHT + 1,
        width=f"{max(0.15, 100 * interval.seconds / end):.3f}%",
        height=_LANE_HEIGHT - 3,
    )
    title = element("title", f"{label}: {view.word(node.outcome)}, {took}, from {format_seconds(interval.start)}")
    outcome = f"outcome-{outcome_class(node.outcome)}"
    return element("a", title, bar, href=f"#s{interval.index}", class_=outcome, tabindex=-1)


def bar_name(label: str, name: str, *, share: float) -> Markup | None:
    """The longest of a bar's names that fits into it on a wide screen, marked where it does not on a narrow one."""
    text = next((t for t in (label, name) if len(t) * _CHARACTER_WIDTH + 10 <= share * _WIDE), None)
    if text is None:
        return None
    fits = len(text) * _CHARACTER_WIDTH + 10 <= share * _NARROW
    return element("text", text, x=5, y=12, class_=None if fits else "wide")


def _axis(end: float, height: int) -> Markup:
    marks = []
    for tick in _ticks(end):
        at = f"{100 * tick / end:.2f}%"
        marks.append(element("line", x1=at, x2=at, y1=0, y2=height))
        anchor = "start" if tick == 0 else "end" if tick > 0.97 * end else "middle"
        marks.append(element("text", format_seconds(tick) if tick else "0", x=at, y=height + 16, text_anchor=anchor))
    return element("g", marks, class_="axes", aria_hidden="true")


def _ticks(end: float) -> list[float]:
    """About six marks from zero, at round numbers of seconds, minutes or hours."""
    step = next((s for s in _TICKS if end / s <= 7), None)
    if end < _TICKS[0] or step is None:
        return nice_ticks(0.0, end, count=6)
    return [float(i * step) for i in range(int(end / step) + 1)]


def _by_name(view: RunView, intervals: Sequence[Interval]) -> Markup | None:
    """Total time by the name of the step, the longest first."""
    groups: dict[str, list[Interval]] = defaultdict(list)
    for interval in intervals:
        groups[view.record.nodes[interval.index].name].append(interval)
    totals = {name: sum(i.seconds for i in group) for name, group in groups.items()}
    ranked = sorted(totals, key=lambda name: -totals[name])
    most = totals[ranked[0]] or 1.0
    rows = [
        element(
            "tr",
            element("th", name, scope="row"),
            element("td", _share(totals[name] / most), class_="bar"),
            element("td", format_seconds(totals[name]), class_="number"),
            element("td", f"{len(groups[name]):,}", class_="number"),
            element("td", format_seconds(max(i.seconds for i in groups[name])), class_="number"),
        )
        for name in ranked[:_MAX_NAMES]
    ]
    titles = (("step", None), ("", None), ("time", "number"), ("steps", "number"), ("longest", "number"))
    head = element("tr", [element("th", title, scope="col", class_=kind) for title, kind in titles])
    more = note(format_count(len(ranked) - _MAX_NAMES, "more name")) if len(ranked) > _MAX_NAMES else None
    return fragment(element("table", element("thead", head), element("tbody", rows), class_="bars"), more)


def _share(part: float) -> Markup:
    bar = element("rect", width=f"{100 * part:.2f}%", height="100%", rx=1.5)
    return element("svg", bar, aria_hidden="true")
