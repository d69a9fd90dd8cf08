"""Matching: which row of the left goes with which row of the right, from two streams that are sorted by key.

The right side is taken in *blocks* of whole keys, and the left rows up to a block's last key are matched against it,
piece by piece; a left key need not lie in one piece. A key of the right that memory does not hold is spooled to disk
and read again for each left row of that key, which costs what writing the result costs.

A match comes as index arrays in slices of a bounded number of rows, so that a key with many rows on both sides is never
there at once. Rows with a null in their key match nothing.

Invariant: the sequence of pairs is by key, then left row, then right row, wherever frames, pieces, blocks and slices
end; rows of one key that match nothing come right before left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from marin_zephyr.context import Frames
from marin_zephyr.nodes import JoinHow
from marin_zephyr.shuffle.blocks import BlockWriter, read_blocks
from marin_zephyr.shuffle.keys import KEY

NULL = "\1null"

_LEFT_UNMATCHED = ("left", "full", "anti")
_RIGHT_UNMATCHED = ("right", "full")
_NONE = -1


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Rows of ``left`` and ``right``, by position; -1 where there is no partner, and throughout for semi and anti."""

    left: pl.DataFrame
    right: pl.DataFrame
    left_rows: np.ndarray
    right_rows: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Spool:
    """The rows of one key of the right side that memory does not hold."""

    path: Path
    key: bytes
    is_null: bool
    empty: pl.DataFrame

    def frames(self) -> Frames:
        """The rows, from the start."""
        return read_blocks(self.path)


def matched(
    left: Frames, right: Frames, *, how: JoinHow, empty: tuple[pl.DataFrame, pl.DataFrame], memory: int, spool: Path
) -> Iterator[Pairs]:
    """All pairs of a join.

    Args:
        left: frames sorted by `KEY`, with the flag `NULL`.
        right: the same of the other side.
        how: which rows come without a partner.
        empty: a frame without rows of each side's schema.
        memory: bytes that one key of the right side may hold, and that a slice of pairs may come to.
        spool: where a key of the right side goes that is larger.
    """
    pieces = _Pieces(left)
    no_left, no_right = empty
    for block in _blocks(right, memory=memory, path=spool):
        if isinstance(block, Spool):
            yield from _with_spool(pieces, block, how=how, no_left=no_left)
            continue
        done = 0
        for piece in pieces.until(block[KEY][-1]):
            end = max(done, int(block[KEY].search_sorted(piece[KEY][-1], side="right")))
            yield from pairs(piece, block, how=how, decided=(done, end), memory=memory)
            done = end
        if done < block.height:
            yield from pairs(no_left, block, how=how, decided=(done, block.height), memory=memory)
    for piece in pieces.until(None):
        yield from pairs(piece, no_right, how=how, decided=(0, 0), memory=memory)


def pairs(
    left: pl.DataFrame, right: pl.DataFrame, *, how: JoinHow, decided: tuple[int, int], memory: int
) -> Iterator[Pairs]:
    """The pairs of two sorted frames, in slices.

    Args:
        left: sorted rows.
        right: sorted rows that hold each of their keys whole.
        how: which rows come without a partner.
        decided: the range of right rows that come alone, if ``how`` says so and ``left`` has none of their key.
        memory: about how many bytes a slice may come to.
    """
    start = right[KEY].search_sorted(left[KEY], side="left").to_numpy().astype(np.int64)
    end = right[KEY].search_sorted(left[KEY], side="right").to_numpy().astype(np.int64)
    num = np.where(left[NULL].to_numpy(), 0, end - start)
    rows = np.arange(left.height)
    if how in ("semi", "anti"):
        chosen = rows[(num > 0) == (how == "semi")]
        yield Pairs(left=left, right=right, left_rows=chosen, right_rows=np.full(len(chosen), _NONE))
        return
    start = np.where(num == 0, _NONE, start)
    if how in _LEFT_UNMATCHED:
        num = np.maximum(num, 1)
    if how in _RIGHT_UNMATCHED and decided[0] < decided[1]:
        alone, before = _alone(left, right, decided)
        order = np.argsort(np.concatenate([2 * rows + 1, 2 * before]), kind="stable")
        rows = np.concatenate([rows, np.full(len(alone), _NONE)])[order]
        start = np.concatenate([start, alone])[order]
        num = np.concatenate([num, np.ones(len(alone), dtype=np.int64)])[order]
    yield from _slices(left, right, rows, start, num, memory)


