"""Which near-duplicates go and which document stays for them: candidates from bands, decisions from whole sets.

Documents that share a band key are only candidates. Each is compared by its whole n-gram set before anything is
removed, in a fixed order of preference (for `fuzzy_dedup` the longest text first, the smallest id among equals):

    a document is dropped if it is a verified near-duplicate of a document already kept, and is kept otherwise.

So every dropped document names a kept one at least `threshold` similar to it, and no two kept candidates are that
similar. (Keeping one document a connected component would not promise the first: in a chain a ~ b ~ c the ends may have
little in common, and c would go for the sake of b, which itself is gone.) Components still divide the work: no
candidate pair crosses two of them, so each is decided alone, in any order, with only its own sets in memory.

Invariant: the decision is a function of the set of documents: of no file order, shard count or worker count.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from marin_zephyr.text.ngrams import num_shared


@dataclass(frozen=True)
class Duplicate:
    """A document to drop, and the one that stays for it.

    Attributes:
        dropped: the row of the document to drop.
        kept: the row of the document kept in its place.
        similarity: the Jaccard index of their n-gram sets.
        containment: the share of the dropped document's n-grams that the kept one has too.
    """

    dropped: int
    kept: int
    similarity: float
    containment: float


@dataclass(frozen=True)
class Decision:
    """What became of one component: the documents to drop, and the pairs that were compared and found similar."""

    duplicates: tuple[Duplicate, ...]
    num_compared: int
    num_similar: int


def connect(bands: Iterable[NDArray[np.uint64]], *, num_documents: int) -> NDArray[np.int32]:
    """Labels documents such that any chain of shared band keys leads to one label.

    One band after the other is sorted and merged into the labels, so that the memory this takes is a few arrays of one
    band, whatever the number of bands and however many documents collide.

    Args:
        bands: uint64 [documents] for each band, as columns of what `minhash.band_keys` gives.
        num_documents: how many documents there are.

    Returns:
        int32 [documents], from 0.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    labels = np.arange(num_documents, dtype=np.int32)
    num_labels = num_documents
    for band in bands:
        order = np.argsort(band)
        keys = band[order]
        same = np.flatnonzero(keys[1:] == keys[:-1])
        edges = labels[order[same]], labels[order[same + 1]]
        graph = coo_array((np.ones(len(same), dtype=np.int8), edges), shape=(num_labels, num_labels))
        num_labels, merged = connected_components(graph, directed=False)
        labels = merged[labels]
    return labels


def components(labels: NDArray[np.integer], *, preferred: NDArray[np.integer]) -> list[NDArray[np.integer]]:
    """Gathers the documents of each label.

    Args:
        labels: [documents], as `connect` gives them.
        preferred: the rows of documents that take part, from the one kept before all others to the last.

    Returns:
        The components of two documents or more, each an array of rows by preference, in the order of their first
        members' preference.
    """
    grouped_somewhere = np.bincount(labels[preferred], minlength=1)[labels[preferred]] > 1
    preferred = preferred[grouped_somewhere]
    _, first, component = np.unique(labels[preferred], return_index=True, return_inverse=True)
    component = np.argsort(np.argsort(first))[component]  # numbered by their first members' preference
    grouped = preferred[np.argsort(component, kind="stable")]
    return np.split(grouped, np.cumsum(np.bincount(component))[:-1]) if len(grouped) else []


def decide(
    component: NDArray, *, bands: NDArray[np.uint64], sets: Mapping[int, NDArray[np.uint64]], threshold: float
) -> Decision:
    """Decides one component: who is dropped, and for whom.

    Args:
        component: rows by preference.
        bands: uint64 [documents, num_bands], of all documents.
        sets: the sorted n-gram hashes, none empty, of at least the component's rows.
        threshold: the Jaccard index from which a document is a near-duplicate.

    Returns:
        The duplicates in order of preference; each names the most similar kept document, the preferred among equals.
    """
    places_by_key: dict[int, list[int]] = defaultdict(list)  # of kept documents, as places in the component
    duplicates: list[Duplicate] = []
    num_compared = num_similar = 0
    for place, keys in enumerate(bands[component].tolist()):
        rivals = sorted({rival for key in keys for rival in places_by_key.get(key, ())})
        matches = [_compare(int(component[place]), int(component[rival]), sets=sets) for rival in rivals]
        num_compared += len(matches)
        num_similar += sum(match.similarity >= threshold for match in matches)
        best = max(matches, key=lambda match: match.similarity, default=None)  # the first of equals
        if best is not None and best.similarity >= threshold:
            duplicates.append(best)
            continue
        for key in keys:
            places_by_key[key].append(place)
    return Decision(tuple(duplicates), num_compared, num_similar)


def _compare(row: int, rival: int, *, sets: Mapping[int, NDArray[np.uint64]]) -> Duplicate:
    shared = num_shared(sets[row], sets[rival])
    union = len(sets[row]) + len(sets[rival]) - shared
    return Duplicate(row, rival, shared / union, shared / len(sets[row]))
