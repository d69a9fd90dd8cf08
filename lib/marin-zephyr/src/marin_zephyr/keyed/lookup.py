"""Joining with a small side: the right's rows are read by every task, and the left's do not move.

Which right columns get the suffix depends on the left's columns, and no task sees more than its own rows. So each notes
what it found (`TaskContext.note_clash`), and batches or tasks that disagree are an error, never two names for one
column.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pyarrow as pa

from marin_zephyr.batching import batches
from marin_zephyr.context import Frames, TaskContext, nonempty
from marin_zephyr.counters import RowCounts
from marin_zephyr.frames import concat
from marin_zephyr.keyed.matching import pairs
from marin_zephyr.keyed.sides import beside, check_comparable, coded, renamed_columns
from marin_zephyr.nodes import JoinHow
from marin_zephyr.shuffle.blocks import read_blocks
from marin_zephyr.shuffle.keys import KEY


@dataclass(frozen=True, kw_only=True)
class Offered:
    """Operation: the rows go on, but not as rows of the result: other tasks look things up in them."""

    @property
    def label(self) -> str:
        """What becomes of them."""
        return "given to every task of a join"

    def apply(self, frames: Frames, name: str, counts: RowCounts, context: TaskContext) -> Frames:
        """The same frames."""
        for frame in frames:
            counts.add(RowCounts(rows_in=frame.height, consumed=frame.height))
            yield frame


@dataclass(frozen=True, kw_only=True)
class SmallJoined:
    """Operation: the rows of a join with a right side that memory holds, in the order of the left."""

    left_on: tuple[str, ...]
    right_on: tuple[str, ...]
    how: JoinHow
    suffix: str
    origin: str
    """The fingerprint of the right side."""
    files: tuple[Path, ...] = field(metadata={"counts": False})
    """Where its rows lie, which no result depends on."""

    @property
    def label(self) -> str:
        """``inner join on (id), in memory``."""
        return f"{self.how} join on ({', '.join(self.left_on)}), in memory"

    def apply(self, frames: Frames, name: str, counts: RowCounts, context: TaskContext) -> Frames:
        """Each batch joined."""
        right: pl.DataFrame | None = None
        for frame in nonempty(frames):
            right = self._right() if right is None else right
            frame = context.require(frame, self.left_on, name)
            counts.add(RowCounts(rows_in=frame.height, consumed=frame.height))
            for mine, other in zip(self.left_on, self.right_on, strict=True):
                check_comparable((mine, _arrow_type(frame, mine)), (other, _arrow_type(right, other)))
            renamed = renamed_columns(frame.columns, right.columns, on=self.right_on, suffix=self.suffix, name=name)
            for column in renamed:
                context.note_clash(column, column in frame.columns)
            left = coded(frame, self.left_on)
            slices = pairs(left, right, how=self.how, decided=(0, 0), memory=context.memory // 8)
            for made in batches(beside(p, renamed, left_on=self.left_on, right_on=self.right_on) for p in slices):
                counts.produced += made.height
                yield made

    def _right(self) -> pl.DataFrame:
        held = [frame for path in self.files for frame in read_blocks(path) if frame.height]
        frame = concat(held, what="rows to join") if held else pl.DataFrame()
        lacking = [pl.Series(name, [], pl.Null) for name in self.right_on if name not in frame.columns]
        return coded(frame.with_columns(lacking), self.right_on).sort(KEY, maintain_order=True)


def _arrow_type(frame: pl.DataFrame, name: str) -> pa.DataType:
    return frame.select(name).clear().to_arrow().schema.field(0).type
