"""Hot keys: which keys hold more than a twentieth of the rows that an exchange moves, found in one pass.

A `Sketch` is a Misra-Gries summary: at most 64 keys with counts that are too low by at most rows / 65. A batch is
counted exactly and merged in; what would be the 65th is subtracted from all. Such summaries merge with the same bound,
so the shards' may be added up, and every key with more than the bound's share is among them. Keys are told apart by
digest; one example of each is kept for people.

See: Misra and Gries, Finding repeated elements (1982); Agarwal et al., Mergeable summaries (PODS 2012).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl

from marin_zephyr.reporting.quantities import clipped

HOT_SHARE = 0.05
_KEPT = 64
_SHOWN = 100


class Sketch:
    """The frequent keys of the rows seen so far.

    Args:
        on: the key columns.
    """

    def __init__(self, on: Sequence[str]) -> None:
        self._on = on
        self._counts: dict[str, int] = {}
        self._examples: dict[str, str] = {}

    def add(self, frame: pl.DataFrame, digests: np.ndarray) -> None:
        """Counts the rows of a batch, whose keys' digests are known already."""
        words = pl.DataFrame({"high": digests[:, 0], "low": digests[:, 1]}).with_row_index("row")
        seen = words.group_by("high", "low").agg(pl.len(), pl.col("row").first())
        seen = seen.sort(["len", "high", "low"], descending=[True, False, False])
        # Keys below the 65th of this batch fall out of its own summary.
        floor = int(seen["len"][_KEPT]) if seen.height > _KEPT else 0
        for high, low, num, row in seen.head(_KEPT).iter_rows():
            if num > floor:
                name = f"{high:016x}{low:016x}"
                self._counts[name] = self._counts.get(name, 0) + num - floor
                self._examples.setdefault(name, _shown(frame, self._on, row))
        self._counts = _trimmed(self._counts)
        self._examples = {name: self._examples[name] for name in self._counts}

    def entries(self) -> tuple[tuple[str, str, int], ...]:
        """Digest, example and count of each key kept, the most frequent first."""
        ordered = sorted(self._counts.items(), key=lambda entry: (-entry[1], entry[0]))
        return tuple((name, self._examples[name], num) for name, num in ordered)


def hot_keys(sketches: Iterable[Sequence[Sequence[Any]]], *, rows: int) -> tuple[dict[str, Any], ...]:
    """The keys with more than `HOT_SHARE` of the rows, from the entries of all shards' sketches.

    Args:
        sketches: `Sketch.entries` of each shard.
        rows: how many rows there are in all.

    Returns:
        ``{"key": text, "rows": at least, "share": of all}`` each, the hottest first.
    """
    totals: dict[str, int] = {}
    examples: dict[str, str] = {}
    for name, example, num in (entry for entries in sketches for entry in entries):
        totals[name] = totals.get(name, 0) + num
        examples.setdefault(name, example)
    hot = [(name, num) for name, num in totals.items() if num > HOT_SHARE * rows]
    hot.sort(key=lambda entry: (-entry[1], entry[0]))
    return tuple({"key": examples[name], "rows": num, "share": round(num / rows, 4)} for name, num in hot)


def _trimmed(counts: dict[str, int]) -> dict[str, int]:
    if len(counts) <= _KEPT:
        return counts
    floor = sorted(counts.values(), reverse=True)[_KEPT]
    return {name: num - floor for name, num in counts.items() if num > floor}


def _shown(frame: pl.DataFrame, on: Sequence[str], row: int) -> str:
    values = [frame.get_column(name)[row] for name in on]
    return clipped(repr(values[0] if len(on) == 1 else tuple(values)), _SHOWN)
