"""The two listings: runs, the newest first, and steps, in order of their addresses. Both are filtered and paged.

A page of a listing reads the records that it shows and no others; a filter over runs reads what is kept of each.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from marin_core.errors import NewerRecordError
from marin_core.quantities import format_bytes, format_count, format_seconds, format_time, label
from marin_core.reading.catalogue import Unreadable
from marin_core.reading.heads import RunHead
from marin_core.reading.states import STATES, StepState
from marin_core.reasons import flatten
from marin_core.records import StepRecord
from marin_core.server.catalogue import Catalogue, RunSummary, matching
from marin_core.server.frames import count, page, pager, search, state, table
from marin_core.web.links import DIFF, RUNS, STEPS, diff_url, run_url, step_url
from marin_core.web.markup import Markup, element, note
from marin_core.web.values import figures, in_words

PAGE = 50
_MOST_JUDGED = 5000
"""Steps whose state is asked for when only those of one state are wanted."""
_MAX_FIGURES = 3
_MAX_LINE = 160


def runs_page(catalogue: Catalogue, *, query: str, number: int) -> Markup:
    """The listing of runs.

    Args:
        catalogue: the prefix.
        query: words that a run's id, script, command or status must contain.
        number: the page, from 1.
    """
    ids = catalogue.run_ids[::-1]
    found = ids if not query else _matching_runs(catalogue, ids, query)
    start = PAGE * (number - 1)
    rows = [_run_row(run_id, catalogue.summary(run_id)) for run_id in found[start : start + PAGE]]
    titles = ("status", "script", "started", "took", "steps", "run")
    latest = element("a", "Compare the newest two", href=diff_url(ids[1], ids[0])) if len(ids) > 1 else None
    return page(
        "Runs",
        search(RUNS, query=query, what="script, status, command or run id"),
        count(len(found), len(ids), "run"),
        table(titles, rows, numbers=("took",), is_wide=True) if rows else note("No run is listed here."),
        pager(RUNS, query=query, number=number, size=PAGE, total=len(found)),
        element("p", latest, " or ", element("a", "any two", href=DIFF), ".") if latest else None,
        prefix=catalogue.url,
        here=RUNS,
    )


def _matching_runs(catalogue: Catalogue, ids: Sequence[str], query: str) -> list[str]:
    described = {}
    for run_id in ids:
        summary = catalogue.summary(run_id)
        head = summary.head if isinstance(summary, RunSummary) else None
        described[" ".join((run_id, *((head.status, head.script, *head.argv) if head else ("corrupt",))))] = run_id
    return [described[text] for text in matching(list(described), query)]


def _run_row(run_id: str, summary: RunSummary | Unreadable) -> Markup:
    link = element("a", element("code", run_id), href=run_url(run_id))
    if not isinstance(summary, RunSummary):
        return _unreadable_row(element("code", run_id), summary, columns=5)
    head = summary.head
    return element(
        "tr",
        element("td", state(head.status)),
        element("td", element("a", head.script or "–", href=run_url(run_id)), _command(head)),
        element("td", format_time(head.started_at), class_="when"),
        element("td", _took(head), class_="number"),
        element("td", ", ".join(f"{n:,} {outcome}" for outcome, n in head.outcomes.items()) or "none"),
        element("td", link),
    )


def _command(head: RunHead) -> Markup | None:
    """The flags, which tell the runs of one script apart."""
    flags = " ".join(head.argv[1:])
    return element("small", flags if len(flags) <= 120 else f"{flags[:119]}…") if flags else None


def _took(head: RunHead) -> str:
    if head.ended_at is not None:
        return format_seconds(head.ended_at - head.started_at)
    return f"{format_seconds(max(0.0, time.time() - head.started_at))} so far" if head.status == "running" else "–"


def steps_page(catalogue: Catalogue, *, query: str, wanted: str, number: int) -> Markup:
    """The listing of steps.

    Args:
        catalogue: the prefix.
        query: words that an address, or the arguments behind it, must contain.
        wanted: the state that they must be in; empty for any.
        number: the page, from 1.
    """
    addresses, arguments = catalogue.addresses, catalogue.labels()
    described = {f"{address} {arguments.get(address, '')}": address for address in addresses}
    found = [described[text] for text in matching(list(described), query)]
    start = PAGE * (number - 1)
    states, remark = {}, None
    if wanted in STATES:
        remark = note(f"Only the first {_MOST_JUDGED:,} are looked at.") if len(found) > _MOST_JUDGED else None
        states = catalogue.each(catalogue.state, found[:_MOST_JUDGED])
        found = [address for address, state in states.items() if state.state == wanted]
    shown = found[start : start + PAGE]
    states = {a: states[a] for a in shown} if states else catalogue.each(catalogue.state, shown)
    rows = [_step_row(catalogue, states[address], arguments.get(address)) for address in shown]
    titles = ("step", "state", "value", "committed", "took", "size")
    return page(
        "Steps",
        search(STEPS, query=query, what="address or arguments", choices=STATES, chosen=wanted),
        count(len(found), len(addresses), "step"),
        remark,
        table(titles, rows, numbers=("took", "size"), is_wide=True) if rows else note("No step is listed here."),
        pager(STEPS, query=query, state=wanted, number=number, size=PAGE, total=len(found)),
        prefix=catalogue.url,
        here=STEPS,
    )


def _step_row(catalogue: Catalogue, found: StepState, arguments: str | None) -> Markup:
    name = found.address.rpartition("/")[0]
    commit = found.commit
    if arguments is None and isinstance(record := catalogue.remembered(found.address), StepRecord):
        arguments = recipe_words(record)
    link = element(
        "td",
        element("a", element("b", name), f" {arguments}" if arguments else None, href=step_url(found.address)),
        element("small", element("code", found.address)),
    )
    remark = element("small", _one_line(found.note)) if found.note else None
    if commit is None:
        return element("tr", link, element("td", state(found.state), remark, colspan=5))
    size = element("small", format_count(commit.num_files, "file")) if commit.num_files else None
    return element(
        "tr",
        link,
        element("td", state(found.state), remark),
        element("td", headline(commit.value, given=arguments or "")),
        element("td", format_time(commit.committed_at), class_="when"),
        element("td", format_seconds(commit.seconds), class_="number"),
        element("td", format_bytes(commit.num_bytes) if commit.num_files else "–", size, class_="number"),
    )


def headline(value: Any, *, given: str = "") -> str:
    """The first figures of a recorded value, or how much it is, in a few words; not what was given as an argument."""
    if isinstance(value, Mapping):
        inner = [(f"{k} {n}", v) for k, found in value.items() if isinstance(found, Mapping) for n, v in figures(found)]
        told = [(k, in_words(k, v)) for k, v in figures(value) or inner]
        news = [(k, said) for k, said in told if f"{k}={said}" not in given.split(", ")]
        said = ", ".join(f"{label(k)} {said}" for k, said in news[:_MAX_FIGURES])
        return said or ", ".join(map(str, list(value)[:_MAX_FIGURES]))
    if isinstance(value, list | tuple):
        return f"a list of {len(value):,}"
    return "" if value is None else _one_line(in_words("", value))


def recipe_words(record: StepRecord) -> str:
    """The literal arguments of a committed step in one line; empty where its recipe cannot be read."""
    try:
        leaves = flatten(record.recipe)
    except (AttributeError, TypeError, ValueError, IndexError):
        return ""
    said = [
        f"{k}={v}"
        for k, v in leaves.items()
        if k not in ("function", "version") and not v.startswith(("step ", "type("))
    ]
    return _one_line(", ".join(said))


def _one_line(text: str) -> str:
    line = text.partition("\n")[0]
    return line if len(line) <= _MAX_LINE else f"{line[: _MAX_LINE - 1]}…"


def _unreadable_row(link: Markup, error: Unreadable, *, columns: int) -> Markup:
    return element(
        "tr",
        element("td", link),
        element("td", state(unreadable_word(error)), element("small", str(error)), colspan=columns),
    )


def unreadable_word(error: Unreadable) -> str:
    """What keeps a record from being read."""
    return "newer" if isinstance(error, NewerRecordError) else "corrupt"
