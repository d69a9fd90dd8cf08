"""What a reader wants first: what ran, how it ended, what came out, and with what it was made.

The headline is whatever the target steps recorded; the page knows nothing of training. A few targets are shown one by
one, many (a sweep) as a table with a row each, so that they can be compared.
"""

import shlex
from collections import Counter
from collections.abc import Mapping
from typing import Any

from marin_core.quantities import format_count, format_quantity, format_seconds, format_time, is_number, label
from marin_core.records import NodeRecord
from marin_core.web.charts import bar_chart
from marin_core.web.markup import Markup, element, fragment, note
from marin_core.web.outputs import render_outputs
from marin_core.web.steps import render_failure
from marin_core.web.values import comparable, render_value
from marin_core.web.view import COMMITTED, FAILED, RunView, outcome_class

_MAX_TARGETS = 100
_MAX_STATS = 8
_MAX_FAILURES = 10
_MAX_WORD = 32
"""The longest text that is set as a headline figure."""


def render_header(view: RunView) -> Markup:
    """Script, status, when and how long, and how many steps came to what."""
    record = view.record
    start, end = view.span
    counts = Counter(outcome_class(node.outcome) for node in record.nodes)
    steps = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items())
    facts = [
        ("run", element("code", record.run_id)),
        ("started", format_time(record.started_at)),
        ("took", format_seconds(end - start) if record.ended_at is not None else "not finished"),
        ("steps", f"{len(record.nodes):,}: {steps}" if steps else "none"),
    ]
    return element(
        "header",
        element(
            "h1", record.script, " ", element("span", record.status, class_=f"status {outcome_class(record.status)}")
        ),
        element(
            "dl", [element("div", element("dt", name), element("dd", body)) for name, body in facts], class_="facts"
        ),
    )


def render_failures(view: RunView) -> Markup | None:
    """The steps that failed, with tracebacks, and how many others could not run for it; None when all went well."""
    failed = [(i, node) for i, node in enumerate(view.record.nodes) if node.outcome in FAILED]
    if not failed:
        return None
    shown = [
        element(
            "div",
            element("h3", element("a", view.label(i), href=f"#s{i}"), f" {node.outcome}"),
            render_failure(node.failure) if node.failure else element("p", node.reason),
        )
        for i, node in failed[:_MAX_FAILURES]
    ]
    blocked = sum(node.outcome == "blocked" for node in view.record.nodes)
    return element(
        "section",
        element("h2", "What went wrong"),
        shown,
        note(f"{format_count(len(failed) - len(shown), 'more step')} failed; see the list of steps.")
        if len(failed) > len(shown)
        else None,
        note(f"{format_count(blocked, 'step')} downstream did not run.") if blocked else None,
        id="failures",
        class_="failures",
    )


def render_results(view: RunView) -> Markup | None:
    """The values that the target steps recorded, and what they produced to look at."""
    if not view.targets:
        return None
    body = fragment([_target(view, i) for i in view.headline]) if view.headline else _table(view)
    return element("section", element("h2", "Results"), body, id="results")


def render_environment(view: RunView) -> Markup:
    """With what the run was made: command, commit, machine and packages."""
    record = view.record
    environment = dict(record.environment)
    packages = environment.pop("packages", None)
    git = record.git
    dirty = " with uncommitted changes" if git.get("dirty") else ""
    branch = f" on {git['branch']}" if git.get("branch") else ""
    rows: list[tuple[str, Markup | str]] = [
        ("command", element("code", shlex.join(record.argv))),
        ("git", fragment(element("code", str(git["commit"])), branch, dirty) if git.get("commit") else "none recorded"),
        *((label(key), render_value(value, name=key)) for key, value in environment.items()),
    ]
    fields = element("dl", [(element("dt", name), element("dd", body)) for name, body in rows], class_="fields")
    return element(
        "section", element("h2", "Environment"), fields, _packages(packages) if packages else None, id="environment"
    )


