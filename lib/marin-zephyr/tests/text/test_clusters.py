"""Decisions among candidates: verified, maximal, and a function of the set of documents alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_zephyr.text.clusters import Decision, components, connect, decide
from marin_zephyr.text.ngrams import jaccard

THRESHOLD = 0.6


@st.composite
def corpora(draw: st.DrawFn) -> tuple[list[np.ndarray], np.ndarray, np.ndarray, np.ndarray]:
    """Small sets over few elements, so that similar ones abound; band keys collide freely, true or not."""
    sets = draw(st.lists(st.sets(st.integers(0, 9), min_size=1), min_size=1, max_size=14))
    keys = draw(st.lists(st.lists(st.integers(0, 4), min_size=2, max_size=2), min_size=len(sets), max_size=len(sets)))
    lengths = draw(st.lists(st.integers(1, 3), min_size=len(sets), max_size=len(sets)))
    bands = np.array(keys, dtype=np.uint64) + np.array([0, 100], dtype=np.uint64)
    ids = np.array([f"{i:02d}" for i in range(len(sets))])
    return [np.array(sorted(s), dtype=np.uint64) for s in sets], bands, ids, np.array(lengths)


def components_of(bands: np.ndarray, *, preferred: np.ndarray) -> list[np.ndarray]:
    return components(connect(bands.T, num_documents=len(bands)), preferred=preferred)


def decide_all(sets: list, bands: np.ndarray, ids: np.ndarray, num_bytes: np.ndarray) -> dict[str, tuple[str, float]]:
    found = components_of(bands, preferred=np.lexsort((ids, -num_bytes)))
    decisions = [decide(c, bands=bands, sets=dict(enumerate(sets)), threshold=THRESHOLD) for c in found]
    return {ids[d.dropped]: (ids[d.kept], d.similarity) for decision in decisions for d in decision.duplicates}


@given(corpora())
def test_dropped_documents_are_verified_against_kept_ones_and_kept_ones_differ(corpus: tuple) -> None:
    sets, bands, ids, num_bytes = corpus
    dropped = decide_all(*corpus)
    row = {name: i for i, name in enumerate(ids)}
    for name, (kept, similarity) in dropped.items():
        assert kept not in dropped
        assert similarity == jaccard(sets[row[name]], sets[row[kept]]) >= THRESHOLD
        assert (-num_bytes[row[kept]], kept) < (-num_bytes[row[name]], name)
    survivors = [row[name] for name in ids if name not in dropped]
    for i in survivors:
        for j in survivors:
            if i < j and (bands[i] == bands[j]).any():
                assert jaccard(sets[i], sets[j]) < THRESHOLD


@given(corpora(), st.randoms(use_true_random=False))
def test_decisions_do_not_depend_on_the_order_of_rows(corpus: tuple, random) -> None:
    sets, bands, ids, num_bytes = corpus
    order = list(range(len(sets)))
    random.shuffle(order)
    shuffled = ([sets[i] for i in order], bands[order], ids[order], num_bytes[order])
    assert decide_all(*shuffled) == decide_all(*corpus)


def test_the_end_of_a_chain_is_not_dropped_for_a_document_that_is_gone() -> None:
    sets = [np.arange(0, 8), np.arange(2, 10), np.arange(4, 12)]  # 6/10 between neighbours, 4/12 between the ends
    bands = np.array([[1], [1], [1]], dtype=np.uint64)
    dropped = decide_all([s.astype(np.uint64) for s in sets], bands, np.array(["a", "b", "c"]), np.array([3, 2, 1]))
    assert dropped == {"b": ("a", pytest.approx(0.6))}


def test_components_follow_chains_of_keys_and_leave_out_the_lonely() -> None:
    bands = np.array([[1, 10], [2, 10], [2, 11], [3, 12]], dtype=np.uint64)
    preferred = np.array([3, 1, 2, 0])
    (component,) = components_of(bands, preferred=preferred)
    assert component.tolist() == [1, 2, 0]
    assert components_of(bands[:0], preferred=preferred[:0]) == []


@given(st.lists(st.lists(st.integers(0, 12), min_size=3, max_size=3), max_size=20))
def test_labels_are_the_components_of_the_graph_of_shared_keys(keys: list[list[int]]) -> None:
    bands = np.array(keys, dtype=np.uint64).reshape(len(keys), 3)
    reached = {i: {i} for i in range(len(keys))}
    for _ in keys:
        for i, j in ((i, j) for i in reached for j in reached if (bands[i] == bands[j]).any()):
            reached[i] |= reached[j]
    labels = connect(bands.T, num_documents=len(bands))
    assert all((labels[i] == labels[j]) == (j in reached[i]) for i in reached for j in reached)


def test_thousand_copies_cost_a_comparison_each() -> None:
    copies = 1000
    bands = np.ones((copies, 5), dtype=np.uint64) * np.arange(5, dtype=np.uint64)
    one = np.arange(10, dtype=np.uint64)
    (component,) = components_of(bands, preferred=np.arange(copies))
    decision = decide(component, bands=bands, sets=dict.fromkeys(range(copies), one), threshold=0.8)
    assert isinstance(decision, Decision)
    assert decision.num_compared == len(decision.duplicates) == copies - 1
