"""A sorted array in a file, in which workers look values up: mapped into memory, never sent to them.

What one pass decides for the next (which documents are candidates, which go, which n-grams are forbidden) may be
millions of values. Sent along with a function it would travel once a task; in a file that every worker maps it is read
from the disk once a machine.

Invariant: two lookups are equal, and have one fingerprint, exactly if they hold the same values, wherever their files
lie. So a pass is repeated only if what was decided before it has changed.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import InitVar, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from marin_zephyr.durability import new_file


@dataclass(frozen=True)
class Lookup:
    """A sorted array without repeats, in a file. Make one with `write_lookup`.

    Attributes:
        digest: the sha256 of the values.
        path: where they are; no field, so that it does not count when lookups are compared or fingerprinted.
    """

    digest: str
    path: InitVar[str]

    def __post_init__(self, path: str) -> None:
        object.__setattr__(self, "_path", path)

    def values(self) -> NDArray:
        """The values, ascending, mapped from the file."""
        return _mapped(getattr(self, "_path"))  # noqa: B009  set in __post_init__, so no checker knows it

    def positions(self, values: NDArray) -> NDArray[np.int64]:
        """Where each value stands in the sorted array; -1 for one that is not in it.

        Args:
            values: of the array's kind: hashes, or ids as `encode_ids` gives them.
        """
        known = self.values()
        if len(known) == 0 or len(values) == 0:
            return np.full(len(values), -1, dtype=np.int64)
        positions = np.minimum(np.searchsorted(known, values), len(known) - 1)
        return np.where(known[positions] == values, positions, -1)

    def find(self, hashes: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Which of many hashes are in the lookup, where few are; fast if those of the lookup are uniform.

        Nearly all that are not in it fail a test of their leading bits against a table that fits in the cache.

        Returns:
            The indices of those that are, ascending, and their positions in the sorted array.
        """
        table, shift = _leading_bits(getattr(self, "_path"))  # noqa: B009
        maybe = np.flatnonzero(table[hashes >> shift])
        positions = self.positions(hashes[maybe])
        found = positions >= 0
        return maybe[found], positions[found]


def write_lookup(values: NDArray, *, directory: Path) -> Lookup:
    """Writes the distinct values, sorted, to a file named by their digest.

    Args:
        values: numbers, or byte strings of one width.
        directory: one that every worker can read.

    Raises:
        OutputError: the directory cannot be written.
    """
    distinct = np.unique(values)
    digest = hashlib.sha256(distinct.dtype.str.encode() + distinct.tobytes()).hexdigest()
    path = directory / f"lookup-{digest[:16]}.npy"
    with new_file(path, durable=False) as hidden, hidden.open("wb") as file:
        np.save(file, distinct)
    return Lookup(digest, str(path))


def encode_ids(ids: Iterable[str]) -> NDArray[np.bytes_]:
    """Ids as byte strings of one width, which sort as the ids do."""
    return np.array([i.encode() for i in ids], dtype=np.bytes_)


@lru_cache(maxsize=16)
def _mapped(path: str) -> NDArray:
    # An array of no bytes cannot be mapped.
    values = np.load(path, mmap_mode="r") if Path(path).stat().st_size > 4096 else np.load(path)
    return values.view(np.ndarray)  # plain arrays slice and compare faster than `memmap`s


@lru_cache(maxsize=16)
def _leading_bits(path: str) -> tuple[NDArray[np.bool_], np.uint64]:
    """Whether any value has these leading bits, for all of them, and by how much to shift a value to get its own."""
    values = _mapped(path)
    # 16 places or more a value, so that one of 16 others passes; 64 MiB at most.
    num_bits = min(max(10, len(values).bit_length() + 4), 26)
    shift = np.uint64(64 - num_bits)
    table = np.zeros(1 << num_bits, dtype=bool)
    table[values >> shift] = True
    return table, shift
