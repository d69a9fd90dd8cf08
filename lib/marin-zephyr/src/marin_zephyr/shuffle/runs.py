"""Runs: rows sorted by their keys, on disk, so that they can be merged in little memory and read in part.

A file of runs is a block file (`shuffle.blocks`) of small blocks. Partition ``r + 1`` holds run ``r``;
partition 0 says of each block which run it belongs to and between which keys it lies, so a reader of a range of keys
leaves out the blocks that cannot hold any. Only the first bytes of keys are noted: a block too many may be read, never
one too few.

Invariant: within a run keys never decrease and equal keys keep the order of the rows; runs stand in that order too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import polars as pl

from marin_zephyr.batching import num_bytes, stack
from marin_zephyr.shuffle.blocks import BlockWriter, read_blocks
from marin_zephyr.shuffle.keys import KEY

BLOCK_BYTES = 1 << 20
_SHOWN_BYTES = 64
_RANGES = {"run": pl.Int64, "first": pl.Binary, "last": pl.Binary}


def write_runs(path: Path, frames: Iterable[pl.DataFrame], *, memory: int) -> int:
    """Sorts a stream by its keys, as much at a time as memory allows.

    Args:
        path: the file of runs.
        frames: rows with the column `KEY`.
        memory: bytes that may be held; a quarter of them in rows, for sorting copies.

    Returns:
        How many rows.

    Raises:
        SchemaError: two frames' types of one column do not unify.
    """
    writer, ranges = BlockWriter(path, 1), []
    for run, rows in enumerate(_sorted(frames, memory // 4)):
        for block in cut(rows):
            keys = block.get_column(KEY)
            ranges.append((run, keys[0][:_SHOWN_BYTES], keys[-1][:_SHOWN_BYTES]))
            writer.write_block(block, run + 1)
    num_rows = writer.rows
    writer.write(pl.DataFrame(ranges, schema=_RANGES, orient="row"))
    writer.close()
    return num_rows


def read_runs(path: Path, *, low: bytes | None = None, high: bytes | None = None) -> list[Iterator[pl.DataFrame]]:
    """The runs of a file, in order, each as a stream of blocks.

    Args:
        path: a file of runs.
        low: leave out keys below this one.
        high: leave out this key and those above.
    """
    ranges = [row for frame in read_blocks(path) for row in frame.iter_rows()]
    blocks: dict[int, list[int]] = {}
    start = run_before = 0
    for number, (run, first, last) in enumerate(ranges):
        if run != run_before:
            start, run_before = number, run
        if (high is None or first < high) and (low is None or last >= low[: len(last)]):
            blocks.setdefault(run, []).append(number - start)
    return [_between(read_blocks(path, run + 1, only=only), low, high) for run, only in blocks.items()]


def write_run(path: Path, frames: Iterable[pl.DataFrame]) -> None:
    """Writes rows that are sorted already as a block file of small blocks, for `read_blocks`."""
    writer = BlockWriter(path, 1)
    for frame in frames:
        for block in cut(frame):
            writer.write_block(block)
    writer.close()


def cut(frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Pieces of about `BLOCK_BYTES`."""
    rows = max(1, BLOCK_BYTES * frame.height // max(1, num_bytes(frame)))
    return (frame[start : start + rows] for start in range(0, frame.height, rows))


def _sorted(frames: Iterable[pl.DataFrame], limit: int) -> Iterator[pl.DataFrame]:
    held: list[pl.DataFrame] = []
    size = 0
    for frame in frames:
        held.append(frame)
        size += num_bytes(frame)
        if size >= limit:
            yield stack(held).sort(KEY, maintain_order=True)
            size = 0
    if held:
        yield stack(held).sort(KEY, maintain_order=True)


def _between(blocks: Iterable[pl.DataFrame], low: bytes | None, high: bytes | None) -> Iterator[pl.DataFrame]:
    for block in blocks:
        keys = block.get_column(KEY)
        within = pl.lit(True)
        if low is not None and keys[0] < low:
            within &= pl.col(KEY) >= low
        if high is not None and keys[-1] >= high:
            within &= pl.col(KEY) < high
        yield block.filter(within)
