"""The members of a sweep side by side: what was varied, and what came of it, a row each.

Steps of one name that were given different arguments are a sweep, whoever made them. Its columns are the arguments in
which they differ, then what they recorded (the scalars of their values) or, where they recorded none, the last row of
their ``metrics.jsonl``. A row leads to its step, and the page's script sorts by any column.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from marin_core.namesakes import literals_in
from marin_core.quantities import format_count, is_number
from marin_core.web.markup import Markup, element, fragment, note
from marin_core.web.tables import ABSENT, data_table
from marin_core.web.values import figures, in_words, render_value
from marin_core.web.view import FAILED, RunView, outcome_class, output_directory

_MAX_ROWS = 200
"""Rows of all tables together."""
_MAX_PARAMETERS = 8
_MAX_RESULTS = 8
_MAX_TABLES = 12
_MAX_READ = 64
"""Members whose metrics are looked into."""
_METRICS = "metrics.jsonl"
_LAST_ROW_BYTES = 1 << 14


def render_sweeps(view: RunView) -> Markup | None:
    """The section; None where no two steps of a name were given different arguments and have anything to compare."""
    shown = set() if view.headline else set(view.targets)  # these are results, and stand there
    groups: dict[str, list[int]] = defaultdict(list)
    for i, node in enumerate(view.record.nodes):
        groups[node.name].append(i)
    sweeps = {
        name: members
        for name, members in groups.items()
        if len(members) > 1
        and not shown.issuperset(members)
        and parameters([view.record.nodes[i].arguments for i in members])
    }
    most = _MAX_ROWS // max(1, min(len(sweeps), _MAX_TABLES))
    drawn = ((name, render_members(view, members, most=most)) for name, members in list(sweeps.items())[:_MAX_TABLES])
    tables = [(element("h3", name), table) for name, table in drawn if table]
    return element("section", element("h2", "Sweep"), tables, id="sweep") if tables else None


def render_members(
    view: RunView, members: Sequence[int], *, most: int = _MAX_ROWS, even_bare: bool = False
) -> Markup | None:
    """Steps as a table.

    Args:
        view: the run.
        members: positions of the steps.
        most: rows that are shown.
        even_bare: also where they recorded nothing.
    """
    shown = members[:most]
    nodes = [view.record.nodes[i] for i in shown]
    varied = parameters([node.arguments for node in nodes])
    results = _results(view, shown)
    results = {k: v for k, v in results.items() if k not in varied or not _same(v, varied[k])}
    if not results and not even_bare:
        return None
    columns = dict(list(varied.items())[:_MAX_PARAMETERS])
    leading, *_ = [*columns, None]
    first = columns.pop(leading) if leading else [view.label(i) for i in shown]
    heads = [
        element(
            "th",
            element("a", _word(leading or "", text), href=f"#s{i}", title=view.label(i)),
            scope="row",
            class_=f"state outcome-{outcome_class(view.record.nodes[i].outcome)}",
            data_value=repr(text) if is_number(text) else None,
        )
        for i, text in zip(shown, first, strict=True)
    ]
    table = data_table(
        {
            **columns,
            **_outcomes(view, shown),
            **{_apart(k, columns): v for k, v in list(results.items())[:_MAX_RESULTS]},
        },
        lambda name, value: render_value(value, name=name),
        first=heads,
        corner=leading or "step",
    )
    more = len(members) - len(shown)
    return fragment(table, note(f"The first {len(shown)} of {format_count(len(members), 'step')}.") if more else None)


def _word(name: str, value: Any) -> str:
    return "–" if value is ABSENT or value is None else in_words(name, value)


def parameters(arguments: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The literal arguments in which steps differ: name -> the value of each, `ABSENT` where one was not given."""
    flat = [_literals(given) for given in arguments]
    names = dict.fromkeys(name for literals in flat for name in literals)
    columns = {name: [literals.get(name, ABSENT) for literals in flat] for name in names}
    differing = {name: cells for name, cells in columns.items() if len(set(map(repr, cells))) > 1}
    short = [name.rpartition(".")[2] for name in differing]
    return dict(zip(short, differing.values(), strict=True)) if len(set(short)) == len(short) else differing


def _literals(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What is no step inside arguments, by dotted path; a list of plain values as its text."""
    found: dict[str, Any] = {}
    for path, value in literals_in(arguments).items():
        if not isinstance(value, list | tuple):
            found[path] = value
        elif not any(isinstance(item, Mapping) for item in value):
            found[path] = ", ".join(map(str, value))
    return found


def _results(view: RunView, members: Sequence[int]) -> dict[str, list[Any]]:
    """What the steps recorded, by name; one quantity inside another by its dotted path."""
    recorded = [_scalars(view.record.nodes[i].value, name=view.record.nodes[i].name) for i in members]
    if not any(is_number(v) for found in recorded for v in found.values()):
        wanted = [i for i in members[:_MAX_READ] if any(f.path == _METRICS for f in view.outputs.get(i, ()))]
        paths = [f"{output_directory(view.record.nodes[i])}/{_METRICS}" for i in wanted]
        tails = view.files.tail_each(paths, max_bytes=_LAST_ROW_BYTES)
        rows = {i: _last_row(tail) for i, tail in zip(wanted, tails, strict=True)}
        recorded = [found | rows.get(i, {}) for i, found in zip(members, recorded, strict=True)]
    names = dict.fromkeys(name for found in recorded for name in found)
    return {name: [found.get(name, ABSENT) for found in recorded] for name in names}


def _scalars(value: Any, *, name: str) -> dict[str, Any]:
    found = dict(figures(value, name=name))
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if isinstance(inner, Mapping):
                found |= {f"{key}.{k}": v for k, v in figures(inner) if is_number(v)}
    return found


def _last_row(tail: bytes) -> dict[str, Any]:
    """The numbers in the last readable row of a step's metrics."""
    for line in reversed(tail.splitlines()):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            return {k: v for k, v in row.items() if is_number(v)}
    return {}


def _outcomes(view: RunView, members: Sequence[int]) -> dict[str, list[Any]]:
    """A column that says how each ended, where they did not end alike."""
    nodes = [view.record.nodes[i] for i in members]
    if len({outcome_class(node.outcome) for node in nodes}) < 2:
        return {}
    return {
        "outcome": [
            view.word(n.outcome) + (f": {n.failure.type}" if n.outcome in FAILED and n.failure else "") for n in nodes
        ]
    }


def _same(results: Sequence[Any], given: Sequence[Any]) -> bool:
    """Whether a result only repeats an argument, as a record of what was tried does."""
    return all(r is ABSENT or r == g for r, g in zip(results, given, strict=True))


def _apart(name: str, columns: Mapping[str, Any]) -> str:
    return f"{name} (recorded)" if name in columns or name == "outcome" else name
