"""A keyed permutation of ``range(size)`` with random access: where an epoch's k-th sequence lies, without a table.

A generalised Feistel network on pairs (Black and Rogaway 2002, "Ciphers with arbitrary finite domains"): write an
index as ``(left, right)`` with ``left < a``, ``right < b`` and ``a * b`` just above ``size``; each round adds a
keyed hash of one half to the other, modulo its range, which is invertible whatever the hash. Values that land in
the gap between ``size`` and ``a * b`` are sent through again (cycle walking) until they are inside; the gap is
smaller than ``sqrt(size)``, so almost none are. The hash is the finaliser of splitmix64 (Steele et al. 2014), two
multiply-xorshift rounds: a linear congruence instead would leave neighbours neighbours.

Invariant: for every size and key a bijection. Nothing is stored, and the cost of an index does not depend on size.
"""

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

MAX_SIZE = 1 << 62
"""Beyond it ``a * b`` could pass the 64 bits it is computed in."""

_ROUNDS = 8


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
        values = np.asarray(indices, np.int64)
        if values.size and (values.min() < 0 or values.max() >= self.size):
            raise IndexError(f"indices {values.min()}..{values.max()} are outside range({self.size})")
        out = self._shuffle(values.astype(np.uint64).ravel())
        outside = np.flatnonzero(out >= self.size)
        while outside.size:
            out[outside] = self._shuffle(out[outside])
            outside = outside[out[outside] >= self.size]
        return out.astype(np.int64).reshape(values.shape)

    @cached_property
    def _round_keys(self) -> np.ndarray:
        digest = b"".join(
            hashlib.blake2b(f"{self.key}\0{half}".encode(), digest_size=32).digest() for half in range(_ROUNDS // 4)
        )
        return np.frombuffer(digest, "<u8")

    def _shuffle(self, values: np.ndarray) -> np.ndarray:
        """One pass of the network on UInt64[n] below ``a * b``."""
        a = math.isqrt(self.size - 1) + 1
        b = -(-self.size // a)
        a, b = np.uint64(a), np.uint64(b)
        left, right = values // b, values % b
        for i in range(0, _ROUNDS, 2):
            left = (left + _mix(right ^ self._round_keys[i]) % a) % a
            right = (right + _mix(left ^ self._round_keys[i + 1]) % b) % b
        return left * b + right


def _mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
