"""Take: the first rows in order.

Every shard gives its own first ``n`` rows and stops reading there; with more than one shard those are kept, and a
second stage leaves out the ones that earlier shards have made superfluous. What is never read is never looked at: bad
records after the last row that is needed raise nothing and are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from marin_zephyr.context import Frames, TaskContext
from marin_zephyr.counters import RowCounts
from marin_zephyr.nodes import Take
from marin_zephyr.outputs import Kept
from marin_zephyr.planning import Builder, Open
from marin_zephyr.shuffle.blocks import num_rows, read_rows


def expand(builder: Builder, node: Take) -> Open:
    """One open stage for one shard; else two."""
    upstream = builder.open(node.upstream)
    heads = replace(upstream, ops=(*upstream.ops, Head(node.num_rows)))
    if len(upstream.inputs) == 1:
        return heads
    stage = builder.close(heads, "take-rows", Kept())
    files = stage.rows_files
    inputs = tuple(
        TakenInput(files=files[: shard + 1], num_rows=node.num_rows, weight=task_input.weight)
        for shard, task_input in enumerate(upstream.inputs)
    )
    return replace(upstream, inputs=inputs, origin=stage.fingerprint, ops=())


@dataclass(frozen=True)
class Head:
    """Operation: the shard's first rows. Asks for no frame once it has them."""

    num_rows: int

    @property
    def label(self) -> str:
        """``take(10)``."""
        return f"take({self.num_rows})"

    def apply(self, frames: Frames, name: str, counts: RowCounts, context: TaskContext) -> Frames:
        """The rows; the others of a frame that was begun are filtered."""
        left = self.num_rows
        while left and (frame := next(frames, None)) is not None:
            taken = frame.head(left)
            left -= taken.height
            counts.add(RowCounts(rows_in=frame.height, passed=taken.height, filtered=frame.height - taken.height))
            yield taken


@dataclass(frozen=True, kw_only=True)
class TakenInput:
    """Of the rows of the last file as many as the files before it leave."""

    files: tuple[Path, ...]
    num_rows: int
    weight: int

    @property
    def name(self) -> str:
        """Which shard."""
        return f"first rows of shard {len(self.files) - 1}"

    def frames(self, context: TaskContext, counts: RowCounts) -> Frames:
        """The rows; those that come too late are filtered, unread."""
        *before, rows = (num_rows(path) for path in self.files)
        taken = min(rows, max(0, self.num_rows - sum(before)))
        counts.add(RowCounts(rows_in=rows, passed=taken, filtered=rows - taken))
        yield from read_rows(self.files[-1], 0, taken)
