"""Grouping: one row a key with aggregates of its rows.

Each shard aggregates first, batch by batch, and sends one row a key; the other side of the exchange joins those, key by
key in canonical order. So a hot key costs one row a shard, however many rows it has, and neither side holds more than
the task's memory: a shard of very many keys sends what it has gathered and starts anew (a key then comes more than
once, which changes nothing), and a large partition is sorted on disk.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from marin_zephyr.batching import batches, row_bytes, stack
from marin_zephyr.columns import Aggregate, first
from marin_zephyr.context import Frames, TaskContext, nonempty
from marin_zephyr.counters import RowCounts
from marin_zephyr.errors import SchemaError
from marin_zephyr.keyed.aggregating import joined, states, values
from marin_zephyr.keyed.ordering import Sorter
from marin_zephyr.nodes import GroupBy
from marin_zephyr.outputs import Scattered
from marin_zephyr.planning import Builder, Open, num_partitions, partition_inputs
from marin_zephyr.shuffle.keys import KEY, encode

# Counted by the rows alone, not by the memory that there is or that a layout takes: they decide how float sums round.
_GATHERED_ROWS = 200_000
_GATHERED_BYTES = 8 << 20


def expand(builder: Builder, node: GroupBy) -> Open:
    """Two stages, the last one open."""
    upstream = builder.open(node.upstream)
    num_parts = num_partitions(upstream)
    partial = PartialAggregates(keys=node.keys, aggregates=node.aggregates)
    upstream = replace(upstream, ops=(*upstream.ops, partial))
    exchange = builder.close(upstream, "group-partial", Scattered(on=node.keys, num_partitions=num_parts))
    inputs = partition_inputs(exchange, num_parts, weight=upstream.weight)
    combined = CombinedAggregates(keys=node.keys, aggregates=node.aggregates)
    return replace(upstream, inputs=inputs, origin=exchange.fingerprint, ops=(combined,))


@dataclass(frozen=True, kw_only=True)
class PartialAggregates:
    """Operation: a row a key with the states of its aggregates, of one shard's rows."""

    keys: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]

    @property
    def label(self) -> str:
        """``partial aggregates of (domain)``."""
        return f"partial aggregates of ({', '.join(self.keys)})"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it reads."""
        return tuple(dict.fromkeys([*self.keys, *(a.column for a in self.aggregates if a.column is not None)]))

    def apply(self, frames: Frames, name: str, counts: RowCounts, context: TaskContext) -> Frames:
        """Few frames: what was gathered until it was too much, each key's rows joined."""
        held: list[pl.DataFrame] = []
        rows = size = 0
        for frame in nonempty(frames):
            counts.add(RowCounts(rows_in=frame.height, consumed=frame.height))
            whole = context.require(frame, self.columns, name)
            held.append(self._states(whole.select(self.columns), name))
            rows, size = rows + held[-1].height, size + int(row_bytes(held[-1]).sum())
            if rows <= _GATHERED_ROWS and size <= _GATHERED_BYTES:
                continue
            made = self._joined(held, name)
            held, rows, size = [made], made.height, int(row_bytes(made).sum())
            if rows > _GATHERED_ROWS // 2 or size > _GATHERED_BYTES // 2:  # too many keys: joining them gains little
                counts.produced += made.height
                yield made
                held, rows, size = [], 0, 0
        if held:
            made = self._joined(held, name)
            counts.produced += made.height
            yield made

    def _states(self, frame: pl.DataFrame, name: str) -> pl.DataFrame:
        if any(frame.schema[key].is_nested() for key in self.keys):
            by, aggregates = (KEY,), _carrying(self.keys, self.aggregates)
            frame = frame.with_columns(encode(frame, self.keys))
        else:  # Polars tells such keys apart as `shuffle.keys` does, within one frame
            by, aggregates = self.keys, self.aggregates
        try:
            return states(frame, by, aggregates, name=name).drop(KEY, strict=False)
        except pl.exceptions.PolarsError as e:
            raise SchemaError(f"{name}: {e}") from e

    def _joined(self, held: list[pl.DataFrame], name: str) -> pl.DataFrame:
        if len(held) == 1:
            return held[0]
        frame = stack(held)
        frame = frame.with_columns(encode(frame, self.keys))
        return joined(frame, (KEY,), _carrying(self.keys, self.aggregates)).drop(KEY)


@dataclass(frozen=True, kw_only=True)
class CombinedAggregates:
    """Operation: a row a key with its aggregates, of one partition's states, in canonical order."""

    keys: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]

    @property
    def label(self) -> str:
        """``combined aggregates of (domain)``."""
        return f"combined aggregates of ({', '.join(self.keys)})"

    def apply(self, frames: Frames, name: str, counts: RowCounts, context: TaskContext) -> Frames:
        """Batches of whole keys."""
        sorter = Sorter(context, on=self.keys)
        for frame in frames:
            counts.add(RowCounts(rows_in=frame.height, consumed=frame.height))
            sorter.add(frame)
        for frame in batches(self._whole_keys(sorter.frames())):
            counts.produced += frame.height
            yield values(frame, self.keys, self.aggregates, name=name)

    def _whole_keys(self, frames: Frames) -> Frames:
        """One row a key. The last key of a frame may go on in the next, and is held back."""
        aggregates = _carrying(self.keys, self.aggregates)
        last: pl.DataFrame | None = None
        for frame in frames:
            made = frame if last is None else pl.concat([last, frame.select(last.columns)])
            made = joined(made, (KEY,), aggregates)
            last = made[-1:]
            yield made[:-1].drop(KEY)
        if last is not None:
            yield last.drop(KEY)


def _carrying(keys: tuple[str, ...], aggregates: tuple[Aggregate, ...]) -> tuple[Aggregate, ...]:
    """The aggregates and the key columns themselves, where rows are grouped by code."""
    return (*(first(key).named(key) for key in keys), *aggregates)
