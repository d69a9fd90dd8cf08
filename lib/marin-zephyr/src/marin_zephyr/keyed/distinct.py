"""Distinct: one row a key, without moving a row.

The first stage drops what it can see to be repeated, keeps the rest of each shard's rows in a block file and sends only
(digest, shard, position) through the exchange; the second picks the survivors of each key and sends their positions
back to their shard; the third reads the kept rows in order and goes on. So rows keep their order, wide rows cost no
shuffle, and a key costs 32 bytes a row and not even that where its repeats lie close together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from marin_zephyr.context import Frames, TaskContext, nonempty
from marin_zephyr.counters import RowCounts
from marin_zephyr.nodes import Distinct
from marin_zephyr.outputs import Scattered
from marin_zephyr.planning import Builder, Open, num_partitions, partition_inputs
from marin_zephyr.records import TaskFile, task_file
from marin_zephyr.shuffle.blocks import BlockWriter, read_blocks
from marin_zephyr.shuffle.keys import key_digests, partitions
from marin_zephyr.specs import blocks_path, rows_path

_RECENT = 1 << 18
_HIGH, _LOW = "\1high", "\1low"  # columns of the key's digest between the first stage's operation and its output
_BYTES_A_ROW = 1000  # a guess
_BYTES_A_KEY = 32
_KEY_SCHEMA = {"high": pl.UInt64, "low": pl.UInt64, "shard": pl.Int64, "row": pl.Int64}


def expand(builder: Builder, node: Distinct) -> Open:
    """Three stages, the last one open."""
    upstream = builder.open(node.upstream)
    upstream = replace(upstream, ops=(*upstream.ops, DropRepeats(on=node.on, keep=node.keep)))
    num_shards, num_parts = len(upstream.inputs), num_partitions(upstream)
    keys = builder.close(upstream, "distinct-keys", KeptWithKeys(num_partitions=num_parts))
    positions = partition_inputs(keys, num_parts, weight=upstream.weight)
    exchange = replace(upstream, inputs=positions, origin=keys.fingerprint, ops=(PickSurvivors(keep=node.keep),))
    to_shards = Scattered(column="shard", num_partitions=num_shards)
    picks = builder.close(exchange, "distinct-pick", to_shards, internal=True)
    decisions = picks.blocks_files
    inputs = tuple(
        SurvivorsInput(rows=rows, decisions=decisions, shard=shard, weight=upstream.inputs[shard].weight)
        for shard, rows in enumerate(keys.rows_files)
    )
    return replace(upstream, inputs=inputs, origin=picks.fingerprint, ops=())


@dataclass(frozen=True, kw_only=True)
class DropRepeats:
    """Operation: drops rows that cannot survive, as far as bounded memory tells, and adds the digests of the others.

    Within a batch all repeats are seen. The first of a key is also remembered from batch to batch, in a table in which
    a digest has one place and pushes out whatever lies there: what is forgotten is left to the exchange.
    """

    on: tuple[str, ...] | None
    keep: Literal["first", "last"]

    @property
    def label(self) -> str:
        """``distinct(keep=first) of a shard``."""
        return f"distinct(keep={self.keep}) of a shard"

    def apply(self, frames: Frames, name: str, counts: RowCounts, context: TaskContext) -> Frames:
        """The frames without repeats, with the columns ``_HIGH`` and ``_LOW``."""
        recent = _Recent(_RECENT) if self.keep == "first" else None
        for frame in nonempty(frames):
            frame = context.require(frame, self.on or (), name)
            digests = key_digests(frame, self.on)
            fresh = _distinct_in(digests, self.keep)
            if recent is not None:
                fresh &= ~recent.seen(digests)
                recent.add(digests[fresh])
            columns = [pl.Series(_HIGH, digests[:, 0]), pl.Series(_LOW, digests[:, 1])]
            made = frame.with_columns(columns).filter(pl.Series(fresh))
            counts.add(RowCounts(rows_in=frame.height, passed=made.height, consumed=frame.height - made.height))
            yield made


def _distinct_in(digests: np.ndarray, keep: Literal["first", "last"]) -> np.ndarray:
    """Which rows of a batch are the first, or the last, of their digest in it."""
    keys = pl.DataFrame({"high": digests[:, 0], "low": digests[:, 1]}).with_row_index("row")
    kept = keys.unique(["high", "low"], keep=keep).get_column("row").to_numpy()
    mask = np.zeros(len(digests), dtype=bool)
    mask[kept] = True
    return mask


class _Recent:
    """Digests seen before, at most ``num_slots`` of them, a power of two; 16 bytes each."""

    def __init__(self, num_slots: int) -> None:
        slots = np.arange(num_slots, dtype=np.uint64)
        self._table = np.stack([slots, ~slots], axis=1)  # no digest equals what lies in its own place

    def seen(self, digests: np.ndarray) -> np.ndarray:
        """Which of the digests are surely not new."""
        return (self._table[self._slots(digests)] == digests).all(axis=1)

    def add(self, digests: np.ndarray) -> None:
        """Remembers digests that differ."""
        self._table[self._slots(digests)] = digests

    def _slots(self, digests: np.ndarray) -> np.ndarray:
        return digests[:, 1] & np.uint64(len(self._table) - 1)


@dataclass(frozen=True, kw_only=True)
class KeptWithKeys:
    """Output: the rows in one block file, and their keys' digests scattered over another."""

    num_partitions: int

    @property
    def strategy(self) -> str:
        """How, for people."""
        return "rows stay where they are; only digests of their keys and their positions are exchanged"

    def exchanged(self, weight: int) -> int:
        """About the bytes sent for so many bytes of rows."""
        return weight // _BYTES_A_ROW * _BYTES_A_KEY

    def write(self, frames: Frames, context: TaskContext) -> list[TaskFile]:
        """Writes `rows_path` and `blocks_path`."""
        home, index = context.home, context.index
        rows = BlockWriter(rows_path(home, index), 1)
        keys = BlockWriter(blocks_path(home, index), self.num_partitions)
        for frame in nonempty(frames):
            high = frame.get_column(_HIGH)
            positions = {
                "high": high,
                "low": frame.get_column(_LOW),
                "shard": np.full(frame.height, index, dtype=np.int64),
                "row": np.arange(rows.rows, rows.rows + frame.height),
            }
            where = partitions(high.to_numpy()[:, None], self.num_partitions)
            keys.scatter(pl.DataFrame(positions, schema=_KEY_SCHEMA), where)
            made = frame.drop(_HIGH, _LOW)
            rows.write(made if made.width else pl.DataFrame(height=frame.height))
        rows.close()
        keys.close()
        written = [(rows_path(home, index), rows.rows), (blocks_path(home, index), keys.rows)]
        return [task_file(path, home, rows=n) for path, n in written]


@dataclass(frozen=True, kw_only=True)
class PickSurvivors:
    """Operation: of each digest the first or the last position; keys come in the order of shards and rows."""

    keep: Literal["first", "last"]

    @property
    def label(self) -> str:
        """``distinct(keep=first)``."""
        return f"distinct(keep={self.keep})"

    def apply(self, frames: Frames, name: str, counts: RowCounts, context: TaskContext) -> Frames:
        """One frame of ``shard`` and ``row``, sorted."""
        keys = pl.concat([pl.DataFrame(schema=_KEY_SCHEMA), *frames])
        survivors = keys.unique(["high", "low"], keep=self.keep, maintain_order=True).select("shard", "row")
        counts.add(RowCounts(rows_in=keys.height, passed=survivors.height, consumed=keys.height - survivors.height))
        yield survivors.sort("shard", "row")


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
            mask = np.zeros(frame.height, dtype=bool)
            mask[kept[low:high] - start] = True
            made = frame.filter(pl.Series(mask))
            counts.add(RowCounts(rows_in=frame.height, passed=made.height, consumed=frame.height - made.height))
            start += frame.height
            yield made
