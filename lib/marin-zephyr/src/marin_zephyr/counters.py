"""Counting: what every operation did with every row, and whatever else the caller's functions count.

Two identities hold for every operation, and are checked before a stage is committed:

- ``rows_in  = passed + filtered + rejected + consumed``
- ``rows_out = passed + produced``

`passed` rows go on (perhaps changed, one to one); `filtered` were left out by a predicate; `rejected` were refused with
a reason; `consumed` went into an operation that made other rows of them, which are `produced`. A reader passes the
records it takes and rejects those it does not.

A function of the caller may count anything by `count("name")`; the sums are in the report. What is refused is also
counted by the kind of reason, with one example of each.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from marin_zephyr.errors import AccountingError, TooManyBadRecordsError

if TYPE_CHECKING:
    from marin_zephyr.specs import Stage


@dataclass
class RowCounts:
    """What became of the rows of one operation. Sums of these are again such."""

    rows_in: int = 0
    passed: int = 0
    filtered: int = 0
    rejected: int = 0
    consumed: int = 0
    produced: int = 0

    @property
    def rows_out(self) -> int:
        """Rows that go on to the next operation."""
        return self.passed + self.produced

    def add(self, other: RowCounts) -> None:
        """Adds another's counts to these."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def check(self, operation: str) -> None:
        """Raises `AccountingError` unless every row in is accounted for."""
        seen = self.passed + self.filtered + self.rejected + self.consumed
        if self.rows_in != seen:
            raise AccountingError(f"{operation}: {self.rows_in:,} rows in, {seen:,} accounted for ({self})")

    def to_json(self) -> dict[str, int]:
        """As a dict, ``rows_out`` included."""
        return {**asdict(self), "rows_out": self.rows_out}

    @classmethod
    def from_json(cls, data: dict[str, int]) -> RowCounts:
        """The inverse of `to_json`."""
        return cls(**{field.name: data[field.name] for field in fields(cls)})


def check_chain(operations: list[tuple[str, RowCounts]]) -> None:
    """Checks each operation, and that what one gives the next one takes.

    Raises:
        AccountingError: rows went missing or came from nowhere.
    """
    for name, counts in operations:
        counts.check(name)
    for (before, given), (after, taken) in pairwise(operations):
        if given.rows_out != taken.rows_in:
            raise AccountingError(f"{before} gave {given.rows_out:,} rows, {after} took {taken.rows_in:,}")


_current: ContextVar[dict[str, int] | None] = ContextVar("marin_zephyr_counters", default=None)


def count(name: str, n: int = 1) -> None:
    """Adds ``n`` to the counter ``name`` of the task that is running; outside of a task it does nothing."""
    counters = _current.get()
    if counters is not None:
        counters[name] = counters.get(name, 0) + n


class collecting:  # noqa: N801  used as a context, like contextlib's own
    """Collects what `count` counts while it is entered."""

    def __enter__(self) -> dict[str, int]:
        self._counters: dict[str, int] = {}
        self._token = _current.set(self._counters)
        return self._counters

    def __exit__(self, *error: Any) -> None:
        _current.reset(self._token)


def merge(totals: dict[str, int], more: dict[str, int]) -> None:
    """Adds ``more`` to ``totals`` in place."""
    for name, n in more.items():
        totals[name] = totals.get(name, 0) + n


type Refused = dict[str, dict[str, Any]]
"""Kind of a reason -> ``count`` of the records refused for it, and the first of them as ``example``."""

_MAX_KINDS = 50
_MAX_EXAMPLE = 300
_SHOWN_KINDS = 5


def add_refused(totals: Refused, kind: str, num_records: int, example: str) -> None:
    """Counts refused records by kind, in place; kinds beyond the fiftieth are counted together."""
    if kind not in totals and len(totals) >= _MAX_KINDS:
        kind = "other reasons"
    entry = totals.setdefault(kind, {"count": 0, "example": example[:_MAX_EXAMPLE]})
    entry["count"] += num_records


def check_limit(stage: Stage, refused: Refused, rows_in: int | None) -> None:
    """Checks a stage's ``max_bad``, a number of records or, if below 1, a share of the rows that the stage reads.

    Args:
        stage: the stage.
        refused: what was refused, so far or in all.
        rows_in: rows that the whole stage reads; None while that is not known, when only a number is checked.

    Raises:
        TooManyBadRecordsError: more records were refused.
    """
    count = sum(entry["count"] for entry in refused.values())
    limit = stage.max_bad
    if limit is None or (isinstance(limit, float) and rows_in is None):
        return
    if count <= (limit * rows_in if isinstance(limit, float) and rows_in is not None else limit):
        return
    of = "" if rows_in is None else f" of {rows_in:,}"
    kinds = sorted(refused.items(), key=lambda entry: -entry[1]["count"])
    told = "".join(f"\n  {entry['count']:,} x {kind}, as in {entry['example']}" for kind, entry in kinds[:_SHOWN_KINDS])
    more = f"\n  and {len(kinds) - _SHOWN_KINDS} kinds more" if len(kinds) > _SHOWN_KINDS else ""
    raise TooManyBadRecordsError(
        f"{stage.spec.name}: {count:,}{of} records were refused, more than max_bad={limit} allows; nothing was "
        f"written. Repair the input, or allow more:{told}{more}"
    )


def merge_refused(totals: Refused, more: Refused) -> None:
    """Adds ``more`` to ``totals`` in place; the earlier example stays."""
    for kind, entry in more.items():
        add_refused(totals, kind, entry["count"], entry["example"])
