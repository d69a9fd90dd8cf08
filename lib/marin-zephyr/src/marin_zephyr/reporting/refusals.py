"""What was refused: counted by the kind of reason, with one example of each, and how much of it is too much.

Counts of tasks add up to those of a stage, and of stages to those of a run. Kinds beyond the fiftieth are counted
together, so that reasons which hold values of the data cannot fill a manifest.
"""

from __future__ import annotations

from typing import Any

from marin_zephyr.errors import TooManyBadRecordsError

type Refused = dict[str, dict[str, Any]]
"""Kind of a reason -> ``count`` of the records refused for it, and the first of them as ``example``."""

_MAX_KINDS = 50
_MAX_EXAMPLE = 300
_SHOWN_KINDS = 5


def add_refused(totals: Refused, kind: str, *, num_records: int, example: str) -> None:
    """Counts refused records by kind, in place; kinds beyond the fiftieth are counted together."""
    if kind not in totals and len(totals) >= _MAX_KINDS:
        kind = "other reasons"
    entry = totals.setdefault(kind, {"count": 0, "example": example[:_MAX_EXAMPLE]})
    entry["count"] += num_records


def merge_refused(totals: Refused, more: Refused) -> None:
    """Adds ``more`` to ``totals`` in place; the earlier example stays."""
    for kind, entry in more.items():
        add_refused(totals, kind, num_records=entry["count"], example=entry["example"])


def num_refused(refused: Refused) -> int:
    """How many records, of all kinds."""
    return sum(entry["count"] for entry in refused.values())


def told_refused(refused: Refused, *, most: int) -> list[str]:
    """The commonest kinds with an example each, a line a kind, and how many kinds are left out."""
    kinds = sorted(refused.items(), key=lambda entry: -entry[1]["count"])
    lines = [f"  {entry['count']:,} x {kind}, as in {entry['example']}" for kind, entry in kinds[:most]]
    return [*lines, *([f"  and {len(kinds) - most} kinds more"] if len(kinds) > most else [])]


def check_limit(refused: Refused, max_bad: float | None, *, stage: str, rows_in: int | None) -> None:
    """Checks what was refused against ``max_bad``, a number of records or, if below 1, a share of the rows read.

    Args:
        refused: what was refused, so far or in all.
        max_bad: the limit, if there is one.
        stage: the stage's name.
        rows_in: rows that the whole stage reads; None while that is not known, when only a number is checked.

    Raises:
        TooManyBadRecordsError: more records were refused.
    """
    if max_bad is None or (isinstance(max_bad, float) and rows_in is None):
        return
    count = num_refused(refused)
    if count <= (max_bad * rows_in if isinstance(max_bad, float) and rows_in is not None else max_bad):
        return
    of = "" if rows_in is None else f" of {rows_in:,}"
    summary = (
        f"{stage}: {count:,}{of} records were refused, more than max_bad={max_bad} allows; nothing was written. Repair "
        "the input, or allow more:"
    )
    raise TooManyBadRecordsError("\n".join([summary, *told_refused(refused, most=_SHOWN_KINDS)]))
