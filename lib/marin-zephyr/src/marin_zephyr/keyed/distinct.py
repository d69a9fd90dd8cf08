"""Distinct: one row a key, without moving a row.

The first stage keeps each shard's rows in a block file and sends only (digest, shard, position) through the exchange;
the second picks the survivors of each key and sends their positions back to their shard; the third reads the kept rows
in order and goes on. So rows keep their order, wide rows cost no shuffle, and one hot key costs 32 bytes a row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from marin_zephyr.context import Frames, TaskContext, nonempty
from marin_zephyr.counters import RowCounts
from marin_zephyr.exchange import BlockWriter, read_blocks
from marin_zephyr.keys import key_digests, partitions
from marin_zephyr.nodes import Distinct
from marin_zephyr.outputs import Scattered
from marin_zephyr.planning import Builder, Open, num_partitions, partition_inputs
from marin_zephyr.records import TaskFile, task_file
from marin_zephyr.specs import blocks_path, rows_path

_KEY_SCHEMA = {"high": pl.UInt64, "low": pl.UInt64, "shard": pl.Int64, "row": pl.Int64}


def expand(builder: Builder, node: Distinct) -> Open:
    """Three stages, the last one open."""
    upstream = builder.open(node.upstream)
    num_shards, num_parts = len(upstream.inputs), num_partitions(upstream)
    keys = builder.close(upstream, "distinct-keys", KeptWithKeys(on=node.on, num_partitions=num_parts))
    exchange = Open(
        inputs=partition_inputs(keys, num_shards, num_parts),
        origin=keys.fingerprint,
        weight=upstream.weight,
        on_error=upstream.on_error,
        ops=(PickSurvivors(keep=node.keep),),
    )
    picks = builder.close(
        exchange, "distinct-pick", Scattered(column="shard", num_partitions=num_shards), internal=True
    )
    decisions = tuple(blocks_path(picks.spec.home, task) for task in range(num_parts))
    inputs = tuple(
        SurvivorsInput(
            rows=rows_path(keys.spec.home, shard),
            decisions=decisions,
            shard=shard,
            weight=upstream.inputs[shard].weight,
        )
        for shard in range(num_shards)
    )
    return replace(upstream, inputs=inputs, origin=picks.fingerprint, ops=())


@dataclass(frozen=True, kw_only=True)
class KeptWithKeys:
    """Output: the rows in one block file, and their keys' digests scattered over another."""

    on: tuple[str, ...] | None
    num_partitions: int

    def write(self, frames: Frames, context: TaskContext) -> list[TaskFile]:
        """Writes `rows_path` and `blocks_path`."""
        home, index = context.home, context.index
        rows = BlockWriter(rows_path(home, index), 1)
        keys = BlockWriter(blocks_path(home, index), self.num_partitions)
        for frame in nonempty(frames):
            frame = context.require(frame, self.on or ())
            digests = key_digests(frame, self.on)
            positions = {
                "high": digests[:, 0],
                "low": digests[:, 1],
                "shard": np.full(frame.height, index, dtype=np.int64),
                "row": np.arange(rows.rows, rows.rows + frame.height),
            }
            keys.scatter(pl.DataFrame(positions, schema=_KEY_SCHEMA), partitions(digests, self.num_partitions))
            rows.write(frame)
        rows.close()
        keys.close()
        written = [(rows_path(home, index), rows.rows), (blocks_path(home, index), keys.rows)]
        return [task_file(path, home, rows=n) for path, n in written]


@dataclass(frozen=True, kw_only=True)
class PickSurvivors:
    """Operation: of each digest the first or the last (shard, row); survivors come sorted by position."""

    keep: str

    @property
    def label(self) -> str:
        """``distinct(keep=first)``."""
        return f"distinct(keep={self.keep})"

    def apply(self, frames: Frames, name: str, counts: RowCounts, context: TaskContext) -> Frames:
        """One frame of ``shard`` and ``row``."""
        keys = pl.concat([pl.DataFrame(schema=_KEY_SCHEMA), *frames])
        ordered = keys.sort("high", "low", "shard", "row")
        new_key = (pl.struct("high", "low") != pl.struct("high", "low").shift(1)).fill_null(True)
        starts = ordered.select(new_key).to_series().to_numpy()
        kept = starts if self.keep == "first" else np.roll(starts, -1)
        survivors = ordered.filter(pl.Series(kept)).select("shard", "row").sort("shard", "row")
        counts.add(RowCounts(rows_in=keys.height, passed=survivors.height, consumed=keys.height - survivors.height))
        yield survivors


@dataclass(frozen=True, kw_only=True)
class SurvivorsInput:
    """The rows of one shard that were picked."""

    rows: Path
    decisions: tuple[Path, ...]
    shard: int
    weight: int

    @property
    def name(self) -> str:
        """Which shard."""
        return f"shard {self.shard}"

    def frames(self, context: TaskContext, counts: RowCounts) -> Frames:
        """The kept rows at the positions that the exchange sent back."""
        decided = [frame for path in self.decisions for frame in read_blocks(path, self.shard)]
        picked = [np.empty(0, dtype=np.int64), *(f.get_column("row").to_numpy() for f in decided)]
        kept = np.sort(np.concatenate(picked))
        start = 0
        for frame in read_blocks(self.rows):
            low, high = np.searchsorted(kept, [start, start + frame.height])
            made = frame[kept[low:high] - start]
            counts.add(RowCounts(rows_in=frame.height, passed=made.height, consumed=frame.height - made.height))
            start += frame.height
            yield made
