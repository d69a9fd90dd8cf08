"""Sorting: all rows in one order over all part files. Rows move once.

The first stage writes each shard as sorted runs and takes a sample of its keys; the second cuts the samples into ranges
of about equal numbers of rows and settles one type for each column; in the third each task merges one range of all
runs, and reads no more than the blocks in which it may lie. All rows of a key belong to one range, however hot it is.

Invariant: the rows, their types and the batches they come in depend on the input alone. A sample is drawn by the rows'
positions, the number of ranges follows from the estimated size of the input, and what memory decides (runs, merges)
leaves no trace.

See: DeWitt, Naughton and Schneider, "Parallel sorting on a shared-nothing architecture", PDIS 1991 (sample sort).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

from marin_zephyr.batching import batches
from marin_zephyr.context import Frames, TaskContext, nonempty
from marin_zephyr.counters import RowCounts
from marin_zephyr.frames import Schemas, conformed, to_frame
from marin_zephyr.inputs import counted
from marin_zephyr.nodes import Sort
from marin_zephyr.planning import Builder, Open, num_partitions
from marin_zephyr.records import TaskFile, task_file
from marin_zephyr.shuffle.blocks import BlockWriter, read_blocks
from marin_zephyr.shuffle.keys import KEY, encode
from marin_zephyr.shuffle.merging import merged
from marin_zephyr.shuffle.runs import read_runs, write_runs
from marin_zephyr.specs import blocks_path, rows_path

_WEIGHT = "weight"
_WHAT = "rows to sort"
_SAMPLED = 1 << 16
_SHOWN_BYTES = 256


def expand(builder: Builder, node: Sort) -> Open:
    """Three stages, the last one open."""
    upstream = builder.open(node.upstream)
    num_shards, num_ranges = len(upstream.inputs), num_partitions(upstream)
    output = SortedRuns(
        by=node.by,
        descending=node.descending,
        nulls_last=node.nulls_last,
        sampled=max(16, min(1024, _SAMPLED // num_shards)),
    )
    runs = builder.close(upstream, "sort-runs", output)
    samples = SamplesInput(files=runs.blocks_files)
    sampled = Open(inputs=(samples,), origin=runs.fingerprint, weight=0, on_error=upstream.on_error)
    bounds = builder.close(sampled, "sort-ranges", Ranges(num_ranges=num_ranges), internal=True)
    files, (ranges,), each = runs.rows_files, bounds.blocks_files, upstream.weight // num_ranges
    inputs = tuple(RangeInput(files=files, ranges=ranges, number=number, weight=each) for number in range(num_ranges))
    return replace(upstream, inputs=inputs, origin=bounds.fingerprint, ops=())


@dataclass(frozen=True, kw_only=True)
class SortedRuns:
    """Output: a shard's rows as sorted runs, and beside them a sample of its keys and its schema.

    Attributes:
        by: the key columns.
        descending: one for each.
        nulls_last: whether nulls come last.
        sampled: how many keys to sample.
    """

    by: tuple[str, ...]
    descending: tuple[bool, ...]
    nulls_last: bool
    sampled: int

    def write(self, frames: Frames, context: TaskContext) -> list[TaskFile]:
        """Writes `rows_path` (`shuffle.runs`) and `blocks_path` (the sample, and a block of no rows)."""
        home, index = context.home, context.index
        sample = _Sample(self.sampled, seed=index)
        schemas = Schemas()

        def keyed() -> Frames:
            for frame in nonempty(frames):
                frame = context.require(frame, self.by, "sort")
                codes = encode(frame, self.by, descending=self.descending, nulls_last=self.nulls_last)
                sample.add(codes)
                made = frame.with_columns(codes)
                schemas.note(made)
                yield made

        rows = write_runs(rows_path(home, index), keyed(), memory=context.memory)
        writer = BlockWriter(blocks_path(home, index), 2)
        writer.write(sample.weighted())
        writer.write_block(_empty(schemas.unified(what=_WHAT)), 1)
        writer.close()
        written = [(rows_path(home, index), rows), (blocks_path(home, index), writer.rows)]
        return [task_file(path, home, rows=n) for path, n in written]


class _Sample:
    """A uniform sample of a stream of keys: those whose rows drew the least numbers."""

    def __init__(self, size: int, *, seed: int) -> None:
        self._size = size
        self._draw = np.random.PCG64(seed)
        self._drawn = np.empty(0, dtype=np.uint64)
        self._keys = pl.Series(KEY, [], pl.Binary)
        self._rows = 0

    def add(self, codes: pl.Series) -> None:
        """Takes more keys into account; long ones by their beginnings."""
        drawn = self._draw.random_raw(len(codes))
        self._rows += len(codes)
        limit = self._drawn.max() if len(self._drawn) == self._size else np.uint64(2**64 - 1)
        hopeful = np.flatnonzero(drawn <= limit)
        keys = pl.concat([self._keys, codes[hopeful].bin.slice(0, _SHOWN_BYTES)])
        drawn = np.concatenate([self._drawn, drawn[hopeful]])
        least = np.argsort(drawn, kind="stable")[: self._size]
        self._drawn, self._keys = drawn[least], keys[least]

    def weighted(self) -> pl.DataFrame:
        """The sampled keys, each with the number of rows that it stands for."""
        each = self._rows / max(1, len(self._keys))
        return pl.DataFrame({KEY: self._keys, _WEIGHT: np.full(len(self._keys), each)})


@dataclass(frozen=True, kw_only=True)
class SamplesInput:
    """The samples of all shards."""

    files: tuple[Path, ...]
    weight: int = 0

    @property
    def name(self) -> str:
        """How many."""
        return f"samples of {len(self.files)} shards"

    def frames(self, context: TaskContext, counts: RowCounts) -> Frames:
        """Sampled keys; and, without rows, each shard's schema."""
        yield from counted((frame for path in self.files for frame in read_blocks(path)), counts)
        yield from (frame for path in self.files for frame in read_blocks(path, 1))


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """Output: the least key of each range but the first, and the schema of all rows."""

    num_ranges: int

    def write(self, frames: Frames, context: TaskContext) -> list[TaskFile]:
        """Writes `blocks_path`: the keys, and a block of no rows."""
        held = list(frames)
        samples, schemas = [frame for frame in held if frame.height], Schemas()
        for frame in held:
            if not frame.height:
                schemas.note(frame)
        path = blocks_path(context.home, context.index)
        writer = BlockWriter(path, 2)
        if samples:
            writer.write(_cut_points(pl.concat(samples), self.num_ranges))
        writer.write_block(_empty(schemas.unified(what=_WHAT)), 1)
        writer.close()
        return [task_file(path, context.home, rows=writer.rows)]


