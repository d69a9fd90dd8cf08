import dataclasses
import itertools
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_train.configs import Component, DataConfig
from marin_train.data.mixture import Interleave, Mixture, digest_batch
from marin_train.errors import ConfigError, TokenStoreError

WEIGHTS = st.lists(st.floats(1e-9, 1e9, allow_nan=False) | st.integers(1, 5).map(float), min_size=1, max_size=12).map(
    lambda values: {f"c{i}": weight for i, weight in enumerate(values)}
)


@given(weights=WEIGHTS, start=st.integers(0, 10**15), length=st.integers(0, 60))
def test_each_draw_is_the_next_of_its_component(weights: dict[str, float], start: int, length: int) -> None:
    interleave = Interleave(weights)
    draws = interleave.draws(start, start + length)
    counts = interleave.counts(start)
    for component, ordinal in zip(draws.component, draws.ordinal, strict=True):
        assert ordinal == counts[component]
        counts[component] += 1
    assert np.array_equal(counts, interleave.counts(start + length))


@given(weights=WEIGHTS, prefix=st.integers(0, 10**15))
def test_every_prefix_holds_exact_proportions(weights: dict[str, float], prefix: int) -> None:
    counts = Interleave(weights).counts(prefix)
    exact = {name: Fraction(str(weight)) for name, weight in weights.items()}
    bound = (1 + sum(Fraction(1, k) for k in range(1, len(weights)))) / 2
    assert counts.sum() == prefix
    for count, weight in zip(counts.tolist(), exact.values(), strict=True):
        assert abs(count - prefix * weight / sum(exact.values())) <= bound


@given(weights=WEIGHTS, start=st.integers(0, 10**6), cuts=st.lists(st.integers(0, 50), max_size=5))
def test_draws_do_not_depend_on_how_they_are_asked_for(weights: dict[str, float], start: int, cuts: list[int]) -> None:
    interleave = Interleave(weights)
    whole = interleave.draws(start, start + 50)
    bounds = [0, *sorted(cuts), 50]
    for a, b in reversed(list(itertools.pairwise(bounds))):
        piece = interleave.draws(start + a, start + b)
        assert np.array_equal(piece.component, whole.component[a:b])
        assert np.array_equal(piece.ordinal, whole.ordinal[a:b])


def test_a_tiny_weight_gets_its_turn() -> None:
    interleave = Interleave({"web": 1.0, "rare": 1e-12})
    assert interleave.counts(10**12)[1] in (0, 1)
    assert interleave.counts(10**13)[1] in (9, 10, 11)


def test_weights_are_read_as_the_decimals_that_were_written() -> None:
    counts = Interleave({"a": 0.1, "b": 0.2, "c": 0.7}).counts(10**18)
    assert counts.tolist() == [10**17, 2 * 10**17, 7 * 10**17]


@pytest.mark.parametrize("weight", [float("inf"), float("nan"), 0.0, -1.0])
def test_a_weight_that_is_not_positive_and_finite_is_refused(weight: float) -> None:
    with pytest.raises(ConfigError, match="'b'"):
        Interleave({"a": 1.0, "b": weight})


Open = Callable[..., Mixture]


@pytest.fixture
def mixture(tmp_path: Path, write_store: Callable[..., Path]) -> Open:
    """Opens a mixture of three stores of 20, 7 and 13 sequences whose tokens number their place in their store."""
    for i, (name, size) in enumerate({"a": 20, "b": 7, "c": 13}.items()):
        tokens = (1000 * i + np.arange(size * 4 + 1)).tolist()
        write_store(tmp_path / name, [[tokens[:30], tokens[30:]]], vocab_size=5000)

    def make(names: str = "abc", *, batch_size: int = 5, seed: int = 0, **weights: float) -> Mixture:
        components = tuple(Component(name=n, path=str(tmp_path / n), weight=weights.get(n, 1.0)) for n in names)
        config = DataConfig(components=components, seq_len=4, seed=seed)
        return Mixture.open(config, batch_size=batch_size, vocab_size=5000)

    return make


