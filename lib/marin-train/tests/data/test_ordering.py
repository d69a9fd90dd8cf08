import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_train.configs import ShuffleConfig
from marin_train.data.ordering import Blocks, Ordering, Pool, permute_blocks


def _pool(name: str = "web", *, num_sequences: int, num_held_out: int = 0, size: int | None = None) -> Pool:
    return Pool(name, num_sequences, num_held_out, num_sequences - num_held_out if size is None else size)


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    num_sequences = draw(st.integers(1, 300))
    held_out = draw(st.integers(0, num_sequences - 1))
    size = draw(st.integers(1, num_sequences - held_out))
    return _pool(draw(st.text(max_size=3)), num_sequences=num_sequences, num_held_out=held_out, size=size)


SHUFFLES = st.just(ShuffleConfig()) | st.builds(ShuffleConfig, block=st.integers(1, 20), window=st.integers(1, 8))


def _epoch(pool: Pool, epoch: int = 0, *, seed: int = 0, shuffle: ShuffleConfig | None = None) -> np.ndarray:
    ordering = Ordering([pool], seed=seed, shuffle=shuffle or ShuffleConfig())
    ordinals = np.arange(epoch * pool.size, (epoch + 1) * pool.size)
    return ordering.numbers(np.zeros_like(ordinals), ordinals)


@given(pool=pools(), shuffle=SHUFFLES, seed=st.integers(0, 5), epoch=st.integers(0, 10**9))
@settings(max_examples=50)
def test_every_epoch_has_the_same_sequences_once_each_and_none_held_out(
    pool: Pool, shuffle: ShuffleConfig, seed: int, epoch: int
) -> None:
    first, later = (_epoch(pool, e, seed=seed, shuffle=shuffle) for e in (0, epoch))
    assert len(np.unique(first)) == pool.size
    assert np.array_equal(np.sort(first), np.sort(later))
    assert first.min() >= 0
    assert first.max() < pool.num_sequences
    assert not set(first.tolist()) & set(pool.held_out.tolist())


@given(a=pools(), b=pools(), shuffle=SHUFFLES)
@settings(max_examples=50)
def test_components_together_are_the_components_alone(a: Pool, b: Pool, shuffle: ShuffleConfig) -> None:
    ordinals = np.arange(200)
    component = ordinals % 2
    together = Ordering([a, b], seed=3, shuffle=shuffle).numbers(component, ordinals)
    for index, pool in enumerate((a, b)):
        own = ordinals[component == index]
        alone = Ordering([pool], seed=3, shuffle=shuffle).numbers(np.zeros_like(own), own)
        assert np.array_equal(together[component == index], alone)


def test_epochs_seeds_and_names_have_unrelated_orders() -> None:
    pool = _pool(num_sequences=1000)
    base = _epoch(pool)
    for other in (_epoch(pool, 1), _epoch(pool, seed=1), _epoch(_pool("wiki", num_sequences=1000))):
        # Two random orders agree in one place on average, and in 20 with a probability below 1e-18.
        assert np.count_nonzero(base == other) < 20


@given(num_sequences=st.integers(2, 300), data=st.data())
@settings(max_examples=50)
def test_holding_out_more_holds_out_the_same_ones_too(num_sequences: int, data: st.DataObject) -> None:
    few, many = sorted(data.draw(st.lists(st.integers(0, num_sequences - 1), min_size=2, max_size=2)))
    a, b = (_pool(num_sequences=num_sequences, num_held_out=n).held_out for n in (few, many))
    assert len(np.unique(b)) == many
    assert np.array_equal(a, b[:few])


@given(num_sequences=st.integers(2, 300), block=st.integers(0, 20), data=st.data())
@settings(max_examples=50)
def test_a_larger_part_of_a_component_holds_the_smaller(num_sequences: int, block: int, data: st.DataObject) -> None:
    few, many = sorted(data.draw(st.lists(st.integers(1, num_sequences), min_size=2, max_size=2)))
    shuffle = ShuffleConfig(block=block)
    a, b = (set(_epoch(_pool(num_sequences=num_sequences, size=n), shuffle=shuffle).tolist()) for n in (few, many))
    assert a <= b


@given(
    size=st.integers(1, 500), block=st.integers(1, 40), window=st.integers(1, 9), epoch=st.integers(0, 3),
    start=st.integers(0, 500), length=st.integers(1, 200),
)  # fmt: skip
@settings(max_examples=50)
def test_a_stretch_of_draws_touches_few_blocks(
    size: int, block: int, window: int, epoch: int, start: int, length: int
) -> None:
    order = _epoch(_pool(num_sequences=size), epoch, shuffle=ShuffleConfig(block=block, window=window))
    touched = len(np.unique(order[start : start + length] // block))
    # As many windows as can overlap the stretch; the one with the short block may be a block less long.
    shortest = max(1, (window - 1) * block)
    assert touched <= window * (2 + (length - 1) // shortest)


@given(size=st.integers(1, 500), block=st.integers(1, 40), key=st.text(max_size=3))
@settings(max_examples=50)
def test_a_window_of_one_block_keeps_the_order_within_blocks(size: int, block: int, key: str) -> None:
    order = permute_blocks([Blocks(size, block, key)], np.zeros(size, np.int64), np.arange(size), window=1)
    assert np.array_equal(np.sort(order), np.arange(size))
    changes = np.flatnonzero(np.diff(order) != 1)
    assert len(changes) < -(-size // block)


def test_blocks_and_their_sequences_come_in_another_order_each_epoch() -> None:
    pool, shuffle = _pool(num_sequences=1003), ShuffleConfig(block=10, window=8)
    epochs = [_epoch(pool, e, shuffle=shuffle) for e in range(3)]
    for a, b in itertools.pairwise(epochs):
        assert np.count_nonzero(a == b) < 20
    # The short last block is not always last.
    assert len({int(np.flatnonzero(e >= 1000).max()) for e in epochs}) > 1


@given(size=st.integers(2**31, 2**40), block=st.integers(1, 10**5), held_out=st.integers(0, 1000))
@settings(max_examples=20)
def test_beyond_32_bits_sequences_stay_inside_and_distinct(size: int, block: int, held_out: int) -> None:
    pool = _pool(num_sequences=size, num_held_out=held_out)
    ordinals = np.arange(5 * pool.size // 2, 5 * pool.size // 2 + 1000)
    for shuffle in (ShuffleConfig(), ShuffleConfig(block=block)):
        numbers = Ordering([pool], seed=0, shuffle=shuffle).numbers(np.zeros_like(ordinals), ordinals)
        assert len(np.unique(numbers)) == 1000
        assert numbers.min() >= 0
        assert numbers.max() < size
