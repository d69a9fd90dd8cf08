"""A stream of items that lies in pieces: any rows of it as one array, gathered without a Python step a row.

The pieces are a local store's parts, mapped into memory, or the blocks of a remote one (`marin_train.data.blocks`);
whatever they are, a stream's items are numbered through, and a row may begin anywhere and lie over any borders.

A row inside a piece is a window of it. All windows of one length are a view of the piece with two equal strides, and
indexing that view copies whole rows at the speed of memory. The loss mask has one bit an item: there the windows are
of bytes, unpacked, and cut once more at the bit. Rows that cross a border are few and are put together by hand.

A store larger than memory is read from the disk, and there a batch is 64 places to wait for one after the other.
While reading a stream makes this thread wait for pages, all rows of a batch are therefore announced to the kernel
before the first is touched: about twice as fast as its read-ahead alone, and ``MADV_RANDOM`` is slower than that.
"""

import errno
import mmap
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import batched
from pathlib import Path
from typing import Protocol

import numpy as np

Take = Callable[[np.ndarray | None, np.ndarray | int, int], np.ndarray]
"""``take(piece, starts, length)``: rows of a piece from Int64[n] on, [n, length], or one row from an int on, [length];
or what broadcasts to that."""

_Cut = np.ndarray | tuple[int, int, int, int]
"""What one piece gives: whole rows, by their numbers, or a part of one row as (row, column, start, size)."""

_PIECES_AT_ONCE = 64
"""Blocks that are asked for together: enough to fill a network, and 64 MiB if none of them was on the disk."""

_COLD_GATHERS = 64
"""How long rows are announced after one had to be waited for."""


class Pieces(Protocol):
    """Where a stream lies."""

    stops: np.ndarray
    """Int64[pieces], ascending: the item after each piece's last one."""

    def load(self, numbers: Sequence[int]) -> list[np.ndarray | None]:
        """The contents of these pieces, fetched together if they have to be."""
        ...

    def announce(self, number: int, start: int, stop: int) -> None:
        """Says that the items ``start`` to ``stop`` of a piece are about to be read."""
        ...


class Stream:
    """Items 0, 1, 2, ... of some pieces, as rows of ``dtype``.

    Args:
        pieces: what holds them.
        take: how rows are read from one piece.
        dtype: of what is returned.
    """

    def __init__(self, pieces: Pieces, take: Take, *, dtype: type) -> None:
        self._pieces, self._take, self._dtype = pieces, take, np.dtype(dtype)
        self.num_items = int(pieces.stops[-1]) if len(pieces.stops) else 0
        self._cold = 0

    def gather(self, starts: np.ndarray, length: int) -> np.ndarray:
        """The rows of ``length`` items that begin at ``starts``: Int64[n] to dtype[n, length].

        Raises:
            IndexError: a row is not inside the stream.
        """
        out = np.empty((len(starts), length), self._dtype)
        self.gather_into(out, None, starts)
        return out

    def gather_into(self, out: np.ndarray, rows: np.ndarray | None, starts: np.ndarray) -> None:
        """The same, written into those rows, Int64[n], of ``out``, dtype[rows, length]; into all of them if None.

        Raises:
            IndexError: a row is not inside the stream.
        """
        starts, length = np.asarray(starts, np.int64), out.shape[1]
        if not len(starts) or not length:
            return
        first, last = int(starts.min()), int(starts.max()) + length
        if first < 0 or last > self.num_items:
            raise IndexError(f"items {first} to {last} of a stream of {self.num_items}")
        faults = _major_faults()
        if self._cold:
            self._announce(starts, length)
        number = bisect_right(self._pieces.stops, first)
        if last <= self._pieces.stops[number]:
            begin = int(self._pieces.stops[number - 1]) if number else 0
            out[... if rows is None else rows] = self._take(self._pieces.load([number])[0], starts - begin, length)
        else:
            self._gather_pieces(starts, out, np.arange(len(starts)) if rows is None else rows)
        self._cold = _COLD_GATHERS if _major_faults() > faults else max(0, self._cold - 1)

    def _announce(self, starts: np.ndarray, length: int) -> None:
        stops = self._pieces.stops
        owner = np.searchsorted(stops, starts, side="right").tolist()
        for number, start in zip(owner, starts.tolist(), strict=True):
            begin = int(stops[number - 1]) if number else 0
            self._pieces.announce(number, start - begin, min(start + length, int(stops[number])) - begin)

    def _gather_pieces(self, starts: np.ndarray, out: np.ndarray, rows: np.ndarray) -> None:
        """Fills those rows of ``out`` from several pieces."""
        stops, length = self._pieces.stops, out.shape[1]
        owner = np.searchsorted(stops, starts, side="right")
        whole = stops[owner] - starts >= length
        cuts = _cut(stops, starts, length, np.flatnonzero(~whole))
        for number, some in _group(owner, np.flatnonzero(whole)):
            if len(some) > 1:
                cuts.setdefault(number, []).append(some)
            else:
                row = int(some[0])
                cuts.setdefault(number, []).append((row, 0, int(starts[row]), length))
        for some in batched(sorted(cuts), _PIECES_AT_ONCE):
            for number, piece in zip(some, self._pieces.load(some), strict=True):
                begin = int(stops[number - 1]) if number else 0
                for cut in cuts[number]:
                    if isinstance(cut, tuple):
                        row, column, start, size = cut
                        out[rows[row], column : column + size] = self._take(piece, start - begin, size)
                    else:
                        out[rows[cut]] = self._take(piece, starts[cut] - begin, length)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Items ``start`` to ``stop``: dtype[stop - start].

        Raises:
            IndexError: they are not inside the stream.
        """
        if not 0 <= start <= stop <= self.num_items:
            raise IndexError(f"items {start} to {stop} of a stream of {self.num_items}")
        return self.gather(np.array([start]), stop - start)[0]


def _group(owner: np.ndarray, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """The rows of each piece, given every row's piece."""
    if not len(rows):
        return
    rows = rows[np.argsort(owner[rows], kind="stable")]
    numbers, firsts = np.unique(owner[rows], return_index=True)
    ends = [*firsts[1:].tolist(), len(rows)]
    for number, first, end in zip(numbers.tolist(), firsts.tolist(), ends, strict=True):
        yield number, rows[first:end]


