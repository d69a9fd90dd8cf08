"""Sample: each row is kept or not by a hash of the seed, its shard and its position in the shard.

No state passes from row to row, so the choice depends on the input and the plan before it alone: not on workers,
batches, or what crashed. The hash is splitmix64, a bijection on 64 bits that passes the usual tests of randomness.

See: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014).
"""

from __future__ import annotations

import numpy as np

from marin_zephyr.context import Frames, TaskContext
from marin_zephyr.counters import RowCounts
from marin_zephyr.nodes import Sample


def sample(frames: Frames, op: Sample, name: str, counts: RowCounts, context: TaskContext) -> Frames:
    """The rows that are chosen; the others are filtered."""
    start = 0
    for frame in frames:
        positions = np.arange(start, start + frame.height, dtype=np.uint64)
        kept = frame[np.flatnonzero(uniform(op.seed, context.index, positions) < op.fraction)]
        counts.add(RowCounts(rows_in=frame.height, passed=kept.height, filtered=frame.height - kept.height))
        start += frame.height
        yield kept


def uniform(seed: int, shard: int, positions: np.ndarray) -> np.ndarray:
    """A number in [0, 1) for each position (``uint64``) of a shard."""
    stream = _mix(_mix(np.array([seed % 2**64], dtype=np.uint64)) + np.uint64(shard))
    return (_mix(stream + positions) >> np.uint64(11)) * 2.0**-53


def _mix(values: np.ndarray) -> np.ndarray:
    """splitmix64 of each value (wraps around)."""
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
