"""The page of what differs between two runs: every change that `reading.comparisons` finds, as one flat row."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from marin_core.quantities import format_count, format_quantity, is_number, label
from marin_core.reading.changes import SECTIONS, Change, Pair
from marin_core.reading.comparisons import compare_runs
from marin_core.records import NodeRecord
from marin_core.server.catalogue import Catalogue, RunSummary
from marin_core.server.frames import fields, page, section, table
from marin_core.server.listings import headline
from marin_core.web.links import DIFF, run_url
from marin_core.web.markup import Markup, element, note
from marin_core.web.view import RunView

_MAX_CHOICES = 200
_MAX_ROWS = 300
_MAX_TEXT = 300
_STEPS = "steps"
_FIRST = (_STEPS, "config", "code", "inputs", "environment", "value", "metrics", "files")
_FOLDED = ("timings", "decisions")
_ORDER = (*_FIRST, *(name for name in SECTIONS if name not in (*_FIRST, *_FOLDED)), *_FOLDED)
"""What a person asks first, first; how it was decided and how long it took, when asked for."""
_MAX_NAMED = 3
_UNIT = re.compile(
    r"((?:imports of )?(?:step function|helper|class|constant|import|statement|type of|code)) (\S+)(?: \((new|gone)\))?"
)
_WAS_CODE = re.compile(r"(?:^|; )code changed: ([^;]*)")

_TITLES = {"value": "Values"}

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
    units = _Units.of(catalogue, found.pairs)
    sections = [_section(name, of, units) for name, of in members.items() if of]
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
    named = {change.section for change in pair.changes if change.name != change.section}
    values = [pair.old.value, pair.new.value]
    is_news = None in values and values != [None, None]
    if is_news:  # one row, not one for every number in it
        yield name, Change(section="value", name="value", old=_brief(values[0]), new=_brief(values[1]))
    for change in pair.changes:
        if is_news and change.section == "value":
            continue
        if change.section == "inputs" and change.name == "inputs":
            yield from ((name, each) for each in _inputs(pair.new, old, new) or [change])
        elif change.name != change.section or change.section not in named:  # a digest says nothing beside names
            yield name, change


def _brief(value: Any) -> str | None:
    return None if value is None else headline(value)


def _inputs(node: NodeRecord, old: RunView, new: RunView) -> list[Change]:
    """The upstream steps whose outputs are not the same in the two runs."""
    before, after = ({n.address: n.output_digest for n in view.record.nodes} for view in (old, new))
    changed = [up for up in node.upstream if up in before and before[up] != after.get(up)]
    if len(changed) > _MAX_NAMED:
        said = f"outputs of {len(changed):,} of {len(node.upstream):,} steps"
        return [Change(section="inputs", name=said, old=None, new="changed")]
    labels = {n.address: new.label_of(n) for n in new.record.nodes} if changed else {}
    return [Change(section="inputs", name=labels[up], old=before[up], new=after[up]) for up in changed if up in labels]


@dataclass(frozen=True)
class _Units:
    """The helpers, classes and constants behind two digests of code: by steps' own records where those stand, else
    by the reason that a run gave for making a step again. Steps of the same two digests share what is known of one."""

    kinds: dict[str, str]
    """Unit -> what it is, where a reason told."""
    behind: dict[tuple[str, str], list[Change]]

    @classmethod
    def of(cls, catalogue: Catalogue, pairs: Iterable[Pair]) -> "_Units":
        found = cls({}, {})
        for pair in pairs:
            if pair.old is not None and pair.new is not None:
                found._learn(catalogue, pair.old, pair.new)
        return found

    def _learn(self, catalogue: Catalogue, old: NodeRecord, new: NodeRecord) -> None:
        if old.digests is None or new.digests is None or old.digests.code == new.digests.code:
            return
        digests = old.digests.code, new.digests.code
        told = _WAS_CODE.search(new.reason)
        for said in told[1].split(", ") if told else ():
            match = _UNIT.match(said)
            kind, unit, gone = match.groups() if match else ("", said, "")
            self.kinds.setdefault(unit, kind)
            sides = {"new": (None, digests[1]), "gone": (digests[0], None)}.get(gone or "", digests)
            change = Change(section="code", name=unit, old=sides[0], new=sides[1])
            if old.address == new.address and change not in (known := self.behind.setdefault(digests, [])):
                known.append(change)
        if digests not in self.behind:
            records = [catalogue.remembered(node.address) for node in (old, new)]
            if all(r is not None and r.digests.code == d for r, d in zip(records, digests, strict=True)):
                before, after = (r.code for r in records if r is not None)
                units = (u for u in dict.fromkeys((*before, *after)) if before.get(u) != after.get(u))
                self.behind[digests] = [
                    Change(section="code", name=u, old=before.get(u), new=after.get(u)) for u in units
                ]

    def render(self, members: Sequence[Row]) -> Markup:
        """A row for each unit, with the steps that reach it."""
        reached: dict[tuple[str, str], list[str]] = {}
        for step, change in members:
            found = self.behind.get((change.old, change.new), []) if change.name == "code" else [change]
            for each in found or [change]:
                word = "new" if each.old is None else "gone" if each.new is None else "changed"
                reached.setdefault((each.name, word), []).append(step)
        rows = [
            element(
                "tr",
                element("td", self.kinds.get(name) or None, class_="of"),
                element("th", element("code", name), scope="row"),
                element("td", word),
                element(
                    "td",
                    ", ".join(steps[:_MAX_NAMED]),
                    f" and {len(steps) - _MAX_NAMED:,} more" if len(steps) > _MAX_NAMED else None,
                ),
            )
            for (name, word), steps in list(reached.items())[:_MAX_ROWS]
        ]
        return table(("kind", "what", "", "reached by"), rows, is_wide=True)


def _section(name: str, members: Sequence[Row], units: _Units) -> Markup:
    title = _TITLES.get(name, name.capitalize())
    if name == "code":
        return section(title, units.render(members))
    if name not in _FOLDED:
        return section(title, _rows(members))
    summary = element("summary", f"{title} ({format_count(len(members), 'difference')})")
    return element("section", element("details", summary, *_rows(members), class_="folded"))


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
    if change.section == "inputs" or change.name == "output":
        return str(value)[:12]
    text = format_quantity(change.name, value) if is_number(value) else str(value)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"


def _delta(change: Change) -> str | None:
    """How much a number has grown, in percent."""
    return None if change.ratio is None else f"{100 * (change.ratio - 1) * (1 if change.old > 0 else -1):+.3g}%"
