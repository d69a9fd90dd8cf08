"""The list of steps: a line each, that opens to everything known of it.

Each step is a ``<details>``: its line shows what was decided and why, when it ran within the run and its size; opened,
its arguments, value, files, digests, log and failure.

A page of 10,000 steps needs no paging. Steps come in groups that a browser lays out only when they are scrolled to
(``content-visibility``). In a run so large, all groups but the first few come compressed, a tenth of their size, and
the page's script makes elements of them once the page stands, or when a link or the filter wants them. The details
are not elements until a step is opened: a page that stands alone carries them compressed too, and a served one asks
the server for them.
"""

import base64
import functools
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from marin_core.quantities import format_bytes, format_count, format_seconds, format_time
from marin_core.records import Failure, NodeRecord
from marin_core.web.files import UnreadableFileError
from marin_core.web.links import attempt_url, fold_url, step_url
from marin_core.web.logs import clean_log
from marin_core.web.markup import Markup, element, note
from marin_core.web.outputs import render_file_list, render_outputs
from marin_core.web.values import render_value
from marin_core.web.view import MAX_INSPECTED, RunView, outcome_class

_GROUP = 100
_AT_ONCE = 3
"""Groups of a large run that are elements from the start."""
_LOG_LINES = 60
_LOG_BYTES = 16_000
_MAX_LINKS = 24
_TITLES = {False: ("outcome", "when it ran", "time", "output"), True: ("plan", "", "took", "output")}
_FILTER_FROM = 24
"""Fewer steps than this are seen at a glance and need no filter."""


def render_steps(view: RunView) -> Markup:
    """The section with every step of the run, in topological order."""
    nodes = view.record.nodes
    neighbours = _Neighbours.of(view)
    starts = range(0, len(nodes), _GROUP)
    groups = [_group(view, range(i, min(i + _GROUP, len(nodes))), neighbours) for i in starts]
    uninspected = len(nodes) - len(view.inspected)
    return element(
        "section",
        element("h2", "Steps"),
        _filter(view) if len(nodes) >= _FILTER_FROM else None,
        note(f"Logs and outputs are shown for {MAX_INSPECTED:,} of {len(nodes):,} steps.")
        if uninspected and not view.served
        else None,
        element("noscript", note(f"Without this page's script the first {_GROUP * _AT_ONCE} steps are listed, closed."))
        if view.is_large
        else None,
        element(
            "div",
            [element("span", title) for title in ("step", *_TITLES[view.planned])],
            class_="columns",
            aria_hidden="true",
        ),
        groups or note("The run has no steps."),
        id="steps",
    )


def render_detail(view: RunView, index: int) -> Markup:
    """All that is known of one step: what its line opens to."""
    return _detail(view, index, _Neighbours.of(view))


@dataclass(frozen=True)
class _Neighbours:
    """Positions of each step's upstream and downstream steps."""

    upstream: list[list[int]]
    downstream: list[list[int]]

    @classmethod
    def of(cls, view: RunView) -> "_Neighbours":
        upstream: list[list[int]] = [[] for _ in view.record.nodes]
        downstream: list[list[int]] = [[] for _ in view.record.nodes]
        for a, b in view.edges:
            downstream[a].append(b)
            upstream[b].append(a)
        return cls(upstream, downstream)


def _group(view: RunView, indices: range, neighbours: _Neighbours) -> Markup:
    """Some steps, with their details inside, or packed beside them, or left at the server."""
    if view.is_large and view.served:
        rows = [_step(view, i, source=fold_url(view.record.run_id, i)) for i in indices]
        return _large_group(rows, None, is_first=indices.start < _GROUP * _AT_ONCE)
    details = [_detail(view, i, neighbours) for i in indices]
    if view.is_large:
        return _large_group([_step(view, i) for i in indices], details, is_first=indices.start < _GROUP * _AT_ONCE)
    return element("ol", [_step(view, i, detail=d) for i, d in zip(indices, details, strict=True)], class_="steps")


def _large_group(rows: Sequence[Markup], details: Sequence[Markup] | None, *, is_first: bool) -> Markup:
    return element(
        "ol",
        rows if is_first else None,
        class_="steps",
        data_rows=None if is_first else _packed(rows),
        data_details=_packed(details) if details is not None else None,
    )


def _packed(markup: Sequence[Markup]) -> str:
    """Markup as the page's script reads it: a JSON list, deflated (zlib's format), in base 64."""
    return base64.b64encode(zlib.compress(json.dumps(markup).encode(), level=3)).decode("ascii")


def render_failure(failure: Failure) -> Markup:
    """What was raised, with the end of its traceback."""
    return element(
        "div",
        element("p", element("strong", failure.type), ": ", failure.message, class_="failure"),
        element("pre", failure.traceback, tabindex=0) if failure.traceback.strip() else None,
    )


def _filter(view: RunView) -> Markup:
    nodes = view.record.nodes
    outcomes = dict.fromkeys(outcome_class(node.outcome) for node in nodes)
    options = [element("option", view.word(outcome), value=outcome) for outcome in outcomes]
    return element(
        "form",
        element("label", "Filter ", element("input", type="search", placeholder="name, reason or address")),
        element("label", "Outcome ", element("select", element("option", "any", value=""), options)),
        element("output", format_count(len(nodes), "step")),
        class_="filter",
        hidden=True,
    )


