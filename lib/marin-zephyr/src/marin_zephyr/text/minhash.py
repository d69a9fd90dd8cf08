"""MinHash signatures of n-gram sets by one permutation, and the bands that bring likely pairs together.

k-permutation MinHash hashes every element k times. One-permutation hashing (Li, Owen and Zhang, 2012) hashes it once:
the range of the hash is cut into k bins and each bin keeps its smallest member, so a signature costs one pass over the
set whatever k is. Our sets arrive sorted, which makes even that pass a comparison of neighbours: the first hash of
each bin is its minimum. A bin that is empty borrows from another, found by a probe sequence that depends on the bin
alone (optimal densification: Shrivastava, 2017), so two documents borrow alike and the invariant holds for sets of any
size: the probability that two signatures agree at a place is the Jaccard index of the sets.

Locality-sensitive hashing (Indyk and Motwani, 1998) then cuts a signature into b bands of r places: two documents are
a candidate pair if any band agrees entirely, which happens with probability 1 - (1 - J**r)**b.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from marin_zephyr.text.ngrams import NgramSets, mix

EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)


@dataclass(frozen=True)
class Banding:
    """How a signature is cut: `num_bands` bands of `num_rows` places each."""

    num_bands: int
    num_rows: int

    def recall(self, similarity: float) -> float:
        """The probability that a pair of this Jaccard index becomes a candidate."""
        return 1.0 - (1.0 - similarity**self.num_rows) ** self.num_bands


def choose_banding(num_permutations: int, threshold: float, *, recall: float = 0.995) -> Banding:
    """The most selective banding that still finds a pair at the threshold with the recall asked for.

    Longer bands raise fewer false candidates and cost less verification, so we take the longest that qualify.

    Args:
        num_permutations: places in a signature.
        threshold: the Jaccard index from which documents count as duplicates, in (0, 1].
        recall: the probability of finding a pair exactly at the threshold.

    Raises:
        ValueError: no banding of this many places reaches the recall; more places do.
    """
    for num_rows in range(num_permutations, 0, -1):
        banding = Banding(num_permutations // num_rows, num_rows)
        if banding.recall(threshold) >= recall:
            return banding
    raise ValueError(
        f"num_permutations = {num_permutations} cannot find pairs at threshold {threshold} with probability {recall}: "
        "raise num_permutations or the threshold"
    )


def signatures(sets: NgramSets, *, num_permutations: int = 128) -> NDArray[np.uint64]:
    """The MinHash signature of each document.

    Args:
        sets: sorted n-gram hashes.
        num_permutations: places k in a signature; the standard error of an estimated Jaccard index J is
            sqrt(J (1 - J) / k).

    Returns:
        uint64 [documents, num_permutations]; the row of an empty set is `EMPTY` throughout.
    """
    documents = np.repeat(np.arange(len(sets)), np.diff(sets.offsets))
    # The upper half of the hash, scaled to the number of bins: monotone, so sorted hashes visit the bins in order.
    bins = (sets.hashes >> np.uint64(32)) * np.uint64(num_permutations) >> np.uint64(32)
    places = documents * num_permutations + bins.astype(np.int64)
    smallest = np.ones(len(places), dtype=bool)
    smallest[1:] = places[1:] != places[:-1]
    flat = np.full(len(sets) * num_permutations, EMPTY, dtype=np.uint64)
    flat[places[smallest]] = sets.hashes[smallest]
    return _densify(flat.reshape(len(sets), num_permutations))


def estimated_jaccard(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> float:
    """The share of places at which two signatures agree: an unbiased estimate of the Jaccard index."""
    return float(np.mean((a == b) & (a != EMPTY)))


def band_keys(signature: NDArray[np.uint64], *, banding: Banding) -> NDArray[np.uint64]:
    """One 64-bit key a band: documents with an equal key in any column are candidates.

    Args:
        signature: uint64 [documents, places].
        banding: its `num_bands * num_rows` places are used, the rest ignored.

    Returns:
        uint64 [documents, num_bands]; keys of different bands never compare equal but by chance.
    """
    used = banding.num_bands * banding.num_rows
    rows = signature[:, :used].reshape(len(signature), banding.num_bands, banding.num_rows)
    keys = np.tile(np.arange(banding.num_bands, dtype=np.uint64), (len(signature), 1))
    for row in range(banding.num_rows):
        mix(keys)
        keys ^= rows[:, :, row]
    return mix(keys)


@cache
def _probes(num_bins: int) -> NDArray[np.int64]:
    """For each bin a permutation of the bins, in which an empty bin looks for a lender: int64 [bins, bins]."""
    keys = mix(np.arange(1, num_bins * num_bins + 1, dtype=np.uint64)).reshape(num_bins, num_bins)
    return np.argsort(keys, axis=1, kind="stable")


def _densify(signature: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Fills the empty bins of every document that has any full one."""
    num_bins = signature.shape[1]
    probes = np.ascontiguousarray(_probes(num_bins).T)
    full = signature != EMPTY
    # Flat places, as these are gathered much faster than pairs of row and column.
    places, is_full = signature.reshape(-1), full.reshape(-1)
    empty = np.flatnonzero(~full & full.any(axis=1, keepdims=True))
    for probe in probes:
        if len(empty) == 0:
            break
        bins = empty % num_bins
        lenders = empty - bins + probe[bins]
        found = is_full[lenders]
        places[empty[found]] = places[lenders[found]]
        empty = empty[~found]
    return signature