def _packages(packages: Any) -> Markup:
    if not isinstance(packages, Mapping):
        return render_value(packages, name="packages")
    items = [element("li", f"{name} ", element("span", str(version))) for name, version in sorted(packages.items())]
    summary = element("summary", format_count(len(packages), "package"))
    return element("details", summary, element("ul", items), class_="packages")


def _target(view: RunView, index: int) -> Markup | None:
    """One target: figures, comparisons, and its samples, texts and pictures."""
    node = view.record.nodes[index]
    figures = _figures(node)
    comparisons = _comparisons(node.value)
    parts = [
        element("dl", [_stat(name, value) for name, value in figures[:_MAX_STATS]], class_="stats")
        if figures
        else None,
        [bar_chart(numbers, name=name) for name, numbers in comparisons],
        render_outputs(view, index),
    ]
    body = fragment(parts)
    if not body:
        if node.outcome in COMMITTED:
            recorded = "recorded no value" if node.value is None else "recorded a value that is shown with the step"
            body = note(f"{node.outcome}; {recorded}.")
        else:
            said = node.failure.message if node.failure else node.reason
            body = note(said if said.startswith(node.outcome) else f"{node.outcome}: {said}")
    doc = element("p", node.doc, class_="doc") if node.doc else None
    return element("div", element("h3", element("a", view.label(index), href=f"#s{index}")), doc, body, class_="target")


def _figures(node: NodeRecord) -> list[tuple[str, Any]]:
    """The scalars of a value, numbers before words; floats first, since what was measured interests before counts."""
    value = node.value
    if value is None:
        return []
    named = [(str(k), v) for k, v in value.items()] if isinstance(value, Mapping) else [(node.name, value)]
    scalars = [(k, v) for k, v in named if is_number(v) or isinstance(v, bool)]
    words = [(k, v) for k, v in named if isinstance(v, str) and 0 < len(v) <= _MAX_WORD and v.isprintable()]
    return [*sorted(scalars, key=lambda pair: not isinstance(pair[1], float)), *words]


def _comparisons(value: Any, *, name: str = "", depth: int = 0) -> list[tuple[str, dict[str, float]]]:
    """The objects of numbers inside a value, near its surface."""
    if not isinstance(value, Mapping) or depth > 2:
        return []
    numbers = comparable(value) if depth else None
    if numbers:
        return [(name, numbers)]
    return [found for key, inner in value.items() for found in _comparisons(inner, name=str(key), depth=depth + 1)]


def _stat(name: str, value: Any) -> Markup:
    text = format_quantity(name, value) if is_number(value) or isinstance(value, bool) else str(value)
    exact = repr(value) if isinstance(value, float) else None
    return element("div", element("dt", label(name)), element("dd", text, title=exact))


def _table(view: RunView) -> Markup:
    """Many targets: a row each, with the figures that any of them recorded as columns."""
    shown = view.targets[:_MAX_TARGETS]
    figures = {i: dict(_figures(view.record.nodes[i])) for i in shown}
    columns = list(dict.fromkeys(name for row in figures.values() for name in row))[:_MAX_STATS]
    rows = [
        element(
            "tr",
            element("th", element("a", view.label(i), href=f"#s{i}"), scope="row"),
            element("td", view.record.nodes[i].outcome),
            [element("td", _cell(name, figures[i].get(name)), class_="number") for name in columns],
        )
        for i in shown
    ]
    head = [element("th", "step", scope="col"), element("th", "outcome", scope="col")]
    head += [element("th", label(name), scope="col", class_="number") for name in columns]
    table = element("table", element("thead", element("tr", head)), element("tbody", rows), class_="data")
    more = len(view.targets) - len(shown)
    return fragment(
        element("div", table, class_="scroll", tabindex=0),
        note(format_count(more, "more target")) if more > 0 else None,
    )


def _cell(name: str, value: Any) -> str | None:
    if value is None:
        return None
    return format_quantity(name, value) if is_number(value) or isinstance(value, bool) else str(value)
