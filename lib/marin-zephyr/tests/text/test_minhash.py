"""Signatures estimate the Jaccard index, and bands find what they promise to find."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr.text.minhash import EMPTY, Banding, band_keys, choose_banding, estimated_jaccard, signatures
from marin_zephyr.text.ngrams import NgramSets, jaccard, mix


def sets_from(*members: range | list[int]) -> NgramSets:
    """Sets of well-mixed hashes, one for each integer given."""
    arrays = [np.sort(mix(np.array(list(numbers), dtype=np.uint64) + np.uint64(1))) for numbers in members]
    return NgramSets(np.concatenate([*arrays, np.zeros(0, np.uint64)]), np.cumsum([0, *map(len, arrays)]))


@settings(max_examples=60)
@given(st.integers(0, 2000), st.integers(0, 2000), st.integers(1, 2000), st.integers(0, 2**40))
def test_estimate_is_within_hoeffdings_bound(left: int, right: int, shared: int, start: int) -> None:
    """Fails by chance for fewer than one pair in 10**9."""
    num_permutations = 1024
    a = range(start, start + left + shared)
    b = range(start + left, start + left + shared + right)
    sets = sets_from(a, b)
    signature = signatures(sets, num_permutations=num_permutations)
    bound = math.sqrt(math.log(2 / 1e-9) / (2 * num_permutations))
    assert abs(estimated_jaccard(signature[0], signature[1]) - jaccard(sets[0], sets[1])) <= bound


@pytest.mark.parametrize("size", [6, 60, 600])
def test_estimate_is_unbiased_for_sparse_and_dense_sets(size: int) -> None:
    """Sets far smaller than the signature borrow most of their places; the mean over pairs must not shift."""
    pairs = [(range(i * 10**6, i * 10**6 + size), range(i * 10**6 + size // 3, i * 10**6 + size)) for i in range(1500)]
    signature = signatures(sets_from(*(s for pair in pairs for s in pair)), num_permutations=64)
    estimates = [estimated_jaccard(signature[i], signature[i + 1]) for i in range(0, len(signature), 2)]
    true = 2 / 3
    # A pair's estimate has at most the variance of one draw of an all-or-nothing variable.
    assert abs(np.mean(estimates) - true) <= 4 * math.sqrt(true * (1 - true) / len(pairs))


@given(st.lists(st.integers(0, 2**60), unique=True, max_size=50), st.integers(1, 300))
def test_signature_has_no_empty_place_and_only_members(numbers: list[int], num_permutations: int) -> None:
    sets = sets_from(numbers, [])
    signature = signatures(sets, num_permutations=num_permutations)
    assert (signature[1] == EMPTY).all()
    if numbers:
        assert np.isin(signature[0], sets[0]).all()


@pytest.mark.parametrize(("threshold", "recall"), [(0.8, 0.995), (0.5, 0.99), (0.95, 0.999)])
def test_chosen_banding_is_the_longest_that_reaches_the_recall(threshold: float, recall: float) -> None:
    banding = choose_banding(128, threshold, recall=recall)
    assert banding.num_bands * banding.num_rows <= 128
    assert banding.recall(threshold) >= recall
    longer = banding.num_rows + 1
    assert Banding(128 // longer, longer).recall(threshold) < recall


def test_impossible_banding_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match="raise num_permutations"):
        choose_banding(2, 0.5, recall=0.999)


def test_bands_find_pairs_at_the_threshold() -> None:
    banding = choose_banding(128, 0.8)
    pairs = [(range(i * 10**6, i * 10**6 + 450), range(i * 10**6 + 50, i * 10**6 + 500)) for i in range(1000)]
    keys = band_keys(signatures(sets_from(*(s for pair in pairs for s in pair))), banding=banding)
    found = (keys[0::2] == keys[1::2]).any(axis=1).mean()
    expected = banding.recall(0.8)
    assert found >= expected - 4 * math.sqrt(expected * (1 - expected) / len(pairs))


def test_equal_places_in_different_bands_give_different_keys() -> None:
    keys = band_keys(np.ones((1, 12), dtype=np.uint64), banding=Banding(4, 3))
    assert len(set(keys[0].tolist())) == 4
