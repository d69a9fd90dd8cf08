"""Merging: sorted runs to one sorted stream, in bounded memory and without a look at single rows.

The merge goes by *frontier*. Of each run some blocks are loaded; the least of the runs' last loaded keys is the
frontier, for what is not loaded cannot lie below it. All loaded rows below the frontier are cut off, put one after
another in the order of the runs, and sorted stably at once. The rows of the frontier's own key follow, run by run,
reading on where a run may have more of them. Blocks are loaded where the last key is least, until a quarter of the
memory is full, so each round hands out many blocks' worth of rows.

Invariants:

- the order is that of the keys; equal keys keep the order of the runs, and within a run their own
- the rows of a key lie in one frame, unless they alone fill a quarter of the memory; then frames that follow one
  another hold them
- more runs than may be open at once are merged in groups first, into runs on disk

How the stream is cut into frames depends on the memory, and so must not be seen by a caller's function: it is cut anew
(`marin_zephyr.batching`).

See: Knuth, The Art of Computer Programming, vol. 3, 5.4.1 (multiway merging).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import batched
from pathlib import Path

import polars as pl

from marin_zephyr.batching import num_bytes, stack
from marin_zephyr.shuffle.blocks import read_blocks
from marin_zephyr.shuffle.keys import KEY
from marin_zephyr.shuffle.runs import BLOCK_BYTES, write_run


def merged(runs: Sequence[Iterable[pl.DataFrame]], *, memory: int, scratch: Path) -> Iterator[pl.DataFrame]:
    """One sorted stream of all rows.

    Args:
        runs: each a stream of frames with the column `KEY`, which never decreases.
        memory: bytes that may be held.
        scratch: a file name; files whose names begin with it may be written meanwhile, and are removed.

    Returns:
        Frames with the column `KEY`, none of them empty.

    Raises:
        SchemaError: two frames' types of one column do not unify.
    """
    most = max(2, memory // (4 * BLOCK_BYTES))
    spilled: list[Path] = []
    try:
        while len(runs) > most:
            wider: list[Iterable[pl.DataFrame]] = []
            for group in batched(runs, most):
                spilled.append(scratch.with_name(f"{scratch.name}-{len(spilled)}"))
                write_run(spilled[-1], _merged(group, memory // 4))
                wider.append(read_blocks(spilled[-1]))
            runs = wider
        yield from _merged(runs, memory // 4)
    finally:
        for path in spilled:
            path.unlink(missing_ok=True)


class _Run:
    """A run: the blocks that are loaded and the rest.

    Attributes:
        blocks: what is loaded, none of it empty.
        last: the last key that was loaded.
        ended: whether there is no rest.
    """

    def __init__(self, frames: Iterable[pl.DataFrame]) -> None:
        self.blocks: deque[pl.DataFrame] = deque()
        self.last = b""
        self.ended = False
        self._rest = iter(frames)
        self.load()

    def load(self) -> int:
        """Loads one more block; its bytes."""
        for block in self._rest:
            if block.height:
                self.blocks.append(block)
                self.last = block.get_column(KEY)[-1]
                return num_bytes(block)
        self.ended = True
        return 0

    def below(self, frontier: bytes | None) -> Iterator[pl.DataFrame]:
        """Cuts off the rows below a key; all that are loaded, if there is none."""
        while self.blocks:
            block = self.blocks.popleft()
            n = block.height if frontier is None else bisect_left(block.get_column(KEY), frontier)
            if n:
                yield block[:n]
            if n < block.height:
                self.blocks.appendleft(block[n:])
                return

    def equal(self, frontier: bytes) -> Iterator[pl.DataFrame]:
        """Cuts off the rows of a key, if it is the least that is left, loading as long as there may be more."""
        while self.blocks or not self.ended:
            if not self.blocks:
                self.load()
                continue
            block = self.blocks.popleft()
            n = bisect_right(block.get_column(KEY), frontier)
            if n:
                yield block[:n]
            if n < block.height:
                self.blocks.appendleft(block[n:])
                return


def _merged(frames: Sequence[Iterable[pl.DataFrame]], limit: int) -> Iterator[pl.DataFrame]:
    runs = [_Run(run) for run in frames]
    while runs := [run for run in runs if run.blocks or not run.ended]:
        _load(runs, limit)
        frontier = min((run.last for run in runs if not run.ended), default=None)
        below = _below(runs, frontier)
        if frontier is None:
            yield from below
            return
        yield from _whole(below, (piece for run in runs for piece in run.equal(frontier)), limit)


def _below(runs: Sequence[_Run], frontier: bytes | None) -> list[pl.DataFrame]:
    """The rows below the frontier in order, as one frame or none."""
    pieces = [piece for run in runs for piece in run.below(frontier)]
    if len(pieces) > 1:
        return [stack(pieces).sort(KEY, maintain_order=True)]
    return pieces


def _load(runs: Sequence[_Run], limit: int) -> None:
    held = sum(num_bytes(block) for run in runs for block in run.blocks)
    least = [(run.last, i) for i, run in enumerate(runs) if not run.ended]
    heapq.heapify(least)
    while least and held < limit:
        i = least[0][1]
        held += runs[i].load()
        if runs[i].ended:
            heapq.heappop(least)
        else:
            heapq.heapreplace(least, (runs[i].last, i))


def _whole(below: list[pl.DataFrame], ties: Iterator[pl.DataFrame], limit: int) -> Iterator[pl.DataFrame]:
    """Rows of lesser keys and then those of one key, which are kept together up to a limit."""
    held: list[pl.DataFrame] = []
    size = 0
    for piece in ties:
        held.append(piece)
        size += num_bytes(piece)
        if size > limit:
            yield from below
            yield from held
            yield from ties
            return
    if below or held:
        held[:0] = below
        below.clear()
        yield stack(held)
