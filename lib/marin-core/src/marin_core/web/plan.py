"""A plan as a page: the graph of a script's steps, drawn, with the decision about each and its reason.

It is the page of a run that has not begun: what would be reused shows what is committed, the rest would run. So it is
made of the parts that a run's page is made of, and under the same security policy.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from marin_core.graph import Graph
from marin_core.quantities import format_time
from marin_core.reasons import Planned
from marin_core.records import NodeRecord, Outcome, RunRecord
from marin_core.report import render_page
from marin_core.running.ledger import committed_fields, planned_node
from marin_core.web.files import PrefixFiles
from marin_core.web.lineage import render_lineage
from marin_core.web.markup import Markup, element
from marin_core.web.steps import render_steps
from marin_core.web.view import RunView

_OUTCOMES: dict[str, Outcome] = {"refuse": "refused", "unselected": "unselected", "blocked": "blocked"}


def render_plan(graph: Graph, planned: Sequence[Planned], *, script: str, prefix: str, at: float) -> str:
    """The page of a plan as text.

    Args:
        graph: the steps.
        planned: the decision about each, in topological order.
        script: what the graph was made by, for the heading.
        prefix: the directory or URL that was planned against.
        at: when, in seconds since the epoch.
    """
    record = RunRecord(
        run_id=f"planned {format_time(at)}",
        script=script,
        argv=(),
        targets=graph.targets,
        status="running",
        started_at=at,
        ended_at=None,
        nodes=tuple(_node(graph, p) for p in planned),
    )
    view = RunView.of(record, PrefixFiles(prefix), planned=True)
    return render_page(view, _header, (("lineage", "Lineage", render_lineage), ("steps", "Steps", render_steps)))


def _node(graph: Graph, planned: Planned) -> NodeRecord:
    node = planned_node(graph.nodes[planned.address], graph, planned)
    record = planned.record
    if planned.decision not in ("reuse", "accept"):
        return replace(node, outcome=_OUTCOMES.get(planned.decision, "pending"))
    if record is None:
        return replace(node, outcome="reused")
    return replace(node, outcome="reused", **committed_fields(record))


def _header(view: RunView) -> Markup:
    record = view.record
    words = Counter(view.word(node.outcome) for node in record.nodes)
    said = ", ".join(f"{count:,} {word}" for word, count in words.most_common())
    facts = (("planned", format_time(record.started_at)), ("steps", f"{len(record.nodes):,}: {said}"))
    items = [element("div", element("dt", name), element("dd", text)) for name, text in facts]
    title = element("h1", record.script, " ", element("span", "plan", class_="status"))
    return element("header", title, element("dl", items, class_="facts"))
