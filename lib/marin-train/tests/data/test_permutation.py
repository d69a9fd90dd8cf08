import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_train.data.permutation import MAX_SIZE, Permutation, permute

SIZES = st.integers(1, 5000) | st.integers(2**31, 2**40) | st.integers(2**40, MAX_SIZE)


@given(size=st.integers(1, 5000), key=st.text(max_size=8))
def test_every_size_and_key_gives_a_bijection(size: int, key: str) -> None:
    images = Permutation(size, key)(np.arange(size))
    assert np.array_equal(np.sort(images), np.arange(size))


@given(size=st.integers(2**32, 2**40), start=st.integers(0, 2**32 - 1000))
def test_beyond_32_bits_images_stay_inside_and_distinct(size: int, start: int) -> None:
    images = Permutation(size, "k")(np.arange(start, start + 1000))
    assert images.min() >= 0
    assert images.max() < size
    assert len(np.unique(images)) == 1000


@given(size=SIZES, key=st.text(max_size=8), data=st.data())
@settings(max_examples=50)
def test_the_inverse_leads_back_whatever_the_size(size: int, key: str, data: st.DataObject) -> None:
    permutation = Permutation(size, key)
    indices = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=50)))
    images = permutation(indices)
    assert images.min() >= 0
    assert images.max() < size
    assert np.array_equal(permutation.inverse(images), indices)
    assert np.array_equal(permutation(permutation.inverse(indices)), indices)


@given(sizes=st.lists(SIZES, min_size=1, max_size=5), data=st.data())
@settings(max_examples=50)
def test_many_permutations_in_one_pass_are_each_alone(sizes: list[int], data: st.DataObject) -> None:
    permutations = [Permutation(size, f"k{i}") for i, size in enumerate(sizes)]
    which = np.array(data.draw(st.lists(st.integers(0, len(sizes) - 1), max_size=40)), np.int64)
    indices = np.array([data.draw(st.integers(0, sizes[w] - 1)) for w in which], np.int64)
    together = permute(permutations, which, indices)
    for number, permutation in enumerate(permutations):
        assert np.array_equal(together[which == number], permutation(indices[which == number]))


def test_at_two_to_the_forty_images_spread_over_the_whole_range() -> None:
    images = Permutation(2**40, "k")(np.arange(2**39, 2**39 + 4096))
    counts = np.bincount(images >> 36, minlength=16)
    # 256 a sixteenth are expected; six standard deviations are 93.
    assert np.abs(counts - 256).max() < 93


@given(size=st.integers(50, 2000), data=st.data())
def test_an_index_alone_gives_what_it_gives_among_all(size: int, data: st.DataObject) -> None:
    permutation = Permutation(size, "key")
    whole = permutation(np.arange(size))
    chosen = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20))
    assert np.array_equal(permutation(np.array(chosen)), whole[chosen])


@given(size=st.integers(50, 2000))
def test_keys_that_differ_in_a_character_give_unrelated_orders(size: int) -> None:
    a, b = (Permutation(size, key)(np.arange(size)) for key in ("epoch 0", "epoch 1"))
    # Two random orders agree in one place on average, and in 20 with a probability below 1e-18.
    assert np.count_nonzero(a == b) < 20


def _chi_square(values: np.ndarray, num_cells: int) -> float:
    """How far counts are from equal, in standard deviations of what chance would do."""
    counts = np.bincount(values, minlength=num_cells)
    expected = len(values) / num_cells
    return float(((counts - expected) ** 2 / expected).sum() - (num_cells - 1)) / math.sqrt(2 * (num_cells - 1))


def _congruence(size: int, indices: np.ndarray) -> np.ndarray:
    """What the tests of randomness must not let pass: each index times a constant, plus another."""
    return (indices * 48_271 + 12_345) % size


def _neighbours(size: int, images: np.ndarray) -> float:
    """Whether the distance to the next image is anything: 64 cells, uniform around a circle."""
    return abs(_chi_square((np.diff(images) % size) * 64 // size, 64))


def _displacement(size: int, images: np.ndarray) -> float:
    """Whether the way from an index to its image is anything, by the index's sixteenth."""
    indices = np.arange(len(images))
    return abs(_chi_square((indices * 16 // size) * 16 + images * 16 // size, 256))


@pytest.mark.parametrize("size", [99_991, 100_000, 2**17])
def test_neighbours_go_anywhere(size: int) -> None:
    indices = np.arange(size)
    assert _neighbours(size, Permutation(size, "k")(indices)) < 6
    assert _neighbours(size, _congruence(size, indices)) > 100


@pytest.mark.parametrize("size", [99_991, 2**17])
def test_the_next_three_images_say_nothing_of_each_other(size: int) -> None:
    def triples(images: np.ndarray) -> float:
        cells = images * 8 // size
        return abs(_chi_square(cells[:-2] * 64 + cells[1:-1] * 8 + cells[2:], 512))

    indices = np.arange(size)
    assert triples(Permutation(size, "k")(indices)) < 6
    assert triples(_congruence(size, indices) if size % 2 else (indices * 5 + 1) % size) > 100


@pytest.mark.parametrize("size", [99_991, 2**17])
def test_every_part_goes_to_every_part(size: int) -> None:
    indices = np.arange(size)
    assert _displacement(size, Permutation(size, "k")(indices)) < 6
    assert _displacement(size, (indices + 12_345) % size) > 100


def test_a_bit_of_the_index_changes_half_of_the_image() -> None:
    """At a power of 4 no value is sent through again, so that a flipped bit is seen alone."""
    bits, indices = 40, np.random.default_rng(0).integers(0, 2**40, 2000)
    images = Permutation(2**bits, "k")(indices)
    for bit in range(bits):
        changed = images ^ Permutation(2**bits, "k")(indices ^ (1 << bit))
        share = np.array([np.count_nonzero(changed >> i & 1) for i in range(bits)]) / len(indices)
        # Six standard deviations of a fair coin thrown 2,000 times.
        assert np.abs(share - 0.5).max() < 6 * 0.5 / math.sqrt(2000)


def test_shape_is_kept() -> None:
    assert Permutation(10, "k")(np.arange(6).reshape(2, 3)).shape == (2, 3)
    assert Permutation(10, "k")(np.arange(0)).shape == (0,)


@pytest.mark.parametrize("size", [0, -1, MAX_SIZE + 1])
def test_a_size_out_of_range_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"size={size}"):
        Permutation(size, "k")


@pytest.mark.parametrize("index", [-1, 10])
def test_an_index_out_of_range_is_refused(index: int) -> None:
    with pytest.raises(IndexError, match="outside"):
        Permutation(10, "k")(np.array([index]))


def test_an_order_stays_the_same_in_later_versions() -> None:
    assert Permutation(1000, "k")(np.arange(6)).tolist() == [529, 694, 692, 590, 938, 420]
    late = Permutation((1 << 40) + 7, "epoch 3")(np.arange(3))
    assert late.tolist() == [270671679778, 231053005857, 519918125913]
