"""Joining: rows of two datasets with equal keys, side by side.

Both sides go through exchanges with the same number of partitions; each partition sorts both within the task's memory
and matches them in key order (`matching`). Each task that feeds an exchange also writes down the schema of its rows, so
that every partition knows the columns of both sides, whichever rows it was given: which names clash, which types the
keys have, and which columns are null where there is no partner.

Where the right side's input is small, and no row of it can come alone, it is kept in one place instead and read by
every task of the left, whose rows do not move at all. Which way is taken follows from the plan and the estimated size
of the input, never from the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl
import pyarrow as pa

from marin_zephyr.batching import batches
from marin_zephyr.context import Frames, TaskContext
from marin_zephyr.counters import RowCounts
from marin_zephyr.fingerprints import fingerprint
from marin_zephyr.frames import Schemas, conformed, to_frame, unify
from marin_zephyr.inputs import counted
from marin_zephyr.keyed.lookup import Offered, SmallJoined
from marin_zephyr.keyed.matching import NULL, matched
from marin_zephyr.keyed.ordering import Sorter
from marin_zephyr.keyed.sides import ONLY_LEFT, beside, check_comparable, renamed_columns
from marin_zephyr.nodes import FilterExpr, Join, JoinHow, Select
from marin_zephyr.outputs import Kept, Scattered
from marin_zephyr.planning import Builder, Open, num_partitions
from marin_zephyr.records import TaskFile, task_file
from marin_zephyr.shuffle.blocks import read_blocks
from marin_zephyr.shuffle.keys import KEY
from marin_zephyr.specs import blocks_path

_RIGHT = "\1right"
_SMALL_BYTES = 32 << 20


def expand(builder: Builder, node: Join) -> Open:
    """Three stages, or two if the right side is small; the last one open."""
    left, right = builder.open(node.left), builder.open(node.right)
    # Rows with a null in their key match nothing: where they cannot come alone, they do not travel.
    if node.how in ("inner", "right", "semi"):
        left = replace(left, ops=(*left.ops, _no_nulls(node.left_on)))
    if node.how not in ("right", "full"):
        right = replace(right, ops=(*right.ops, _no_nulls(node.right_on)))
    if node.how in ONLY_LEFT:
        right = replace(right, ops=(*right.ops, Select(tuple(map(pl.col, node.right_on)))))
    if right.weight <= _SMALL_BYTES and node.how not in ("right", "full"):
        kept = builder.close(replace(right, ops=(*right.ops, Offered())), "join-small", Kept(aside=True))
        small = SmallJoined(
            left_on=node.left_on,
            right_on=node.right_on,
            how=node.how,
            suffix=node.suffix,
            origin=kept.fingerprint,
            files=kept.rows_files,
        )
        return replace(left, ops=(*left.ops, small))
    num_parts = max(num_partitions(left), num_partitions(right))
    sent_left = builder.close(left, "join-left", JoinSide(on=node.left_on, num_partitions=num_parts))
    sent_right = builder.close(right, "join-right", JoinSide(on=node.right_on, num_partitions=num_parts))
    inputs = tuple(
        JoinInput(
            left=sent_left.blocks_files,
            right=sent_right.blocks_files,
            left_on=node.left_on,
            right_on=node.right_on,
            coalesced=node.how in ("right", "full"),
            partition=partition,
        )
        for partition in range(num_parts)
    )
    return replace(
        left,
        inputs=inputs,
        origin=fingerprint((sent_left.fingerprint, sent_right.fingerprint)),
        weight=left.weight + right.weight,
        ops=(Joined(left_on=node.left_on, right_on=node.right_on, how=node.how, suffix=node.suffix),),
    )


@dataclass(frozen=True, kw_only=True)
class JoinSide:
    """Output: rows scattered by key, and their schema."""

    on: tuple[str, ...]
    num_partitions: int

    def write(self, frames: Frames, context: TaskContext) -> list[TaskFile]:
        """Writes `blocks_path` and the schema beside it."""
        schemas = Schemas()

        def noted() -> Frames:
            for frame in frames:
                frame = context.require(frame, self.on, "join") if frame.height else frame
                # That of a batch which a filter has emptied, too: what is left of a side does not decide its columns.
                schemas.note(frame)
                yield frame

        scattered = Scattered(on=self.on, num_partitions=self.num_partitions, watched=True)
        files = scattered.write(noted(), context)
        path = _schema_path(blocks_path(context.home, context.index))
        path.write_bytes(schemas.unified(what="rows to join").serialize())
        return [*files, task_file(path, context.home, rows=0)]


@dataclass(frozen=True, kw_only=True)
class JoinInput:
    """One partition of both sides: the left's rows, then the right's with the column ``\\1right``.

    Each side begins with a frame without rows and has one schema throughout.
    """

    left: tuple[Path, ...]
    right: tuple[Path, ...]
    left_on: tuple[str, ...]
    right_on: tuple[str, ...]
    coalesced: bool
    """Whether keys of both sides stand in one column, and so need one type."""
    partition: int
    weight: int = 0

    @property
    def name(self) -> str:
        """Which partition."""
        return f"partition {self.partition} of {len(self.left)} and {len(self.right)} files"

    def frames(self, context: TaskContext, counts: RowCounts) -> Frames:
        """The partition's rows of both sides."""
        left, right = _schema(self.left, self.left_on), _schema(self.right, self.right_on)
        for mine, other in zip(self.left_on, self.right_on, strict=True):
            check_comparable((mine, left.field(mine).type), (other, right.field(other).type))
            if self.coalesced:
                one = [pa.schema({mine: left.field(mine).type}), pa.schema({mine: right.field(other).type})]
                dtype = unify(one, what="join").field(0).type
                left = left.set(left.get_field_index(mine), pa.field(mine, dtype))
                right = right.set(right.get_field_index(other), pa.field(other, dtype))
        yield from counted(self._side(self.left, left), counts)
        for frame in counted(self._side(self.right, right), counts):
            yield frame.with_columns(pl.lit(True).alias(_RIGHT))

    def _side(self, files: Sequence[Path], schema: pa.Schema) -> Frames:
        like = to_frame(schema.empty_table())
        yield like
        for path in files:
            for frame in read_blocks(path, self.partition):
                yield conformed(frame, like, what="rows to join")


