"""The two listings: runs, the newest first, and steps, in order of their addresses. Both are filtered and paged.

A page of a listing reads the records that it shows and no others; a filter over runs reads what is kept of each.
"""

import time

from marin_core.errors import CorruptRecordError, NewerRecordError
from marin_core.quantities import format_bytes, format_seconds, format_time
from marin_core.records import StepRecord
from marin_core.server.catalogue import Catalogue, RunSummary, Unreadable, matching
from marin_core.server.frames import count, page, pager, search, state, table
from marin_core.web.files import UnreadableFileError
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
    ids = catalogue.run_ids()
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


def _matching_runs(catalogue: Catalogue, ids: list[str], query: str) -> list[str]:
    described = {}
    for run_id in ids:
        summary = catalogue.summary(run_id)
        words = (summary.status, summary.script, *summary.argv) if isinstance(summary, RunSummary) else ("corrupt",)
        described[" ".join(map(str, (run_id, *words)))] = run_id
    return [described[text] for text in matching(list(described), query)]


def _run_row(run_id: str, summary: RunSummary | Unreadable) -> Markup:
    link = element("a", element("code", run_id), href=run_url(run_id))
    if not isinstance(summary, RunSummary):
        return _unreadable_row(element("code", run_id), summary, columns=5)
    try:
        end = summary.ended_at
        took = format_seconds(end - summary.started_at) if end else _age(summary)
        cells = (
            element("td", state(summary.status)),
            element("td", element("a", summary.script or "–", href=run_url(run_id)), _command(summary)),
            element("td", format_time(summary.started_at), class_="when"),
            element("td", took, class_="number"),
            element("td", ", ".join(f"{n:,} {outcome}" for outcome, n in summary.outcomes.items()) or "none"),
            element("td", link),
        )
    except (TypeError, ValueError, AttributeError) as e:
        return _unreadable_row(element("code", run_id), CorruptRecordError(f"runs/{run_id}.json: {e}"), columns=5)
    return element("tr", cells)


def _command(summary: RunSummary) -> Markup | None:
    """The flags, which tell the runs of one script apart."""
    flags = " ".join(map(str, summary.argv[1:]))
    return element("small", flags if len(flags) <= 120 else f"{flags[:119]}…") if flags else None


def _age(summary: RunSummary) -> str:
    return (
        f"{format_seconds(max(0.0, time.time() - summary.started_at))} so far" if summary.status == "running" else "–"
    )


def steps_page(catalogue: Catalogue, *, query: str, number: int) -> Markup:
    """The listing of steps.

    Args:
        catalogue: the prefix.
        query: words that an address must contain.
        number: the page, from 1.
    """
    addresses = catalogue.addresses()
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
    link = element("a", address, href=step_url(address))
    record = catalogue.step(address)
    if isinstance(record, StepRecord):
        try:
            cells = (
                element("td", state("committed"), _tried_again(catalogue, address, record)),
                element("td", format_time(record.committed_at), class_="when"),
                element("td", format_seconds(record.seconds), class_="number"),
                element("td", f"{len(record.files):,}", class_="number"),
                element("td", format_bytes(record.num_bytes), class_="number"),
            )
            return element("tr", element("td", link), cells)
        except (TypeError, ValueError, AttributeError) as e:
            return _unreadable_row(link, CorruptRecordError(f"{address}/step.json: {e}"), columns=5)
    if record is not None:
        return _unreadable_row(link, record, columns=5)
    return element("tr", element("td", link), element("td", state(uncommitted_state(catalogue, address)), colspan=5))


def _tried_again(catalogue: Catalogue, address: str, record: StepRecord) -> Markup | None:
    """What a later attempt than the committed one has come to."""
    newest = next(iter(catalogue.attempts(address)), record.attempt)
    if newest <= record.attempt:
        return None
    attempt = catalogue.attempt(address, newest)
    return element("small", f"attempt {newest}: {getattr(attempt, 'state', 'unreadable')}")


def uncommitted_state(catalogue: Catalogue, address: str) -> str:
    """What a step without a committed output is in: the state of its newest attempt."""
    numbers = catalogue.attempts(address)
    if not numbers:
        return "never tried"
    return str(getattr(catalogue.attempt(address, numbers[0]), "state", "unreadable"))


def _unreadable_row(link: Markup, error: Unreadable, *, columns: int) -> Markup:
    return element(
        "tr",
        element("td", link),
        element("td", state(unreadable_word(error)), element("small", str(error)), colspan=columns),
    )


def unreadable_word(error: Unreadable) -> str:
    """Corrupt, or what else keeps a record from being read."""
    if isinstance(error, NewerRecordError):
        return "newer"
    return "unreadable" if isinstance(error, UnreadableFileError) else "corrupt"
