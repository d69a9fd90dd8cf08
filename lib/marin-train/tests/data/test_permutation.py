import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_train.data.permutation import MAX_SIZE, Permutation


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


def test_neighbours_do_not_stay_neighbours() -> None:
    images = Permutation(100_000, "k")(np.arange(100_000))
    steps = np.diff(images)
    assert abs(np.corrcoef(images[:-1], images[1:])[0, 1]) < 0.02
    assert len(np.unique(steps)) > 50_000


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