def _step(view: RunView, index: int, *, detail: Markup | None = None, source: str | None = None) -> Markup:
    node = view.record.nodes[index]
    line = element("details", _line(view, index), detail, id=f"s{index}", data_source=source)
    return element("li", line, class_=f"outcome-{outcome_class(node.outcome)}")


def _line(view: RunView, index: int) -> Markup:
    node = view.record.nodes[index]
    more = "".join(f" {word}" for word in (node.version, view.distinctions[index]) if word)
    size = f"{format_bytes(node.num_bytes)}" if node.num_files else "–"
    files = format_count(node.num_files, "file") if node.num_files else None
    attempt = f"attempt {node.attempt}" if node.attempt is not None and node.attempt > 1 else None
    if index in view.collected:
        attempt = "collected since"
    return element(
        "summary",
        element(
            "span",
            element("b", node.name, title=node.address),
            more,
            element("small", reason) if (reason := view.reason(node)) else None,
            class_="name",
        ),
        element("span", view.word(node.outcome), element("small", attempt) if attempt else None, class_="outcome"),
        element("span", _bar(view, node), class_="when"),
        element("span", format_seconds(node.seconds), class_="number"),
        element("span", size, element("small", files) if files else None, class_="number"),
    )


def _bar(view: RunView, node: NodeRecord) -> Markup | None:
    """When the step ran, within the run; nothing for a step that did not."""
    start, end = view.span
    if node.started_at is None or end <= start:
        return None
    begin = min(max((node.started_at - start) / (end - start), 0.0), 1.0)
    stop = min(max(((node.ended_at or end) - start) / (end - start), begin), 1.0)
    bar = element(
        "rect", x=f"{100 * begin:.2f}%", width=f"{max(0.4, 100 * (stop - begin)):.2f}%", height="100%", rx=1.5
    )
    return element("svg", bar, aria_hidden="true")


def _decision(node: NodeRecord) -> str:
    return node.reason if node.reason.startswith(node.decision) else f"{node.decision}: {node.reason}".rstrip(": ")


def _digests(node: NodeRecord) -> list[tuple[str, str]]:
    d = node.digests
    pairs = [("recipe", d.recipe), ("code", d.code), ("environment", d.environment), ("inputs", d.inputs)] if d else []
    return [(name, full) for name, full in (*pairs, ("output", node.output_digest)) if full]


def _detail(view: RunView, index: int, neighbours: _Neighbours) -> Markup:
    node = view.record.nodes[index]
    return element(
        "div",
        element("p", node.doc, class_="doc") if node.doc else None,
        _facts(view, node, upstream=neighbours.upstream[index], downstream=neighbours.downstream[index]),
        _part("Failure", render_failure(node.failure) if node.failure else None),
        _part("Arguments", render_value(node.arguments, links=view.links) if node.arguments else None),
        _part("Value", render_value(node.value, name=node.name, links=view.links) if node.value is not None else None),
        _part("Output", None if index in view.headline else render_outputs(view, index)),
        _part("Files", render_file_list(view, index)),
        _part("Log", _log(view, node) if index in view.inspected - view.collected else None),
        class_="detail",
    )


def _part(title: str, body: Markup | None) -> Markup | None:
    return element("div", element("h4", title), body, class_="part") if body else None


def _facts(view: RunView, node: NodeRecord, *, upstream: Sequence[int], downstream: Sequence[int]) -> Markup:
    started = f"{format_time(node.started_at)}, " if node.started_at is not None else ""
    took = f"{started}{format_seconds(node.seconds)}" if node.seconds is not None else started.rstrip(", ")
    labelled = [_digest(name, full) for name, full in _digests(node)]
    rows = [
        ("address", _address(view, node)),
        ("decision", _decision(node)),
        ("attempt", _attempt(view, node)),
        ("took", took or None),
        ("upstream", _links(view, upstream)),
        ("downstream", _links(view, downstream)),
        ("digests", element("span", labelled, class_="labelled") if labelled else None),
    ]
    return element(
        "dl", [(_term(name), element("dd", body)) for name, body in rows if body is not None], class_="fields"
    )


@functools.cache
def _term(name: str) -> Markup:
    return element("dt", name)


@functools.lru_cache(maxsize=4096)  # the steps of a run share most of their code and environments
def _digest(name: str, full: str) -> Markup:
    button = element("button", full[:12], type="button", class_="digest", data_full=full, title="copy it whole")
    return element("span", f"{name} ", button)


def _address(view: RunView, node: NodeRecord) -> Markup:
    address = element("code", node.address)
    return element("a", address, href=step_url(node.address)) if view.served else address


def _attempt(view: RunView, node: NodeRecord) -> Markup | str | None:
    if node.attempt is None:
        return None
    said = str(node.attempt)
    return (
        element("a", f"{said}, its log and files", href=attempt_url(node.address, node.attempt))
        if view.served
        else said
    )


def _links(view: RunView, indices: Sequence[int]) -> Markup | None:
    if not indices:
        return None
    links = [view.link(i) for i in indices[:_MAX_LINKS]]
    more = f" and {len(indices) - _MAX_LINKS:,} more" if len(indices) > _MAX_LINKS else None
    return element("span", links, more, class_="links")


def _log(view: RunView, node: NodeRecord) -> Markup | None:
    if not node.log:
        return None
    try:
        data = view.files.tail(node.log, max_bytes=_LOG_BYTES)
    except UnreadableFileError as e:
        return note(str(e))
    cleaned = clean_log(data, max_lines=_LOG_LINES)
    return element("pre", cleaned, class_="log", tabindex=0) if cleaned else note("The log is empty.")
