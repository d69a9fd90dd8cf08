import itertools
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from marin_train.digests import MODULUS, add_up

DTYPES = st.sampled_from([np.float32, np.float16, np.int32, np.uint8, np.int64, np.float64, np.bool_])
ARRAYS = DTYPES.flatmap(
    lambda dtype: hnp.array_shapes(min_dims=0, max_dims=4, max_side=5).map(lambda shape: _random(shape, dtype))
)


def _random(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    raw = np.random.default_rng(len(shape)).integers(0, 256, (*shape, np.dtype(dtype).itemsize), dtype=np.uint8)
    return (raw & 1).astype(bool)[..., 0] if dtype is np.bool_ else raw.view(dtype)[..., 0]


def test_the_digest_is_the_formula() -> None:
    """A value computed once by hand in Python's own integers: checkpoints on disk hang on it."""

    def key(dim: int, index: int) -> int:
        x = (index * 0x9E3779B97F4A7C15 + (dim + 1) * 0xD1B54A32D192ED03) % MODULUS
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % MODULUS
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % MODULUS
        return (x ^ (x >> 31)) | 1

    array = np.arange(1, 13, dtype=np.int32).reshape(3, 4)
    expected = sum(int(array[i, j]) * key(0, i) * key(1, j) for i, j in itertools.product(range(3), range(4)))
    assert add_up(array) == expected % MODULUS


@settings(max_examples=100)
@given(array=ARRAYS, data=st.data())
def test_any_flipped_bit_changes_the_digest(array: np.ndarray, data: st.DataObject) -> None:
    raw = bytearray(array.tobytes())
    bit = data.draw(st.just(0) if array.dtype == np.bool_ else st.integers(0, 7))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << bit
    flipped = np.frombuffer(bytes(raw), array.dtype).reshape(array.shape)
    assert add_up(flipped) != add_up(array)


@settings(max_examples=100)
@given(array=ARRAYS, data=st.data())
def test_however_an_array_is_cut_its_blocks_add_up_to_its_digest(array: np.ndarray, data: st.DataObject) -> None:
    cuts = [sorted({0, size, *data.draw(st.lists(st.integers(0, size), max_size=2))}) for size in array.shape]
    total = 0
    for bounds in itertools.product(*(list(itertools.pairwise(c)) for c in cuts)):
        block = array[tuple(slice(start, stop) for start, stop in bounds)]
        total += add_up(block, starts=[start for start, _ in bounds])
    assert total % MODULUS == add_up(array)


@settings(max_examples=50)
@given(array=ARRAYS, data=st.data())
def test_exchanged_elements_change_the_digest(array: np.ndarray, data: st.DataObject) -> None:
    flat = array.reshape(-1).copy()
    i, j = (data.draw(st.integers(0, flat.size - 1)) for _ in range(2))
    flat[[i, j]] = flat[[j, i]]
    same = flat.tobytes() == array.tobytes()
    assert (add_up(flat.reshape(array.shape)) == add_up(array)) == same


def test_blocks_longer_than_the_cache_are_added_up_like_short_ones() -> None:
    array = np.random.default_rng(0).normal(size=(3, 70_001)).astype(np.float32)
    halves = add_up(array[:, :35_000]) + add_up(array[:, 35_000:], starts=(0, 35_000))
    assert halves % MODULUS == add_up(array)
