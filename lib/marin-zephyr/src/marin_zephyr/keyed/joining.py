"""Joining: rows of two datasets with equal keys, side by side.

Both sides go through exchanges with the same number of partitions; each partition sorts both within the task's memory
and matches them in key order (`matching`). Each task that feeds an exchange also writes down the schema of its rows, so
that every partition knows the columns of both sides, whichever rows it was given: which names clash, which types the
keys have, and which columns are null where there is no partner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

from marin_zephyr.context import Frames, TaskContext
from marin_zephyr.counters import RowCounts
from marin_zephyr.errors import SchemaError
from marin_zephyr.exchange import read_blocks
from marin_zephyr.fingerprints import fingerprint
from marin_zephyr.frames import conform, to_frame, unify
from marin_zephyr.inputs import counted
from marin_zephyr.keyed.matching import NULL, Pairs, matched
from marin_zephyr.keyed.ordering import Sorter
from marin_zephyr.keys import KEY
from marin_zephyr.merging import batches
from marin_zephyr.nodes import Join, JoinHow, Select
from marin_zephyr.outputs import Scattered
from marin_zephyr.planning import Builder, Open, num_partitions
from marin_zephyr.records import TaskFile, task_file
from marin_zephyr.specs import Stage, blocks_path

_RIGHT = "\1right"
_ONLY_LEFT = ("semi", "anti")


def expand(builder: Builder, node: Join) -> Open:
    """Three stages, the last one open."""
    left, right = builder.open(node.left), builder.open(node.right)
    if node.how in _ONLY_LEFT:
        keys = tuple(pl.col(name) for name in dict.fromkeys(node.right_on))
        right = Open(**{**vars(right), "ops": (*right.ops, Select(keys))})
    num_parts = max(num_partitions(left), num_partitions(right))
    sent_left = builder.close(left, "join-left", JoinSide(on=node.left_on, num_partitions=num_parts))
    sent_right = builder.close(right, "join-right", JoinSide(on=node.right_on, num_partitions=num_parts))
    inputs = tuple(
        JoinInput(
            left=_files(sent_left),
            right=_files(sent_right),
            left_on=node.left_on,
            right_on=node.right_on,
            coalesced=node.how in ("right", "full"),
            partition=partition,
        )
        for partition in range(num_parts)
    )
    return Open(
        inputs=inputs,
        origin=fingerprint((sent_left.fingerprint, sent_right.fingerprint)),
        weight=left.weight + right.weight,
        on_error=left.on_error,
        ops=(Joined(left_on=node.left_on, right_on=node.right_on, how=node.how, suffix=node.suffix),),
    )


@dataclass(frozen=True, kw_only=True)
class JoinSide:
    """Output: rows scattered by key, and their schema."""

    on: tuple[str, ...]
    num_partitions: int

    def write(self, frames: Frames, context: TaskContext) -> list[TaskFile]:
        """Writes `blocks_path` and the schema beside it."""
        schemas: dict[str, pa.Schema] = {}

        def noted() -> Frames:
            for frame in frames:
                if frame.height:
                    frame = context.require(frame, self.on)
                    schemas.setdefault(repr(frame.schema), frame.clear().to_arrow().schema)
                    yield frame

        scattered = Scattered(on=self.on, num_partitions=self.num_partitions, watched=True)
        files = scattered.write(noted(), context)
        path = _schema_path(blocks_path(context.home, context.index))
        path.write_bytes(unify(schemas.values(), what="rows to join").serialize())
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
            _check_comparable(left.field(mine), right.field(other))
            if self.coalesced:
                one = [pa.schema({mine: left.field(mine).type}), pa.schema({mine: right.field(other).type})]
                dtype = unify(one, what="join").field(0).type
                left = left.set(left.get_field_index(mine), pa.field(mine, dtype))
                right = right.set(right.get_field_index(other), pa.field(other, dtype))
        yield from counted(self._side(self.left, left), counts)
        for frame in counted(self._side(self.right, right), counts):
            yield frame.with_columns(pl.lit(True).alias(_RIGHT))

    def _side(self, files: Sequence[Path], schema: pa.Schema) -> Frames:
        yield to_frame(schema.empty_table())
        for path in files:
            for frame in read_blocks(path, self.partition):
                yield to_frame(conform(frame.to_arrow(), schema, what="rows to join"))


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
        renamed = _renamed(empty[0].columns, empty[1].columns, on=self.right_on, suffix=self.suffix, name=name)
        pairs = matched(
            left.frames(),
            right.frames(),
            how=self.how,
            empty=(empty[0], empty[1]),
            memory=context.memory // 8,
            spool=context.home / f"spool-{context.index:05d}.blocks",
        )
        for made in batches(self._rows(p, renamed) for p in pairs):
            counts.produced += made.height
            yield made

    def _rows(self, pairs: Pairs, renamed: dict[str, str]) -> pl.DataFrame:
        """The columns of the left, its keys filled from the right's where there is no left row, and the right's."""
        left = _taken(pairs.left.drop(KEY, NULL, strict=False), pairs.left_rows)
        if self.how in _ONLY_LEFT:
            return left
        if (pairs.left_rows < 0).any():
            keys = _taken(pairs.right.select(self.right_on), pairs.right_rows)
            is_alone = pl.Series(pairs.left_rows < 0)
            left = left.with_columns(
                pl.when(is_alone).then(keys.get_column(other)).otherwise(pl.col(mine)).alias(mine)
                for mine, other in zip(self.left_on, self.right_on, strict=True)
            )
        right = _taken(pairs.right.select(list(renamed)), pairs.right_rows)
        return left.hstack(right.rename(renamed)) if renamed else left


def _taken(frame: pl.DataFrame, rows: np.ndarray) -> pl.DataFrame:
    """The rows at these positions; all null for -1."""
    if not (rows < 0).any():
        return frame[rows]
    where = pl.Series(rows).replace(-1, None)
    if not frame.height:
        return frame.clear(len(rows))
    return frame.select(pl.all().gather(where))


def _renamed(left: Sequence[str], right: Sequence[str], *, on: Sequence[str], suffix: str, name: str) -> dict[str, str]:
    """The right columns that the result has, and what they are called there."""
    others = [column for column in right if column not in (*on, KEY, NULL)]
    renamed = {column: column + suffix if column in left else column for column in others}
    taken = [*left, *(column for column in others if renamed[column] == column)]
    for column, new in renamed.items():
        if column != new and new in taken:
            raise SchemaError(f"{name}: column {column!r} is in both, and there is a {new!r} already; choose a suffix")
    return renamed


def _files(stage: Stage) -> tuple[Path, ...]:
    return tuple(blocks_path(stage.spec.home, task) for task in range(len(stage.inputs)))


def _schema_path(blocks: Path) -> Path:
    return blocks.with_suffix(".schema")


def _schema(files: Sequence[Path], on: Sequence[str]) -> pa.Schema:
    """The schema of all rows of a side; a key column that no row has is null."""
    schemas = dict.fromkeys(pa.ipc.read_schema(pa.py_buffer(_schema_path(path).read_bytes())) for path in files)
    return unify([*schemas, pa.schema({name: pa.null() for name in on})], what="rows to join")


def _check_comparable(left: pa.Field, right: pa.Field) -> None:
    kinds = [_kind(field.type) for field in (left, right)]
    if kinds[0] != kinds[1] and None not in kinds:
        raise SchemaError(
            f"join: key {left.name!r} of the left is {left.type}, {right.name!r} of the right is {right.type}, and no "
            "value of one equals one of the other; convert one of them"
        )


def _kind(dtype: pa.DataType) -> str | None:
    """What values of a type may be equal to; None for a column of nothing but nulls."""
    made = pl.Series(values=pa.array([], dtype)).dtype
    if made == pl.Null:
        return None
    if made.is_numeric():
        return "number"
    if made in (pl.String, pl.Categorical, pl.Enum):
        return "string"
    if isinstance(made, pl.Datetime):
        return "instant" if made.time_zone else "datetime"
    return "list" if made.is_nested() and not isinstance(made, pl.Struct) else made.base_type().__name__
