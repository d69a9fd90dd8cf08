"""Charts as SVG that stays sharp, readable and small.

The plot is an SVG whose children are placed in percent, with the lines in a nested one that stretches: text keeps its
size on any screen, and no inline style is needed (the page's security policy allows none). Lines are thinned by
M4: of each column of pixels the first, last, lowest and highest point are kept, which draws the same picture as all
the points would and keeps every spike, where averaging would hide the one that matters. A linear axis, always.

See: Jugel et al. 2014, "M4: A Visualization-Oriented Time Series Data Aggregation"; Heckbert 1990, "Nice Numbers
for Graph Labels" (Graphics Gems).
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marin_core.quantities import format_number, format_quantity, label
from marin_core.web.markup import Markup, element

MAX_POINTS = 2000
_STRETCH = 1000
"""Side of the nested coordinate system; lines are rounded to a tenth of it, finer than any screen."""


_LARGEST = 1e100
_MAX_KEYS = 8
"""Lines that colours tell apart; of more, the readout names the one under the pointer."""
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Series:
    """One line: `xs` ascending and as long as `ys`; a None or not `drawable` y is a gap."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float | None]

    def points(self) -> list[tuple[float, float | None]]:
        return [(x, y if y is not None and drawable(y) else None) for x, y in zip(self.xs, self.ys, strict=True)]


def drawable(number: float) -> bool:
    """Finite, and not so large that the width of a range of such numbers is not."""
    return abs(number) <= _LARGEST


