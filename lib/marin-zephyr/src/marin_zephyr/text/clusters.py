"""Which near-duplicates go and which document stays for them: components from bands, decisions from whole sets.

Documents that share a band key may be alike, and chains of shared keys divide documents into components. Within one,
documents are compared by their whole n-gram sets before anything is removed, in a fixed order of preference (for
`fuzzy_dedup` the longest text first, the smallest id among equals):

    a document is dropped if it is a near-duplicate of a document already kept, and is kept otherwise.

So every dropped document names a kept one at least `threshold` similar to it, and no two kept documents of a component
are that similar. (Keeping one document a component would not promise the first: in a chain a ~ b ~ c the ends may have
little in common, and c would go for the sake of b, which itself is gone.) No pair of candidates crosses two components,
so each is decided alone, in any order, with only its own sets in memory.

Pages of one template share many n-grams and thousands of them fill one component, so not all pairs are compared. Two
sets with a Jaccard index of t or more share one of the (1 - t) n + 1 n-grams that are rarest in the component, n being
the size of either (prefix filtering: Chaudhuri, Ganti and Kaushik, 2006; Xiao et al., 2008), and what a template
repeats is not rare. This leaves out no pair that would count.

Invariant: the decision is a function of the set of documents: of no file order, shard count or worker count.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


def decide(component: NDArray, *, sets: Mapping[int, NDArray[np.uint64]], threshold: float) -> Decision:
    """Decides one component: who is dropped, and for whom.

    Args:
        component: rows by preference.
        sets: the sorted n-gram hashes, none empty, of at least the component's rows.
        threshold: the Jaccard index from which a document is a near-duplicate.

    Returns:
        The duplicates in order of preference; each names the most similar kept document, the preferred among equals.
    """
    rarest = _rarest([sets[row] for row in component.tolist()], threshold=threshold)
    places_by_ngram: dict[int, list[int]] = defaultdict(list)  # of kept documents, as places in the component
    duplicates: list[Duplicate] = []
    num_compared = num_similar = 0
    for place, ngrams in enumerate(rarest):
        rivals = sorted({rival for ngram in ngrams for rival in places_by_ngram.get(ngram, ())})
        matches = [_compare(int(component[place]), int(component[rival]), sets=sets) for rival in rivals]
        num_compared += len(matches)
        num_similar += sum(match.similarity >= threshold for match in matches)
        best = max(matches, key=lambda match: match.similarity, default=None)  # the first of equals
        if best is not None and best.similarity >= threshold:
            duplicates.append(best)
            continue
        for ngram in ngrams:
            places_by_ngram[ngram].append(place)
    return Decision(tuple(duplicates), num_compared, num_similar)


def _rarest(sets: Sequence[NDArray[np.uint64]], *, threshold: float) -> Iterator[list[int]]:
    """Of each set the n-grams that are rarest among all, one of which a similar set must have; numbered by rarity."""
    _, inverse, counts = np.unique(np.concatenate(sets), return_inverse=True, return_counts=True)
    ranks = np.empty(len(counts), dtype=np.int64)
    ranks[np.argsort(counts, kind="stable")] = np.arange(len(counts))
    for ranked in np.split(ranks[inverse], np.cumsum([len(s) for s in sets])[:-1]):
        least_shared = math.ceil(threshold * len(ranked) - 1e-9)  # less what rounding may have added
        yield np.sort(ranked)[: len(ranked) - least_shared + 1].tolist()


def _compare(row: int, rival: int, *, sets: Mapping[int, NDArray[np.uint64]]) -> Duplicate:
    shared = num_shared(sets[row], sets[rival])
    union = len(sets[row]) + len(sets[rival]) - shared
    return Duplicate(row, rival, shared / union, shared / len(sets[row]))
