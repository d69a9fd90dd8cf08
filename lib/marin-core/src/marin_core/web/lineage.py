"""The lineage graph: what was made from what, drawn.

Boxes are links to the steps' rows and carry the numbers of their upstreams, from which the page's script lights up
ancestors; without script it is still a drawing with links. A graph too large to read as a drawing becomes a table by
step name.
"""

from collections import Counter
from collections.abc import Sequence

from marin_core.quantities import format_bytes, format_count, format_seconds
from marin_core.records import NodeRecord
from marin_core.web.layout import Point, lay_out
from marin_core.web.markup import Markup, element, fragment, note
from marin_core.web.view import COMMITTED, RunView, outcome_class

MAX_DRAWN = 400
_MAX_EDGES = 2500
_MAX_NAMES = 40
_MAX_CHARACTERS = 26
_CHARACTER_WIDTH = 7.7
_PADDING = 30.0
_BOX_HEIGHT = 44.0
_MARGIN = 6.0


def render_lineage(view: RunView) -> Markup:
    """The section with the drawing, or with a table in its place."""
    nodes = view.record.nodes
    if len(nodes) > MAX_DRAWN or len(view.edges) > _MAX_EDGES:
        body = _summary(nodes, num_edges=len(view.edges))
    else:
        body = fragment(
            element("div", _drawing(view), class_="scroll graph", tabindex=0, role="group", aria_label="Lineage graph"),
            _legend(nodes),
        )
    return element("section", element("h2", "Lineage"), body, id="lineage")


def _drawing(view: RunView) -> Markup:
    nodes = view.record.nodes
    upstream: list[list[int]] = [[] for _ in nodes]
    for a, b in view.edges:
        upstream[b].append(a)
    second_lines = [_second_line(node, apart) for node, apart in zip(nodes, view.distinctions, strict=True)]
    widths = [
        max(len(_short(node.name)), 0.88 * len(line)) * _CHARACTER_WIDTH + _PADDING
        for node, line in zip(nodes, second_lines, strict=True)
    ]
    layout = lay_out(widths, view.edges)
    edges = [
        element("path", d=_curve(route), class_="edge", data_from=a, data_to=b)
        for (a, b), route in zip(view.edges, layout.routes, strict=True)
    ]
    boxes = [
        _box(node, line, index=i, width=width, center=center, upstream=upstream[i])
        for i, (node, line, width, center) in enumerate(zip(nodes, second_lines, widths, layout.centers, strict=True))
    ]
    width, height = layout.width + 2 * _MARGIN, layout.height
    return element(
        "svg",
        element("g", edges, boxes, transform=f"translate({_MARGIN:g} 0)"),
        viewBox=f"0 0 {width:.1f} {height:.1f}",
        width=f"{width:.0f}",
        height=f"{height:.0f}",
        class_="lineage",
    )


def _box(node: NodeRecord, line: str, *, index: int, width: float, center: Point, upstream: Sequence[int]) -> Markup:
    left, top = center[0] - width / 2, center[1] - _BOX_HEIGHT / 2
    return element(
        "a",
        element("title", f"{node.address}\n{node.outcome}: {node.reason}"),
        element("rect", x=f"{left:.1f}", y=f"{top:.1f}", width=f"{width:.1f}", height=_BOX_HEIGHT, rx=5),
        element("circle", cx=f"{left + 13:.1f}", cy=f"{top + 15:.1f}", r=4),
        element("text", _short(node.name), x=f"{left + 23:.1f}", y=f"{top + 19:.1f}"),
        element("text", line, x=f"{left + 23:.1f}", y=f"{top + 35:.1f}", class_="second"),
        href=f"#s{index}",
        class_=f"box outcome-{outcome_class(node.outcome)}",
        data_index=index,
        data_upstream=" ".join(map(str, upstream)),
    )


def _curve(route: Sequence[Point]) -> str:
    """From the bottom of the first box to the top of the last, through the bends, with vertical tangents."""
    half = _BOX_HEIGHT / 2
    x, y = route[0][0], route[0][1] + half
    path = [f"M{x:.1f} {y:.1f}"]
    for i, (next_x, center_y) in enumerate(route[1:], start=1):
        next_y = center_y - half
        middle = (y + next_y) / 2
        path.append(f"C{x:.1f} {middle:.1f} {next_x:.1f} {middle:.1f} {next_x:.1f} {next_y:.1f}")
        x, y = next_x, next_y
        if i < len(route) - 1:
            y = center_y + half
            path.append(f"V{y:.1f}")
    return "".join(path)


def _legend(nodes: Sequence[NodeRecord]) -> Markup:
    counts = Counter(outcome_class(node.outcome) for node in nodes)
    keys = [element("li", f"{count:,} {outcome}", class_=f"outcome-{outcome}") for outcome, count in counts.items()]
    return element("ul", keys, class_="legend")


def _summary(nodes: Sequence[NodeRecord], *, num_edges: int) -> Markup:
    """A row for each step name, the most frequent first."""
    names = Counter(node.name for node in nodes).most_common()
    rows = []
    for name, count in names[:_MAX_NAMES]:
        outcomes = Counter(node.outcome for node in nodes if node.name == name)
        seconds = sum(node.seconds or 0.0 for node in nodes if node.name == name)
        said = ", ".join(f"{number:,} {outcome}" for outcome, number in outcomes.most_common())
        cells = (
            element("td", f"{count:,}", class_="number"),
            element("td", said),
            element("td", format_seconds(seconds), class_="number"),
        )
        rows.append(element("tr", element("th", name, scope="row"), cells))
    head = [element("th", title, scope="col") for title in ("step", "count", "outcomes", "time")]
    more = note(format_count(len(names) - _MAX_NAMES, "more name")) if len(names) > _MAX_NAMES else None
    return fragment(
        note(f"{len(nodes):,} steps and {num_edges:,} edges are too many to draw; here they are by name."),
        element("table", element("thead", element("tr", head)), element("tbody", rows), class_="data"),
        more,
    )


def _short(name: str) -> str:
    return name if len(name) <= _MAX_CHARACTERS else f"…{name[1 - _MAX_CHARACTERS :]}"


def _second_line(node: NodeRecord, distinction: str) -> str:
    done = node.outcome in COMMITTED
    size = format_bytes(node.num_bytes) if done and node.num_files and not distinction else ""
    return " · ".join(filter(None, [distinction, format_seconds(node.seconds) if done else node.outcome, size]))
