"""Repartition: the same rows in the same order, cut into another number of shards, as even as can be.

The rows are kept in one block file a shard, whose indexes say how many each has. So a task of the next stage finds its
slice by reading the indexes, and of the files only the blocks that its slice touches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from marin_zephyr.context import Frames, TaskContext
from marin_zephyr.counters import RowCounts
from marin_zephyr.fingerprints import fingerprint
from marin_zephyr.inputs import counted
from marin_zephyr.nodes import Repartition
from marin_zephyr.outputs import Kept
from marin_zephyr.planning import Builder, Open
from marin_zephyr.shuffle.blocks import num_rows, read_rows


def expand(builder: Builder, node: Repartition) -> Open:
    """Two stages, the last one open."""
    upstream = builder.open(node.upstream)
    stage = builder.close(upstream, "repartition-rows", Kept())
    files, n = stage.rows_files, node.num_shards
    inputs = tuple(SliceInput(files=files, index=i, num_slices=n, weight=upstream.weight // n) for i in range(n))
    return replace(upstream, inputs=inputs, origin=fingerprint((stage.fingerprint, n)), ops=())


@dataclass(frozen=True, kw_only=True)
class SliceInput:
    """One of ``num_slices`` slices of all rows of the files: sizes differ by one row at most."""

    files: tuple[Path, ...]
    index: int
    num_slices: int
    weight: int

    @property
    def name(self) -> str:
        """Which slice."""
        return f"slice {self.index} of {self.num_slices}"

    def frames(self, context: TaskContext, counts: RowCounts) -> Frames:
        """The slice's rows."""
        rows = [num_rows(path) for path in self.files]
        total = sum(rows)
        begin, end = (total * i // self.num_slices for i in (self.index, self.index + 1))
        for path, n in zip(self.files, rows, strict=True):
            if begin < n and end > 0:
                yield from counted(read_rows(path, max(begin, 0), min(end, n)), counts)
            begin, end = begin - n, end - n