def nice_ticks(low: float, high: float, *, count: int = 5) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten apart) inside [low, high]."""
    if not high > low:
        return [low]
    raw = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((m * power for m in (1, 2, 5) if m * power >= raw * 0.999), 10 * power)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def m4(
    points: Sequence[tuple[float, float | None]], *, max_points: int = MAX_POINTS
) -> list[tuple[float, float | None]]:
    """At most `max_points` of the points, in order: first, last, lowest and highest of each of equally many buckets.

    A bucket without a finite point keeps its first, so that a gap stays a gap.
    """
    if len(points) <= max_points:
        return list(points)
    buckets = max_points // 4
    kept: list[tuple[float, float | None]] = []
    for b in range(buckets):
        start, stop = b * len(points) // buckets, (b + 1) * len(points) // buckets
        finite = [i for i in range(start, stop) if points[i][1] is not None]
        chosen = {start, stop - 1}
        if finite:
            chosen |= {min(finite, key=lambda i: points[i][1] or 0.0), max(finite, key=lambda i: points[i][1] or 0.0)}
        kept.extend(points[i] for i in sorted(chosen))
    return kept


def line_chart(title: str, series: Sequence[Series], *, x_label: str, large: bool = False) -> Markup:
    """A figure with axes, one line a series, and a readout that follows the pointer or the arrow keys.

    Args:
        title: name of the quantity; it heads the chart and states the unit (see `quantities`).
        series: six are told apart by colour; of more, the one under the pointer is named.
        x_label: name of the horizontal axis.
        large: full width and taller, for the one that matters most.
    """
    lines = [(s.label, m4(s.points())) for s in series]
    finite = [(x, y) for _, points in lines for x, y in points if y is not None]
    if not finite:
        return element(
            "figure", _caption(title, lines), element("p", "No finite value.", class_="note"), class_="chart"
        )
    left, right = min(x for x, _ in finite), max(x for x, _ in finite)
    low, high = _padded(min(y for _, y in finite), max(y for _, y in finite))
    scale = _Scale(left, right if right > left else left + 1, low, high)
    plot = element(
        "svg",
        _axes(scale, title=title, large=large),
        element(
            "svg",
            [_line(points, scale, index) for index, (_, points) in enumerate(lines)],
            viewBox=f"0 0 {_STRETCH} {_STRETCH}",
            preserveAspectRatio="none",
            width="100%",
            height="100%",
            class_="lines",
        ),
        class_="plot",
        role="img",
        tabindex=0,
        aria_label=_spoken(title, lines, x_label),
        data_series=json.dumps([{"label": name, "points": _rounded(points)} for name, points in lines]),
        data_range=json.dumps([scale.left, scale.right, scale.low, scale.high]),
        data_x=x_label,
    )
    return element("figure", _caption(title, lines), plot, class_="chart large" if large else "chart")


def bar_chart(values: Mapping[str, float], *, name: str = "") -> Markup:
    """Labelled horizontal bars from zero, the largest first, as a table that also reads without its bars."""
    low, high = min(0.0, *values.values()), max(0.0, *values.values())
    span = (high - low) or 1.0
    rows = [
        element(
            "tr",
            element("th", key, scope="row"),
            element(
                "td",
                element(
                    "svg",
                    element(
                        "rect",
                        x=f"{100 * (min(value, 0.0) - low) / span:.2f}%",
                        width=f"{100 * abs(value) / span:.2f}%",
                        height="100%",
                        rx=1.5,
                    ),
                    aria_hidden="true",
                ),
                class_="bar",
            ),
            element("td", format_quantity(name, value), class_="number"),
        )
        for key, value in sorted(values.items(), key=lambda item: -item[1])
    ]
    caption = element("caption", label(name)) if name else None
    return element("table", caption, element("tbody", rows), class_="bars")


@dataclass(frozen=True)
class _Scale:
    left: float
    right: float
    low: float
    high: float

    def x(self, value: float) -> float:
        return (value - self.left) / (self.right - self.left)

    def y(self, value: float) -> float:
        return 1 - (value - self.low) / (self.high - self.low)


def _padded(low: float, high: float) -> tuple[float, float]:
    """A little air above and below; zero is kept as the floor of what is never negative and nearly reaches it."""
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-90):
        room = max(abs(low), abs(high)) * 0.1 or 1.0
        return low - room, high + room
    room = (high - low) * 0.06
    floor = 0.0 if 0 <= low < 0.15 * high else low - room
    return floor, high + room


def _axes(scale: _Scale, *, title: str, large: bool) -> Markup:
    horizontal, vertical = [], []
    ticks = nice_ticks(scale.low, scale.high, count=5 if large else 3)
    for tick, text in zip(ticks, tick_labels(ticks, name=title), strict=True):
        at = f"{100 * scale.y(tick):.2f}%"
        horizontal.append(element("line", x1=0, x2="100%", y1=at, y2=at))
        horizontal.append(element("text", text, x=0, dx=-8, y=at, dy="0.32em", text_anchor="end"))
    ticks = nice_ticks(scale.left, scale.right, count=6 if large else 3)
    for tick, text in zip(ticks, tick_labels(ticks), strict=True):
        at = f"{100 * scale.x(tick):.2f}%"
        vertical.append(element("text", text, x=at, y="100%", dy=18, text_anchor="middle"))
    base = element("line", x1=0, x2="100%", y1="100%", y2="100%", class_="base")
    return element("g", horizontal, vertical, base, class_="axes", aria_hidden="true")


def tick_labels(ticks: Sequence[float], *, name: str = "") -> list[str]:
    """Labels with one unit and as many decimals as the distance between ticks needs, so that they read as a scale."""
    exact = [_integral(tick) for tick in ticks]
    largest = max(map(abs, exact), default=0)
    if format_quantity(name, 10_000) != format_quantity("", 10_000) or 0 < largest < 1e-3 or largest >= 1e15:
        return [format_quantity(name, tick) for tick in exact]
    divisor, unit = next((d, u) for d, u in _UNITS if largest >= d) if largest >= 10_000 else (1, "")
    step = abs(exact[1] - exact[0]) / divisor if len(exact) > 1 else 0.0
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step else 0
    return [f"{tick / divisor:,.{decimals}f}{unit if tick else ''}" for tick in exact]


def _integral(value: float) -> float:
    """Ticks are multiples of a step: clean off the rounding of the multiplication."""
    value = float(f"{value:.10g}")
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def _line(points: Sequence[tuple[float, float | None]], scale: _Scale, index: int) -> Markup:
    """A path that is lifted at gaps; a lone point between two gaps is drawn as a dot by the round line cap."""
    path: list[str] = []
    pen = "M"
    for x, y in points:
        if y is None:
            pen = "M"
            continue
        at = f"{_STRETCH * scale.x(x):.1f} {_STRETCH * scale.y(y):.1f}"
        path.append(f"M{at}h0" if pen == "M" else f"L{at}")
        pen = "L"
    return element(
        "path", d="".join(path), class_=f"line series-{index % _MAX_KEYS}", vector_effect="non-scaling-stroke"
    )


def _rounded(points: Sequence[tuple[float, float | None]]) -> list[list[float | None]]:
    return [[_integral(x), None if y is None else float(f"{y:.6g}")] for x, y in points]


def _caption(title: str, lines: Sequence[tuple[str, Sequence[tuple[float, float | None]]]]) -> Markup:
    legend = (
        [element("span", name, class_=f"key series-{index % _MAX_KEYS}") for index, (name, _) in enumerate(lines)]
        if 1 < len(lines) <= _MAX_KEYS
        else None
    )
    readout = element("output", _last(title, lines), class_="readout")
    return element("figcaption", element("strong", label(title)), readout, legend)


def _last(title: str, lines: Sequence[tuple[str, Sequence[tuple[float, float | None]]]]) -> str:
    if len(lines) != 1:
        return ""
    last = next((y for _, y in reversed(lines[0][1]) if y is not None), None)
    return "" if last is None else f"last {format_quantity(title, last)}"


def _spoken(title: str, lines: Sequence[tuple[str, Sequence[tuple[float, float | None]]]], x_label: str) -> str:
    """What a screen reader says in place of the picture."""
    said = []
    for name, points in lines:
        finite = [(x, y) for x, y in points if y is not None]
        if finite:
            (x0, first), (x1, last) = finite[0], finite[-1]
            numbers = [format_number(_integral(n)) for n in (first, x0, last, x1)]
            said.append(f"{name}: {numbers[0]} at {x_label} {numbers[1]}, {numbers[2]} at {x_label} {numbers[3]}")
    return f"{label(title)} against {x_label}. " + "; ".join(said)
