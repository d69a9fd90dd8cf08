"""What the parts of one task share: the desk, the counts, the memory, and which columns no batch has had."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from marin_zephyr.counters import RowCounts
from marin_zephyr.errors import SchemaError
from marin_zephyr.evaluation import with_nulls
from marin_zephyr.formats.rejects import Desk

if TYPE_CHECKING:
    from marin_zephyr.backends.care import Care

type Frames = Iterator[pl.DataFrame]

MEMORY = 1 << 30


@dataclass(kw_only=True)
class TaskContext:
    """The surroundings of one task.

    Attributes:
        desk: where refused records go.
        index: the task's number in its stage.
        home: the directory in which the task may write.
        memory: bytes that external merges may hold. It decides how a result is computed, never what it is.
        care: notes what the task is at, if it has killed a worker before.
        counts: each operation's name and counts; made when the chain is built, not when it first runs.
        frequent: of the keys that the task sends through an exchange: digest, example and least count of frequent ones.
        clashes: column of a small right side of a join -> whether the left has it, too.
        absent: place in the chain -> column that is named there -> whether every batch so far lacked it. By place,
            since what lacks a column at one has it, as nulls, at the next.
    """

    desk: Desk
    index: int
    home: Path
    memory: int = MEMORY
    care: Care | None = None
    counts: list[tuple[str, RowCounts]] = field(default_factory=list)
    frequent: list[tuple[str, str, int]] = field(default_factory=list)
    clashes: dict[str, bool] = field(default_factory=dict)
    absent: dict[str, dict[str, bool]] = field(default_factory=dict)

    def counter(self, name: str) -> RowCounts:
        """Fresh counts for the next operation of the chain."""
        self.counts.append((name, RowCounts()))
        return self.counts[-1][1]

    def note_clash(self, column: str, is_there: bool) -> None:
        """Notes whether the left side of a join has a column of the right, which all its batches must agree on."""
        check_clash(column, {is_there, self.clashes.setdefault(column, is_there)})

    def require(self, frame: pl.DataFrame, names: Sequence[str], place: str) -> pl.DataFrame:
        """``frame`` with null columns for the names that it lacks, and a note of those that no batch has had."""
        absent = self.absent.setdefault(place, {})
        for name in names:
            absent[name] = absent.get(name, True) and name not in frame.columns
        return with_nulls(frame, names)


def check_clash(column: str, found: set[bool]) -> None:
    """Refuses a column of the right that some rows of the left have and others lack: it would have two names."""
    if len(found) > 1:
        raise SchemaError(
            f"join: column {column!r} of the right is in some batches of the left and not in others, so it is unclear "
            "whether it gets the suffix; select the columns of the left before the join, or rename it"
        )


def nonempty(frames: Frames) -> Frames:
    """The frames that have rows."""
    return (frame for frame in frames if frame.height)
