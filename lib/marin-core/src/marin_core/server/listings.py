"""The two listings: runs, the newest first, and steps, in order of their addresses. Both are filtered and paged.

A page of a listing reads the records that it shows and no others; a filter over runs reads what is kept of each.
"""

import time
from collections.abc import Sequence

from marin_core.errors import NewerRecordError
from marin_core.quantities import format_bytes, format_seconds, format_time
from marin_core.reading.catalogue import Unreadable
from marin_core.reading.heads import RunHead
from marin_core.server.catalogue import Catalogue, RunSummary, matching
from marin_core.server.frames import count, page, pager, search, state, table
from marin_core.web.links import DIFF, RUNS, STEPS, diff_url, run_url, step_url
from marin_core.web.markup import Markup, element, note

PAGE = 50


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


def steps_page(catalogue: Catalogue, *, query: str, number: int) -> Markup:
    """The listing of steps.

    Args:
        catalogue: the prefix.
        query: words that an address must contain.
        number: the page, from 1.
    """
    addresses = catalogue.addresses
    found = matching(addresses, query)
    start = PAGE * (number - 1)
    rows = [_step_row(catalogue, address) for address in found[start : start + PAGE]]
    titles = ("step", "state", "committed", "took", "files", "size")
    return page(
        "Steps",
        search(STEPS, query=query, what="any part of an address"),
        count(len(found), len(addresses), "step"),
        table(titles, rows, numbers=("took", "files", "size"), is_wide=True)
        if rows
        else note("No step is listed here."),
        pager(STEPS, query=query, number=number, size=PAGE, total=len(found)),
        prefix=catalogue.url,
        here=STEPS,
    )


def _step_row(catalogue: Catalogue, address: str) -> Markup:
    found = catalogue.state(address)
    link, commit = element("a", address, href=step_url(address)), found.commit
    said = element(
        "td", state(found.state), element("small", found.note) if found.note else None, colspan=None if commit else 5
    )
    if commit is None:
        return element("tr", element("td", link), said)
    return element(
        "tr",
        element("td", link),
        said,
        element("td", format_time(commit.committed_at), class_="when"),
        element("td", format_seconds(commit.seconds), class_="number"),
        element("td", f"{commit.num_files:,}", class_="number"),
        element("td", format_bytes(commit.num_bytes), class_="number"),
    )


def _unreadable_row(link: Markup, error: Unreadable, *, columns: int) -> Markup:
    return element(
        "tr",
        element("td", link),
        element("td", state(unreadable_word(error)), element("small", str(error)), colspan=columns),
    )


def unreadable_word(error: Unreadable) -> str:
    """What keeps a record from being read."""
    return "newer" if isinstance(error, NewerRecordError) else "corrupt"
