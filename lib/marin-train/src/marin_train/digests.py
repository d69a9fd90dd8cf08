"""A digest of arrays that does not hang on how they are spread over devices.

An array is read as unsigned words w, and its digest is the sum over all elements of

    w[i, j, ...] * key(0, i) * key(1, j) * ...     modulo 2**64

with odd pseudo-random keys. A sum has no order, so every process adds up the shards that it holds, and the sums are
added in turn: no array is ever in one place, and the digest of a state is the same on one device and on a thousand. A
product of odd numbers is odd, hence one changed word always changes the sum; other damage escapes with a chance of
about 2**-32 or less. It is a check against accidents and no defence against forgery.

See: Lemire and Kaser, Strongly universal string hashing is fast (2014), for multilinear sums with odd or random keys.
"""

from collections.abc import Sequence

import numpy as np

MODULUS = 2**64
_CHUNK = 2**15
"""Elements at a time: their products stay in the cache."""


def add_up(block: np.ndarray, *, starts: Sequence[int] | None = None) -> int:
    """The share of one block of an array in that array's digest.

    Args:
        block: a rectangle of the array, or all of it.
        starts: where the block begins in the array, one index a dim; all zeros where absent.

    Returns:
        A number below `MODULUS`; the shares of disjoint blocks that cover the array add up to its digest.
    """
    words, starts = _words(block, tuple(starts or (0,) * block.ndim))
    if not words.size:
        return 0
    width = words.shape[-1]
    rows, last = words.reshape(-1, width), _keys(words.ndim - 1, starts[-1], width)
    height = max(1, _CHUNK // width)
    sums = np.empty(len(rows), np.uint64)
    for start in range(0, len(rows), height):
        part = rows[start : start + height]
        np.einsum("rc,c->r", part, last, out=sums[start : start + height])
    for dim in reversed(range(words.ndim - 1)):
        size = words.shape[dim]
        sums = (sums.reshape(-1, size) * _keys(dim, starts[dim], size)).sum(axis=1, dtype=np.uint64)
    return int(sums[0])


def _words(block: np.ndarray, starts: tuple[int, ...]) -> tuple[np.ndarray, tuple[int, ...]]:
    """The block's bits as unsigned words of at most 32 bits, at least one dim."""
    block = np.ascontiguousarray(block)  # which also gives a scalar a dim
    starts = starts or (0,)
    size = block.dtype.itemsize
    if size <= 4:
        return block.view(f"u{size}"), starts
    return block.reshape(*block.shape, 1).view(np.uint32), (*starts, 0)


def _keys(dim: int, start: int, size: int) -> np.ndarray:
    """Odd 64-bit keys of the indices start, start + 1, ... of a dim: splitmix64 of dim and index."""
    seed = np.uint64((dim + 1) * 0xD1B54A32D192ED03 % MODULUS)
    x = np.arange(start, start + size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + seed
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) | np.uint64(1)
