"""What differs between two runs: what was asked, by which code and environment, what was decided, and what came out.

`compare` pairs the steps of two runs (by address, then by name in order) and lists every change as one flat row, so
that the page is a table and nothing else knows of the pairing.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from marin_core.quantities import format_count, format_quantity, is_number, label
from marin_core.records import NodeRecord, RunRecord, StepRecord
from marin_core.server.catalogue import Catalogue, RunSummary
from marin_core.server.frames import fields, page, section, table
from marin_core.web.curves import parse_metrics
from marin_core.web.files import UnreadableFileError
from marin_core.web.links import DIFF, run_url
from marin_core.web.markup import Markup, element, note
from marin_core.web.view import COMMITTED, RunView

_MAX_CHOICES = 200
_MAX_ROWS = 300
_MAX_STEPS = 400
"""Pairs of steps whose code and metrics are looked up on disk."""
_MAX_METRICS_BYTES = 16_000_000
_MAX_TEXT = 300

_TITLES = {
    "run": "Run", "steps": "Steps", "decisions": "Decisions", "arguments": "Arguments", "code": "Code",
    "environment": "Environment", "values": "Values", "metrics": "Metrics, at the last step", "timings": "Timings",
}  # fmt: skip
"""Sections of a comparison, in the order of their showing."""


@dataclass(frozen=True)
class Change:
    """One thing that is not the same; None is what is not there."""

    section: str
    step: str
    name: str
    old: Any
    new: Any


def compare(catalogue: Catalogue, old: RunView, new: RunView) -> list[Change]:
    """Every difference of two runs, in the order of `_TITLES`."""
    changes = [*_of_runs(old.record, new.record)]
    pairs = _pairs(old.record, new.record)
    for at, (a, b) in enumerate(pairs):
        name = new.label(b)
        changes += _of_steps(old.record.nodes[a], new.record.nodes[b], name=name)
        if at < _MAX_STEPS:
            changes += _of_outputs(catalogue, old.record.nodes[a], new.record.nodes[b], name=name)
    paired = {a for a, _ in pairs}, {b for _, b in pairs}
    for view, kept, there in ((old, paired[0], ("there", None)), (new, paired[1], (None, "there"))):
        alone = (view.label(i) for i in range(len(view.record.nodes)) if i not in kept)
        changes += [Change("steps", name, "step", *there) for name in alone]
    order = list(_TITLES)
    return sorted(changes, key=lambda change: order.index(change.section))


def _pairs(old: RunRecord, new: RunRecord) -> list[tuple[int, int]]:
    """Positions of steps that are each other's counterparts: of one address, or else of one name in the same order."""
    by_address = {node.address: i for i, node in enumerate(old.nodes)}
    old_of = {i: by_address[node.address] for i, node in enumerate(new.nodes) if node.address in by_address}
    taken = set(old_of.values())
    by_name: dict[str, deque[int]] = defaultdict(deque)
    for i, node in enumerate(old.nodes):
        if i not in taken:
            by_name[node.name].append(i)
    for i, node in enumerate(new.nodes):
        if i not in old_of and by_name[node.name]:
            old_of[i] = by_name[node.name].popleft()
    return [(old_of[i], i) for i in sorted(old_of)]


def _of_runs(old: RunRecord, new: RunRecord) -> Iterator[Change]:
    told = [
        {"script": r.script, "command": " ".join(map(str, r.argv)), "status": r.status, **_leaves(r.git)}
        for r in (old, new)
    ]
    yield from _changed("run", "", told[0], told[1])
    yield from _changed("environment", "", _leaves(old.environment), _leaves(new.environment))
    took = [{"seconds": None if r.ended_at is None else r.ended_at - r.started_at} for r in (old, new)]
    yield from _changed("timings", "the whole run", took[0], took[1])


def _of_steps(old: NodeRecord, new: NodeRecord, *, name: str) -> Iterator[Change]:
    decisions = [{"decision": f"{n.decision}: {n.reason}", "outcome": n.outcome} for n in (old, new)]
    yield from _changed("decisions", name, decisions[0], decisions[1])
    yield from _changed(
        "arguments", name, _leaves(_without_steps(old.arguments)), _leaves(_without_steps(new.arguments))
    )
    yield from _changed("values", name, _leaves(old.value), _leaves(new.value))
    if old.attempt != new.attempt or old.address != new.address:
        yield from _changed("timings", name, {"seconds": old.seconds}, {"seconds": new.seconds})


def _of_outputs(catalogue: Catalogue, old: NodeRecord, new: NodeRecord, *, name: str) -> Iterator[Change]:
    """Code and metrics, which lie beside the steps and not in the runs' records."""
    digests = [n.digests.code if n.digests else None for n in (old, new)]
    if digests[0] != digests[1]:
        units = [_units(catalogue, n) for n in (old, new)]
        known = units[0] and units[1]
        yield from _changed("code", name, *(units if known else [{"digest": d and d[:12]} for d in digests]))
    if (old.address, old.attempt) != (new.address, new.attempt):
        yield from _changed("metrics", name, _metrics(catalogue, old), _metrics(catalogue, new))