def _sequences(mixture: Mixture, name: str, num_steps: int) -> list[int]:
    """The sequence numbers of one component, in the order in which they are trained on."""
    first = 1000 * "abc".index(name)
    starts = [row[0] for step in range(num_steps) for row in mixture.batch(step).tokens.tolist()]
    return [(start - first) // 4 for start in starts if first <= start < first + 1000]


def test_each_epoch_is_a_whole_permutation_and_no_two_are_equal(mixture: Open) -> None:
    drawn = _sequences(mixture("b"), "b", 7)
    epochs = [drawn[i : i + 7] for i in range(0, 35, 7)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 5


def test_removing_a_component_keeps_the_order_within_the_others(mixture: Open) -> None:
    full, without = mixture("abc"), mixture("ac")
    for name in "ac":
        a, b = _sequences(full, name, 20), _sequences(without, name, 20)
        shorter = min(len(a), len(b))
        assert shorter > 30
        assert a[:shorter] == b[:shorter]


def test_a_weight_moves_draws_in_time_and_never_reorders_them(mixture: Open) -> None:
    even, heavy = mixture(), mixture(a=5.0)
    a, b = _sequences(even, "b", 20), _sequences(heavy, "b", 20)
    assert 0 < len(b) < len(a)
    assert a[: len(b)] == b


def test_batches_in_any_order_are_the_batches_in_order(mixture: Open) -> None:
    forward = [mixture().batch(step) for step in range(12)]
    restarted = mixture()
    for step in (11, 3, 3, 0, 7):
        assert digest_batch(restarted.batch(step)) == digest_batch(forward[step])


def test_batch_size_cuts_one_and_the_same_stream(mixture: Open) -> None:
    small, large = mixture(batch_size=2), mixture(batch_size=6)
    rows = np.concatenate([small.batch(step).tokens for step in range(9)])
    assert np.array_equal(rows, np.concatenate([large.batch(step).tokens for step in range(3)]))


def test_the_order_in_which_components_are_listed_decides_nothing(mixture: Open) -> None:
    a, b = mixture("abc", b=2.0), mixture("cab", b=2.0)
    assert a.digest == b.digest
    assert all(digest_batch(a.batch(s)) == digest_batch(b.batch(s)) for s in range(5))


def test_the_seed_changes_the_order_and_the_digest(mixture: Open) -> None:
    a, b = mixture(seed=0), mixture(seed=1)
    assert a.digest != b.digest
    assert _sequences(a, "a", 10) != _sequences(b, "a", 10)


def test_unique_tokens_count_repeats_once(mixture: Open) -> None:
    assert mixture("b").num_unique_tokens(1) == 5 * 4
    assert mixture("b").num_unique_tokens(100) == 7 * 4


def test_a_store_with_more_ids_than_the_model_is_refused(mixture: Open, tmp_path: Path) -> None:
    config = mixture().config
    with pytest.raises(TokenStoreError, match=r"component 'a'.*vocab_size=5000.*64"):
        Mixture.open(config, batch_size=2, vocab_size=64)


def test_stores_of_different_tokenizers_are_refused_by_name(
    mixture: Open, tmp_path: Path, write_store: Callable[..., Path]
) -> None:
    write_store(tmp_path / "other", [[[1] * 20]], tokenizer='{"another": 1}', vocab_size=5000)
    components = (*mixture("a").config.components, Component(name="other", path=str(tmp_path / "other")))
    with pytest.raises(TokenStoreError, match="'a' and 'other'"):
        Mixture.open(dataclasses.replace(mixture("a").config, components=components), batch_size=2, vocab_size=5000)


def test_a_store_too_small_for_one_sequence_is_refused_by_name(mixture: Open, tmp_path: Path) -> None:
    config = dataclasses.replace(mixture("b").config, seq_len=100)
    with pytest.raises(TokenStoreError, match=r"component 'b'.*holds 29 tokens"):
        Mixture.open(config, batch_size=2, vocab_size=5000)