def _cut(stops: np.ndarray, starts: np.ndarray, length: int, rows: np.ndarray) -> dict[int, list[_Cut]]:
    """Rows that lie over borders, by piece."""
    cuts: dict[int, list[_Cut]] = {}
    for row, start in zip(rows.tolist(), starts[rows].tolist(), strict=True):
        position, stop = start, start + length
        number = int(np.searchsorted(stops, start, side="right"))
        while position < stop:
            size = min(int(stops[number]), stop) - position
            if size:
                cuts.setdefault(number, []).append((row, position - start, position, size))
            position, number = position + size, number + 1
    return cuts


def take_windows(piece: np.ndarray | None, starts: np.ndarray | int, length: int) -> np.ndarray:
    """Rows of a contiguous array."""
    assert piece is not None, "a stream of tokens has no gaps"
    if isinstance(starts, int):
        return piece[starts : starts + length]
    shape = (len(piece) - length + 1, length)
    return np.ndarray(shape, piece.dtype, piece.data, strides=(piece.itemsize, piece.itemsize))[starts]


def take_bits(piece: np.ndarray | None, starts: np.ndarray | int, length: int) -> np.ndarray:
    """Rows of bits, packed into a UInt8 array from each byte's lowest bit on; a piece that is None is all ones."""
    if piece is None:
        return np.ones(1, bool)
    if isinstance(starts, int):
        bits = np.unpackbits(piece[starts // 8 : (starts + length + 7) // 8], bitorder="little")
        return bits[starts % 8 : starts % 8 + length].view(bool)
    width = min((length + 14) // 8, len(piece))
    begin = np.minimum(starts // 8, len(piece) - width)
    bits = np.unpackbits(take_windows(piece, begin, width), axis=1, bitorder="little").view(bool)
    return take_windows(bits.reshape(-1), np.arange(len(starts)) * 8 * width + starts - 8 * begin, length)


class MappedPieces:
    """One file a piece, mapped into memory when it is first needed.

    Args:
        lengths: items of each.
        files: where each lies, or None for one that has no file; called once, at its first use.
        dtype: of the files' items.
    """

    def __init__(self, lengths: Iterable[int], files: Sequence[Callable[[], Path] | None], *, dtype: np.dtype) -> None:
        self.stops = np.cumsum(np.fromiter(lengths, np.int64))
        self._files, self._dtype = files, dtype
        self._mapped: dict[int, np.ndarray | None] = {}

    def load(self, numbers: Sequence[int]) -> list[np.ndarray | None]:
        """The contents of these files."""
        for number in numbers:
            if number not in self._mapped:
                file = self._files[number]
                self._mapped[number] = None if file is None else map_file(file(), self._dtype)
        return [self._mapped[number] for number in numbers]

    def announce(self, number: int, start: int, stop: int) -> None:
        """Lets the kernel read these items from the disk, without waiting for them."""
        (piece,) = self.load([number])
        if piece is None or not len(piece):
            return
        items = int(self.stops[number]) - (int(self.stops[number - 1]) if number else 0)
        first = start * piece.nbytes // items // mmap.PAGESIZE * mmap.PAGESIZE
        mapping = piece.base.base if piece.base is not None else None
        if isinstance(mapping, mmap.mmap):
            mapping.madvise(mmap.MADV_WILLNEED, first, -(-stop * piece.nbytes // items) - first)


def map_file(file: Path, dtype: np.dtype) -> np.ndarray:
    """A file as a read-only array, of which only what is touched is read."""
    try:
        # A view as a plain array: slices of a memmap cost several times more.
        return np.memmap(file, dtype, mode="r").view(np.ndarray) if file.stat().st_size else np.zeros(0, dtype)
    except OSError as error:
        if error.errno != errno.EMFILE or not _allow_more_files():
            raise
        return map_file(file, dtype)


def _major_faults() -> int:
    """How often this thread had to wait for a page from the disk; 0 where the system does not say."""
    import resource

    who = getattr(resource, "RUSAGE_THREAD", None)
    return 0 if who is None else resource.getrusage(who).ru_majflt


def _allow_more_files() -> bool:
    """Raises this process's limit of open files to what the system grants; each map holds one."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft != hard
