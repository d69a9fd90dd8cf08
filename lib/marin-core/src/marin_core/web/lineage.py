"""The lineage graph: what was made from what, drawn.

Boxes are links to the steps' rows and carry the numbers of their upstreams, from which the page's script lights up
ancestors; without script it is still a drawing with links. Equal steps are one box (`folding`), and a graph that is too
large even so is drawn by step name, one box for all the steps of a name. The script opens the view where a step failed,
or else where the targets are.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from marin_core.quantities import format_bytes, format_count, format_seconds
from marin_core.records import NodeRecord
from marin_core.web.folding import fold
from marin_core.web.layout import Point, lay_out
from marin_core.web.markup import Markup, element, fragment, note
from marin_core.web.view import COMMITTED, FAILED, RunView, outcome_class

MAX_DRAWN = 400
_MAX_EDGES = 2500
_MAX_NAMES = 40
_MAX_TITLED = 24
_MAX_CHARACTERS = 26
_CHARACTER_WIDTH = 7.7
_PADDING = 30.0
_BOX_HEIGHT = 44.0
_MARGIN = 6.0
_TROUBLE = (*FAILED, "blocked", "running", "pending")
"""Outcomes that a box of many steps shows if any of them has it, the gravest first."""


def render_lineage(view: RunView) -> Markup:
    """The section: the drawing of every step, or of every name with a table of their outcomes."""
    nodes = view.record.nodes
    (boxes, edges), rest = _boxes(view), _legend(view)
    if len(boxes) > MAX_DRAWN or len(edges) > _MAX_EDGES:
        boxes, edges = _by_name(view)
        rest = _summary(view)
    is_drawn = len(boxes) <= MAX_DRAWN and len(edges) <= _MAX_EDGES
    focus = _focus(view, boxes)
    graph = _drawing(boxes, edges, focus=focus) if is_drawn and nodes else None
    return element(
        "section",
        element("h2", "Lineage"),
        element("div", graph, class_="scroll graph", tabindex=0, role="group", aria_label="Lineage graph")
        if graph
        else None,
        rest,
        id="lineage",
    )


@dataclass(frozen=True)
class _Box:
    """What is written in a box, and the step that it leads to."""

    name: str
    second: str
    title: str
    outcome: str
    target: int

    @property
    def width(self) -> float:
        return max(len(self.name), 0.88 * len(self.second)) * _CHARACTER_WIDTH + _PADDING


def _boxes(view: RunView) -> tuple[list[_Box], list[tuple[int, int]]]:
    """A box for every step, or for all that are equal."""
    folded = fold(view.record.nodes, view.edges)
    box_of = {i: rank for rank, members in enumerate(folded) for i in members}
    edges = sorted({(box_of[a], box_of[b]) for a, b in view.edges})
    boxes = [_single(view, members[0]) if len(members) == 1 else _several(view, members) for members in folded]
    return boxes, edges


def _single(view: RunView, index: int) -> _Box:
    node = view.record.nodes[index]
    word = view.word(node.outcome)
    return _Box(
        name=_short(node.name),
        second=_second_line(view, node, view.distinctions[index]),
        title=f"{node.address}\n{node.reason if node.reason.startswith(word) else f'{word}: {node.reason}'}",
        outcome=outcome_class(node.outcome),
        target=index,
    )


def _several(view: RunView, members: Sequence[int]) -> _Box:
    name = view.record.nodes[members[0]].name
    worst, said, target = _together(view, members)
    took = sum(view.record.nodes[i].seconds or 0.0 for i in members)
    second = f"{said} · {format_seconds(took)}" if worst in COMMITTED and not view.planned else said
    listed = [view.label(i) for i in members[:_MAX_TITLED]]
    more = [f"and {len(members) - _MAX_TITLED:,} more"] if len(members) > _MAX_TITLED else []
    return _Box(f"{_short(name)} ×{len(members):,}", second, "\n".join([*listed, *more]), worst, target)


def _together(view: RunView, members: Sequence[int]) -> tuple[str, str, int]:
    """The gravest outcome of some steps, all their outcomes in words, and the first that has the gravest."""
    outcomes = Counter(outcome_class(view.record.nodes[i].outcome) for i in members)
    worst = next((o for o in _TROUBLE if o in outcomes), outcomes.most_common(1)[0][0])
    said = ", ".join(f"{count:,} {view.word(outcome)}" for outcome, count in outcomes.most_common())
    return worst, said, next(i for i in members if outcome_class(view.record.nodes[i].outcome) == worst)


def _by_name(view: RunView) -> tuple[list[_Box], list[tuple[int, int]]]:
    """A box for every name, and an edge where any step of one was made from a step of the other.

    Names may depend on one another in a circle, which no steps can; the edges that lead back are left out.
    """
    members: dict[str, list[int]] = defaultdict(list)
    for i, node in enumerate(view.record.nodes):
        members[node.name].append(i)
    order = {name: rank for rank, name in enumerate(members)}
    rank_of = [order[node.name] for node in view.record.nodes]
    edges = sorted({(rank_of[a], rank_of[b]) for a, b in view.edges if rank_of[a] < rank_of[b]})
    boxes = []
    for name, indices in members.items():
        worst, said, target = _together(view, indices)
        boxes.append(_Box(_short(name), format_count(len(indices), "step"), f"{name}\n{said}", worst, target))
    return boxes, edges


def _focus(view: RunView, boxes: Sequence[_Box]) -> int:
    """The box that the view opens at: the first that failed, else the first target's, else the last."""
    failed = (rank for rank, box in enumerate(boxes) if box.outcome in FAILED)
    wanted = (rank for rank, box in enumerate(boxes) if box.target in view.targets[:1])
    return next(failed, next(wanted, len(boxes) - 1))


