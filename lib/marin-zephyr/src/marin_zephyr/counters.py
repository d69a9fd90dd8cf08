"""Counting: what every operation did with every row, and whatever else the caller's functions count.

Two identities hold for every operation, and are checked before a stage is committed:

- ``rows_in  = passed + filtered + rejected + consumed``
- ``rows_out = passed + produced``

`passed` rows go on (perhaps changed, one to one); `filtered` were left out by a predicate; `rejected` were refused with
a reason; `consumed` went into an operation that made other rows of them, which are `produced`. A reader passes the
records it takes and rejects those it does not.

A function of the caller may count anything by `count("name")`; the sums are in the report.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any

from marin_zephyr.errors import AccountingError


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


def check_written(operations: list[tuple[str, RowCounts]], num_rows: int) -> None:
    """Checks that as many rows were written as the last operation gave.

    Raises:
        AccountingError: rows went missing or came from nowhere.
    """
    name, counts = operations[-1]
    if counts.rows_out != num_rows:
        raise AccountingError(f"{name} gave {counts.rows_out:,} rows, {num_rows:,} were written")


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