@dataclass(frozen=True, kw_only=True)
class Joined:
    """Operation: the rows of a join, of one partition, in the order of keys, then left rows, then right rows."""

    left_on: tuple[str, ...]
    right_on: tuple[str, ...]
    how: JoinHow
    suffix: str

    @property
    def label(self) -> str:
        """``inner join on (id)``."""
        return f"{self.how} join on ({', '.join(self.left_on)})"

    def apply(self, frames: Frames, name: str, counts: RowCounts, context: TaskContext) -> Frames:
        """Batches of joined rows."""
        left = Sorter(context, on=self.left_on, side="left")
        right = Sorter(context, on=self.right_on, side="right")
        empty: list[pl.DataFrame] = []
        for frame in frames:
            counts.add(RowCounts(rows_in=frame.height, consumed=frame.height))
            sorter, on = (right, self.right_on) if _RIGHT in frame.columns else (left, self.left_on)
            frame = frame.drop(_RIGHT, strict=False).with_columns(pl.any_horizontal(pl.col(on).is_null()).alias(NULL))
            if not frame.height:
                empty.append(frame.with_columns(pl.lit(None, pl.Binary).alias(KEY)))
            sorter.add(frame)
        renamed = renamed_columns(empty[0].columns, empty[1].columns, on=self.right_on, suffix=self.suffix, name=name)
        every = matched(
            left.frames(),
            right.frames(),
            how=self.how,
            empty=(empty[0], empty[1]),
            memory=context.memory // 8,
            spool=context.home / f"spool-{context.index:05d}.blocks",
        )
        for made in batches(beside(p, renamed, left_on=self.left_on, right_on=self.right_on) for p in every):
            counts.produced += made.height
            yield made


def _no_nulls(on: Sequence[str]) -> FilterExpr:
    return FilterExpr(pl.all_horizontal(pl.col(name).is_not_null() for name in on))


def _schema_path(blocks: Path) -> Path:
    return blocks.with_suffix(".schema")


def _schema(files: Sequence[Path], on: Sequence[str]) -> pa.Schema:
    """The schema of all rows of a side; a key column that no row has is null."""
    schemas = dict.fromkeys(pa.ipc.read_schema(pa.py_buffer(_schema_path(path).read_bytes())) for path in files)
    return unify([*schemas, pa.schema({name: pa.null() for name in on})], what="rows to join")
