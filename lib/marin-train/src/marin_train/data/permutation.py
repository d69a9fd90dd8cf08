"""A keyed permutation of ``range(size)`` with random access: where an epoch's k-th sequence lies, without a table.

A generalised Feistel network on pairs (Black and Rogaway 2002, "Ciphers with arbitrary finite domains"): write an
index as ``(left, right)`` with ``left < a``, ``right < b`` and ``a * b`` just above ``size``; each round adds a
keyed hash of one half to the other, modulo its range, which is invertible whatever the hash. Values that land in
the gap between ``size`` and ``a * b`` are sent through again (cycle walking) until they are inside; the gap is
smaller than ``sqrt(size)``, so almost none are. The hash is the finaliser of splitmix64 (Steele et al. 2014), two
multiply-xorshift rounds: a linear congruence instead would leave neighbours neighbours.

Many permutations are applied in one pass, each item by its own: a batch has a few rows of every component, and what
a pass costs is mostly the calls to numpy.

Invariant: for every size and key a bijection. Nothing is stored, and the cost of an index does not depend on size.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

MAX_SIZE = 1 << 62
"""Beyond it ``a * b`` could pass the 64 bits it is computed in."""

_ROUNDS = 8
# Made once: to make one takes as long as to apply it to a batch.
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_MULTIPLIERS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True)
class Permutation:
    """A bijection of ``range(size)`` drawn by ``key``; equal keys give equal orders on every machine.

    Attributes:
        size: how many items, 1 to `MAX_SIZE`.
        key: any text; one that differs in a character gives an unrelated order.
    """

    size: int
    key: str

    def __post_init__(self) -> None:
        if not 1 <= self.size <= MAX_SIZE:
            raise ValueError(f"Permutation.size={self.size} must lie between 1 and 2**62")

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        """The images of ``indices``: Int64 of any shape, each in ``[0, size)``, to Int64 of that shape."""
        return self._apply(indices, inverse=False)

    def inverse(self, images: np.ndarray) -> np.ndarray:
        """The indices whose images these are: Int64 of any shape, each in ``[0, size)``, to Int64 of that shape."""
        return self._apply(images, inverse=True)

    def _apply(self, values: np.ndarray, *, inverse: bool) -> np.ndarray:
        values = np.asarray(values, np.int64)
        if values.size and (values.min() < 0 or values.max() >= self.size):
            raise IndexError(f"indices {values.min()}..{values.max()} are outside range({self.size})")
        flat = values.ravel()
        return permute([self], np.zeros(flat.size, np.int64), flat, inverse=inverse).reshape(values.shape)

    @cached_property
    def parameters(self) -> np.ndarray:
        """``size``, ``a``, ``b`` and the keys of the rounds: UInt64[3 + rounds]."""
        a = math.isqrt(self.size - 1) + 1
        digest = b"".join(
            hashlib.blake2b(f"{self.key}\0{half}".encode(), digest_size=32).digest() for half in range(_ROUNDS // 4)
        )
        sizes = np.array([self.size, a, -(-self.size // a)], np.uint64)
        return np.concatenate([sizes, np.frombuffer(digest, "<u8").astype(np.uint64)])


def permute(
    permutations: Sequence[Permutation], which: np.ndarray, indices: np.ndarray, *, inverse: bool = False
) -> np.ndarray:
    """The image of each index under its own permutation.

    Args:
        permutations: those that are needed.
        which: Int64[n], each item's permutation by its place in ``permutations``.
        indices: Int64[n], each within the size of its permutation.
        inverse: whether to go back from images to indices.

    Returns:
        Int64[n].
    """
    table = np.array([p.parameters for p in permutations]).T
    network = _undo if inverse else _shuffle
    # A single permutation's parameters are broadcast and not copied for every item.
    parameters = table if len(permutations) == 1 else table[:, which]
    out = network(indices.astype(np.uint64), parameters)
    outside = np.flatnonzero(out >= parameters[0])
    while outside.size:
        some = parameters if len(permutations) == 1 else parameters[:, outside]
        out[outside] = again = network(out[outside], some)
        outside = outside[again >= some[0]]
    return out.astype(np.int64)


def _shuffle(values: np.ndarray, parameters: np.ndarray) -> np.ndarray:
    """One pass of the network on UInt64[n] below ``a * b``."""
    _, a, b, *keys = parameters
    left, right = np.divmod(values, b)
    for i in range(0, _ROUNDS, 2):
        left = _add(left, _mix(right ^ keys[i]), a)
        right = _add(right, _mix(left ^ keys[i + 1]), b)
    return left * b + right


def _undo(values: np.ndarray, parameters: np.ndarray) -> np.ndarray:
    """The inverse of `_shuffle`: its rounds backwards."""
    _, a, b, *keys = parameters
    left, right = np.divmod(values, b)
    for i in reversed(range(0, _ROUNDS, 2)):
        right = _subtract(right, _mix(left ^ keys[i + 1]), b)
        left = _subtract(left, _mix(right ^ keys[i]), a)
    return left * b + right


def _mix(x: np.ndarray) -> np.ndarray:
    """The keyed hash of ``x``, which is overwritten."""
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=False):
        x ^= x >> shift
        x *= multiplier
    x ^= x >> _SHIFTS[2]
    return x


def _add(x: np.ndarray, change: np.ndarray, size: np.ndarray) -> np.ndarray:
    """``x + change`` modulo ``size``, of ``x`` below it; ``change`` is overwritten."""
    change %= size
    change += x
    # Below ``size``, taking it away wraps around to something larger. A second division would cost more.
    return np.minimum(change, change - size, out=change)


def _subtract(x: np.ndarray, change: np.ndarray, size: np.ndarray) -> np.ndarray:
    """``x - change`` modulo ``size``, of ``x`` below it; ``change`` is overwritten."""
    change %= size
    np.subtract(x, change, out=change)
    return np.minimum(change, change + size, out=change)