def _cut_points(samples: pl.DataFrame, num_ranges: int) -> pl.DataFrame:
    ordered = samples.sort(KEY, maintain_order=True)
    seen = np.cumsum(ordered.get_column(_WEIGHT).to_numpy())
    shares = seen[-1] * np.arange(1, num_ranges) / num_ranges
    return ordered.select(KEY)[np.searchsorted(seen, shares)]


@dataclass(frozen=True, kw_only=True)
class RangeInput:
    """One range of keys of all runs."""

    files: tuple[Path, ...]
    ranges: Path
    number: int
    weight: int

    @property
    def name(self) -> str:
        """Which range."""
        return f"range {self.number} of {len(self.files)} shards"

    def frames(self, context: TaskContext, counts: RowCounts) -> Frames:
        """The range's rows in order, in batches of the usual size."""
        cuts = [None, *(key for frame in read_blocks(self.ranges) for key in frame.get_column(KEY)), None]
        if self.number + 1 >= len(cuts):  # the input has no rows, so there is but one range
            return
        like = next(read_blocks(self.ranges, 1))
        low, high = cuts[self.number], cuts[self.number + 1]
        runs = [
            (conformed(frame, like, what=_WHAT) for frame in run)
            for path in self.files
            for run in read_runs(path, low=low, high=high)
        ]
        scratch = context.home / f"merge-{context.index:05d}.blocks"
        ordered = merged(runs, memory=context.memory, scratch=scratch)
        yield from counted(batches(frame.drop(KEY) for frame in ordered), counts)


def _empty(schema: pa.Schema) -> pl.DataFrame:
    return to_frame(schema.empty_table())