def _units(catalogue: Catalogue, node: NodeRecord) -> dict[str, Any]:
    """The digests of what the step's code reached, where its record still is that of this attempt."""
    record = catalogue.step(node.address)
    if not isinstance(record, StepRecord) or record.attempt != node.attempt:
        return {}
    return dict(record.code)


def _metrics(catalogue: Catalogue, node: NodeRecord) -> dict[str, Any]:
    """The last value of every column of the step's ``metrics.jsonl``."""
    if node.outcome not in COMMITTED or node.attempt is None:
        return {}
    path = f"{node.address}/attempts/{node.attempt}/out/metrics.jsonl"
    try:
        found = parse_metrics(catalogue.files().read(path, max_bytes=_MAX_METRICS_BYTES), label="")
    except UnreadableFileError:
        return {}
    return {name: next((y for y in reversed(ys) if y is not None), None) for name, ys in found.columns.items()}


def _changed(where: str, step: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for name in dict.fromkeys((*old, *new)):
        if old.get(name) != new.get(name):
            yield Change(where, step, name, old.get(name), new.get(name))


def _leaves(value: Any, *, path: str = "") -> dict[str, Any]:
    """The scalars inside a value, by dotted path; a list is one leaf."""
    if isinstance(value, Mapping) and value:
        return {
            k: v
            for key, inner in value.items()
            for k, v in _leaves(inner, path=f"{path}.{key}" if path else str(key)).items()
        }
    return {} if value is None or value == {} else {path or "value": value}


def _without_steps(value: Any) -> Any:
    """Arguments in which an upstream step is its name: that its address changed follows from what changed above it."""
    if isinstance(value, Mapping):
        if set(value) == {"step"}:
            return str(value["step"]).rpartition("/")[0]
        return {key: _without_steps(inner) for key, inner in value.items()}
    return [_without_steps(inner) for inner in value] if isinstance(value, list | tuple) else value


def diff_page(catalogue: Catalogue, *, a: str, b: str) -> Markup:
    """The page that compares two runs, or asks which.

    Raises:
        UnreadableFileError: one of the runs does not exist.
        CorruptRecordError, NewerRecordError: the record of one cannot be read.
    """
    ids = catalogue.run_ids()
    form = _form(catalogue, ids, a, b)
    if not a or not b:
        return page("Diff", form, prefix=catalogue.url, here=DIFF)
    old, new = catalogue.view(a), catalogue.view(b)
    changes = compare(catalogue, old, new)
    sections = [
        section(_TITLES[name], _rows([c for c in changes if c.section == name]))
        for name in dict.fromkeys(c.section for c in changes)
    ]
    both = fields(
        [
            (side, element("a", _described(catalogue, run_id), href=run_url(run_id)))
            for side, run_id in (("from", a), ("to", b))
        ]
    )
    said = note(format_count(len(changes), "difference") if changes else "These two runs do not differ.")
    return page("Diff", form, both, said, *sections, prefix=catalogue.url, here=DIFF)


def _form(catalogue: Catalogue, ids: list[str], a: str, b: str) -> Markup:
    def select(name: str, chosen: str) -> Markup:
        listed = ids[:_MAX_CHOICES] if not chosen or chosen in ids[:_MAX_CHOICES] else [chosen, *ids[:_MAX_CHOICES]]
        options = [element("option", _described(catalogue, i), value=i, selected=i == chosen) for i in listed]
        return element("select", options, name=name)

    newest = ids[:2]
    return element(
        "form",
        element("label", "From ", select("a", a or (newest[1] if len(newest) > 1 else ""))),
        element("label", "to ", select("b", b or (newest[0] if newest else ""))),
        element("button", "Compare"),
        action=DIFF,
        method="get",
        class_="search",
    )


def _described(catalogue: Catalogue, run_id: str) -> str:
    summary = catalogue.summary(run_id)
    return f"{run_id} · {summary.script} · {summary.status}" if isinstance(summary, RunSummary) else run_id


def _rows(changes: list[Change]) -> list[Markup | None]:
    rows = [
        element(
            "tr",
            element("td", change.step, class_="of") if any(c.step for c in changes) else None,
            element("th", label(change.name), scope="row"),
            element("td", _cell(change.name, change.old), class_="old"),
            element("td", _cell(change.name, change.new), class_="new"),
            element("td", _delta(change.old, change.new), class_="number"),
        )
        for change in changes[:_MAX_ROWS]
    ]
    titles: Iterable[str] = (
        ("step", "what", "from", "to", "by") if any(c.step for c in changes) else ("what", "from", "to", "by")
    )
    more = note(f"{len(changes) - _MAX_ROWS:,} more.") if len(changes) > _MAX_ROWS else None
    return [table(list(titles), rows, numbers=("by",), is_wide=True), more]


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "–"
    text = format_quantity(name, value) if is_number(value) else str(value)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"


def _delta(old: Any, new: Any) -> str | None:
    """How much a number has grown, in percent."""
    if not is_number(old) or not is_number(new) or not old:
        return None
    try:
        return f"{100 * (new - old) / abs(old):+.3g}%"
    except (OverflowError, ValueError):
        return None