def _drawing(boxes: Sequence[_Box], edges: Sequence[tuple[int, int]], *, focus: int) -> Markup:
    upstream: list[list[int]] = [[] for _ in boxes]
    for a, b in edges:
        upstream[b].append(a)
    layout = lay_out([box.width for box in boxes], edges)
    paths = [
        element("path", d=_curve(route), class_="edge", data_from=a, data_to=b)
        for (a, b), route in zip(edges, layout.routes, strict=True)
    ]
    drawn = [
        _box(box, index=i, center=center, upstream=upstream[i], is_focus=i == focus)
        for i, (box, center) in enumerate(zip(boxes, layout.centers, strict=True))
    ]
    width, height = layout.width + 2 * _MARGIN, layout.height
    return element(
        "svg",
        element("g", paths, drawn, transform=f"translate({_MARGIN:g} 0)"),
        viewBox=f"0 0 {width:.1f} {height:.1f}",
        width=f"{width:.0f}",
        height=f"{height:.0f}",
        class_="lineage",
    )


def _box(box: _Box, *, index: int, center: Point, upstream: Sequence[int], is_focus: bool) -> Markup:
    left, top = center[0] - box.width / 2, center[1] - _BOX_HEIGHT / 2
    return element(
        "a",
        element("title", box.title),
        element("rect", x=f"{left:.1f}", y=f"{top:.1f}", width=f"{box.width:.1f}", height=_BOX_HEIGHT, rx=5),
        element("circle", cx=f"{left + 13:.1f}", cy=f"{top + 15:.1f}", r=4),
        element("text", box.name, x=f"{left + 23:.1f}", y=f"{top + 19:.1f}"),
        element("text", box.second, x=f"{left + 23:.1f}", y=f"{top + 35:.1f}", class_="second"),
        href=f"#s{box.target}",
        class_=f"box outcome-{box.outcome}",
        data_index=index,
        data_upstream=" ".join(map(str, upstream)),
        data_focus=is_focus,
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


def _legend(view: RunView) -> Markup:
    counts = Counter(outcome_class(node.outcome) for node in view.record.nodes)
    keys = [element("li", f"{count:,} {view.word(o)}", class_=f"outcome-{o}") for o, count in counts.items()]
    return element("ul", keys, class_="legend")


def _summary(view: RunView) -> Markup:
    """A row for each step name, the most frequent first."""
    nodes = view.record.nodes
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    seconds: dict[str, float] = defaultdict(float)
    for node in nodes:
        outcomes[node.name][outcome_class(node.outcome)] += 1
        seconds[node.name] += node.seconds or 0.0
    names = sorted(outcomes, key=lambda name: -outcomes[name].total())
    rows = [
        element(
            "tr",
            element("th", name, scope="row"),
            element("td", f"{outcomes[name].total():,}", class_="number"),
            element("td", ", ".join(f"{count:,} {view.word(o)}" for o, count in outcomes[name].most_common())),
            element("td", format_seconds(seconds[name]), class_="number"),
        )
        for name in names[:_MAX_NAMES]
    ]
    head = [element("th", title, scope="col") for title in ("step", "count", "outcomes", "time")]
    more = note(format_count(len(names) - _MAX_NAMES, "more name")) if len(names) > _MAX_NAMES else None
    return fragment(
        note(f"{len(nodes):,} steps and {len(view.edges):,} edges are too many to draw one by one; here by name."),
        element("table", element("thead", element("tr", head)), element("tbody", rows), class_="data"),
        more,
    )


def _short(name: str) -> str:
    return name if len(name) <= _MAX_CHARACTERS else f"…{name[1 - _MAX_CHARACTERS :]}"


def _second_line(view: RunView, node: NodeRecord, distinction: str) -> str:
    done = node.outcome in COMMITTED
    size = format_bytes(node.num_bytes) if done and node.num_files and not distinction else ""
    took = format_seconds(node.seconds) if node.seconds is not None else "adopted" if node.attempt is None else ""
    return " · ".join(filter(None, [distinction, took if done else view.word(node.outcome), size]))
