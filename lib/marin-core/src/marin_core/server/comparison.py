"""The page of what differs between two runs: every change that `reading.comparisons` finds, as one flat row."""

from collections.abc import Iterator, Sequence
from typing import Any

from marin_core.quantities import format_count, format_quantity, is_number, label
from marin_core.reading.changes import SECTIONS, Change, Pair
from marin_core.reading.comparisons import compare_runs
from marin_core.server.catalogue import Catalogue, RunSummary
from marin_core.server.frames import fields, page, section, table
from marin_core.web.links import DIFF, run_url
from marin_core.web.markup import Markup, element, note
from marin_core.web.view import RunView

_MAX_CHOICES = 200
_MAX_ROWS = 300
_MAX_TEXT = 300
_STEPS = "steps"
_ORDER = ("command", _STEPS, *SECTIONS[1:])

Row = tuple[str, Change]
"""The step's label, empty for the run as a whole, and what changed in it."""


def diff_page(catalogue: Catalogue, *, a: str, b: str) -> Markup:
    """The page that compares two runs, or asks which.

    Raises:
        UnreadableFileError: one of the runs does not exist.
        CorruptRecordError, NewerRecordError: the record of one cannot be read.
    """
    ids = catalogue.run_ids[::-1]
    form = _form(catalogue, ids, a, b)
    if not a or not b:
        return page("Diff", form, prefix=catalogue.url, here=DIFF)
    old, new = catalogue.view(a), catalogue.view(b)
    found = compare_runs(catalogue, old.record, new.record)
    rows = [("the whole run" if c.section == "timings" else "", c) for c in found.whole] + [
        row for pair in found.pairs for row in _of_pair(pair, old, new)
    ]
    members = {name: [row for row in rows if row[1].section == name] for name in _ORDER}
    sections = [section(name.capitalize(), _rows(of)) for name, of in members.items() if of]
    both = fields(
        [
            (side, element("a", _described(catalogue, run_id), href=run_url(run_id)))
            for side, run_id in (("from", a), ("to", b))
        ]
    )
    said = note(format_count(len(rows), "difference") if rows else "These two runs do not differ.")
    return page("Diff", form, both, said, *sections, prefix=catalogue.url, here=DIFF)


def _of_pair(pair: Pair, old: RunView, new: RunView) -> Iterator[Row]:
    if pair.old is None or pair.new is None:
        sides = {"old": pair.old and "there", "new": pair.new and "there"}
        only = old.label_of(pair.old) if pair.old else new.label_of(pair.new) if pair.new else pair.name
        yield only, Change(section=_STEPS, name="step", **sides)
        return
    name = new.label_of(pair.new)
    yield from ((name, change) for change in pair.changes)


def _form(catalogue: Catalogue, ids: Sequence[str], a: str, b: str) -> Markup:
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
    return f"{run_id} · {summary.head.script} · {summary.head.status}" if isinstance(summary, RunSummary) else run_id


def _rows(members: Sequence[Row]) -> list[Markup | None]:
    with_step = any(step for step, _ in members)
    rows = [
        element(
            "tr",
            element("td", step, class_="of") if with_step else None,
            element("th", label(change.name), scope="row"),
            element("td", _cell(change, change.old), class_="old"),
            element("td", _cell(change, change.new), class_="new"),
            element("td", _delta(change), class_="number"),
        )
        for step, change in members[:_MAX_ROWS]
    ]
    titles = (*(("step",) if with_step else ()), "what", "from", "to", "by")
    more = note(f"{len(members) - _MAX_ROWS:,} more.") if len(members) > _MAX_ROWS else None
    return [table(titles, rows, numbers=("by",), is_wide=True), more]


def _cell(change: Change, value: Any) -> str:
    if value is None:
        return "–"
    if change.section in ("code", "inputs") or change.name == "output":
        return str(value)[:12]
    text = format_quantity(change.name, value) if is_number(value) else str(value)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"


def _delta(change: Change) -> str | None:
    """How much a number has grown, in percent."""
    return None if change.ratio is None else f"{100 * (change.ratio - 1) * (1 if change.old > 0 else -1):+.3g}%"