def _alone(left: pl.DataFrame, right: pl.DataFrame, decided: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The right rows without partner, and before which left row each comes."""
    among = right[decided[0] : decided[1]]
    first = left[KEY].search_sorted(among[KEY], side="left").to_numpy().astype(np.int64)
    beyond = left[KEY].search_sorted(among[KEY], side="right").to_numpy().astype(np.int64)
    is_alone = (beyond == first) | among[NULL].to_numpy()
    return np.arange(*decided)[is_alone], first[is_alone]


def _slices(
    left: pl.DataFrame, right: pl.DataFrame, rows: np.ndarray, start: np.ndarray, num: np.ndarray, memory: int
) -> Iterator[Pairs]:
    """Entry i stands for ``num[i]`` pairs of the left row ``rows[i]`` with right rows from ``start[i]`` on."""
    ends = np.cumsum(num)
    total = int(ends[-1]) if len(ends) else 0
    bytes_a_pair = sum(int(f.estimated_size()) // max(1, f.height) for f in (left, right)) + 16
    step = max(1, min(1 << 16, memory // bytes_a_pair))
    for low in range(0, total, step):
        position = np.arange(low, min(total, low + step))
        entry = np.searchsorted(ends, position, side="right")
        offset = position - (ends[entry] - num[entry])
        right_rows = np.where(start[entry] < 0, _NONE, start[entry] + offset)
        yield Pairs(left=left, right=right, left_rows=rows[entry], right_rows=right_rows)


def _with_spool(pieces: _Pieces, spool: Spool, *, how: JoinHow, no_left: pl.DataFrame) -> Iterator[Pairs]:
    """The left rows up to a key whose right rows are on disk."""
    was_met = False
    for piece in pieces.until(spool.key):
        below = piece[KEY].search_sorted(spool.key, side="left")
        partners = np.full(below, _NONE)
        if how in _LEFT_UNMATCHED and below:
            yield Pairs(left=piece, right=spool.empty, left_rows=np.arange(below), right_rows=partners)
        if below == piece.height:
            continue
        if spool.is_null and not was_met:
            yield from _spool_alone(spool, how=how, no_left=no_left)
        was_met = True
        own = np.arange(below, piece.height)
        if how in ("semi", "anti") or spool.is_null:
            if (how in _LEFT_UNMATCHED) if spool.is_null else how == "semi":
                yield Pairs(left=piece, right=spool.empty, left_rows=own, right_rows=np.full(len(own), _NONE))
            continue
        for row in own:
            for frame in spool.frames():
                right_rows = np.arange(frame.height)
                yield Pairs(left=piece, right=frame, left_rows=np.full(frame.height, row), right_rows=right_rows)
    if not was_met:
        yield from _spool_alone(spool, how=how, no_left=no_left)


def _spool_alone(spool: Spool, *, how: JoinHow, no_left: pl.DataFrame) -> Iterator[Pairs]:
    for frame in spool.frames() if how in _RIGHT_UNMATCHED else ():
        rows = np.full(frame.height, _NONE)
        yield Pairs(left=no_left, right=frame, left_rows=rows, right_rows=np.arange(frame.height))


class _Pieces:
    """The left side, handed out up to a key."""

    def __init__(self, frames: Frames) -> None:
        self._frames = (frame for frame in frames if frame.height)
        self._frame: pl.DataFrame | None = None

    def until(self, key: bytes | None) -> Frames:
        """The rows up to ``key``, it included, that have not been handed out; all that are left for None."""
        while True:
            if self._frame is None:
                self._frame = next(self._frames, None)
            if self._frame is None:
                return
            frame = self._frame
            end = frame.height if key is None else frame[KEY].search_sorted(key, side="right")
            self._frame = frame[end:] if end < frame.height else None
            if end:
                yield frame[:end]
            if end < frame.height:
                return


def _blocks(frames: Frames, *, memory: int, path: Path) -> Iterator[pl.DataFrame | Spool]:
    """The right side in blocks of whole keys: the last key of a frame is held until it is known to have ended."""
    last = _LastKey(memory, path)
    for frame in frames:
        if not frame.height:
            continue
        codes = frame[KEY]
        own = int(codes.search_sorted(codes[0], side="right")) if codes[0] == last.key else 0
        last.add(frame[:own])
        if own == frame.height:
            continue
        yield from last.finish()
        start = int(codes.search_sorted(codes[-1], side="left"))
        if own < start:
            yield frame[own:start]
        last.add(frame[start:])
    yield from last.finish()


class _LastKey:
    """The rows of one key, in memory while they fit."""

    def __init__(self, memory: int, path: Path) -> None:
        self._memory, self._path = memory, path
        self._held: list[pl.DataFrame] = []
        self._bytes = 0
        self._writer: BlockWriter | None = None
        self.key: bytes | None = None

    def add(self, frame: pl.DataFrame) -> None:
        if not frame.height:
            return
        self.key = frame[KEY][0]
        self._held.append(frame)
        self._bytes += int(frame.estimated_size())
        if self._bytes > self._memory and len(self._held) > 1:
            self._spill()

    def finish(self) -> Iterator[pl.DataFrame | Spool]:
        """The rows, if there are any; then holds nothing."""
        if self._writer is not None:
            self._spill()
            self._writer.close()
            assert self.key is not None
            yield Spool(path=self._path, key=self.key, is_null=self._is_null, empty=self._empty)
            self._path.unlink()
            self._writer = None
        elif self._held:
            yield pl.concat(self._held)
        self._held, self._bytes, self.key = [], 0, None

    def _spill(self) -> None:
        if not self._held:
            return
        if self._writer is None:
            self._writer = BlockWriter(self._path, 1)
            self._empty, self._is_null = self._held[0].clear(), bool(self._held[0][NULL][0])
        for frame in self._held:
            self._writer.write(frame)
        self._held, self._bytes = [], 0
