"""Rows in the order of their keys, whatever the memory.

A `Sorter` takes the frames of one partition and gives them back sorted by key, rows of one key in the order they came.
What exceeds a quarter of the task's memory lies in sorted runs on disk, which are merged. The frames that it gives end
where memory ended, so whatever is made of them is cut anew (`marin_zephyr.batching.batches`) before a caller sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from marin_zephyr.batching import stack
from marin_zephyr.context import Frames, TaskContext
from marin_zephyr.frames import Schemas, conformed, to_frame
from marin_zephyr.shuffle.blocks import read_blocks
from marin_zephyr.shuffle.keys import KEY, encode
from marin_zephyr.shuffle.merging import merged
from marin_zephyr.shuffle.runs import write_run

GROUP = "\1group"
_WHAT = "rows of a key"


class Sorter:
    """Sorts the rows of one partition.

    Args:
        context: the task's; the memory and the directory for runs.
        on: the key columns.
        order_by: columns by which rows of one key are sorted; the column `GROUP` then tells keys apart, not `KEY`.
        descending: for each of ``order_by``.
        side: names the runs, so that a task with two sorters keeps theirs apart.
    """

    def __init__(
        self,
        context: TaskContext,
        *,
        on: Sequence[str],
        order_by: Sequence[str] = (),
        descending: Sequence[bool] = (),
        side: str = "run",
    ) -> None:
        self._memory = context.memory // 4
        self._scratch = context.home / f"{side}-{context.index:05d}"
        self._on, self._order_by = on, order_by
        self._descending = [False] * len(on) + list(descending)
        self._runs: list[Path] = []
        self._held: list[pl.DataFrame] = []
        self._bytes = 0
        self._schemas = Schemas()

    def add(self, frame: pl.DataFrame) -> None:
        """Takes rows, which have all the columns named."""
        if self._order_by:
            frame = frame.with_columns(encode(frame, self._on).alias(GROUP))
        frame = frame.with_columns(encode(frame, [*self._on, *self._order_by], descending=self._descending))
        self._schemas.note(frame)
        self._held.append(frame)
        self._bytes += int(frame.estimated_size())
        if self._bytes > self._memory:
            self._spill()

    def frames(self) -> Frames:
        """The rows in order, once: frames of one schema, with the column `KEY`."""
        if not self._runs:
            held, self._held = self._held, []
            if held:
                yield stack(held).sort(KEY, maintain_order=True)
            return
        self._spill()
        like = to_frame(self._schemas.unified(what=_WHAT).empty_table())
        runs = [(conformed(frame, like, what=_WHAT) for frame in read_blocks(path)) for path in self._runs]
        try:
            yield from merged(runs, memory=self._memory, scratch=self._scratch.with_suffix(".merging"))
        finally:
            for path in self._runs:
                path.unlink(missing_ok=True)

    def _spill(self) -> None:
        held, self._held, self._bytes = self._held, [], 0
        if held:
            self._runs.append(self._scratch.with_suffix(f".{len(self._runs)}"))
            write_run(self._runs[-1], [stack(held).sort(KEY, maintain_order=True)])
