"""Quantile Balancing: the algorithm's own properties, and that counting equals sorting."""

import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_train.configs import MoEConfig
from marin_train.errors import ConfigError
from marin_train.moe.balance import quantile, quantile_exact, rule
from marin_train.moe.balance.quantile import NUM_BINS, UNIT, Counts


def experts(num_experts: int, top_k: int, balance: str = "quantile", **fields: Any) -> MoEConfig:
    return MoEConfig(num_experts=num_experts, top_k=top_k, expert_dim=8, balance=balance, **fields)


def scores_of(seed: int, *, tokens: int, num_experts: int, spread: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    means = spread * rng.normal(size=num_experts)
    return (rng.normal(size=(1, tokens, num_experts)) + means).astype(np.float32)


@partial(jax.jit, static_argnames="config")
def step(scores, bias, valid=None, *, config):
    """The bias after a batch, the experts chosen in it, and their loads."""
    balanced = rule(config).balance(scores, bias, valid=valid, config=config)
    chosen = balanced.chosen if valid is None else jnp.where(valid[..., None], balanced.chosen, config.num_experts)
    load = jnp.zeros(config.num_experts, jnp.int32).at[chosen.reshape(-1)].add(1, mode="drop")
    return rule(config).updated(bias, balanced.counts, config=config), balanced.chosen, load


def max_vio(load) -> float:
    return float(load.max() / load.mean() - 1)


def dual(scores: np.ndarray, bias: np.ndarray, top_k: int) -> float:
    """The balanced assignment's dual at ``beta = -bias``, and the best alpha for it, a token's (k + 1)-th score."""
    s = scores[0].astype(np.float64)
    tokens, num_experts = s.shape
    alpha = np.sort(s + bias, axis=1)[:, -(top_k + 1)]
    slack = np.maximum(s - alpha[:, None] + bias, 0).sum()
    return slack + top_k * alpha.sum() - tokens * top_k / num_experts * bias.sum()


def test_exactly_its_share_of_the_tokens_reaches_each_experts_bias():
    config, scores = experts(8, 2, "quantile_exact"), scores_of(0, tokens=64, num_experts=8, spread=1.0)
    bias = np.random.default_rng(1).normal(size=8).astype(np.float32)
    counts = quantile_exact.balance(scores, bias, valid=None, config=config).counts
    distances = np.sort(scores[0] + bias, axis=1)[:, -3][:, None] - (scores[0] + bias)
    reached = (distances <= np.asarray(counts.distance)).sum(axis=0)
    # Of each token the best expert that it does not choose is at 0: there, values are not distinct.
    tied = np.asarray(counts.distance) == 0
    assert 0 < tied.sum() < 8
    assert (reached[~tied] == 64 * 2 // 8).all()
    assert ((distances < 0).sum(axis=0)[tied] <= 64 * 2 // 8).all()
    assert (reached[tied] >= 64 * 2 // 8).all()


def test_a_share_that_is_no_integer_lies_between_two_tokens():
    config, scores = experts(8, 3, "quantile_exact"), scores_of(0, tokens=10, num_experts=8)
    distance = quantile_exact.balance(scores, np.zeros(8, np.float32), valid=None, config=config).counts.distance
    ordered = np.sort(np.sort(scores[0], axis=1)[:, -4][:, None] - scores[0], axis=0)
    np.testing.assert_allclose(distance, ordered[2] + 0.75 * (ordered[3] - ordered[2]), rtol=1e-6)


@pytest.mark.parametrize("balance", ["quantile", "quantile_exact"])
def test_the_dual_never_rises_under_updates_on_one_batch(balance):
    config, scores = experts(16, 2, balance), scores_of(3, tokens=1024, num_experts=16, spread=2.0)
    bias, values = jnp.zeros(16), []
    for _ in range(8):
        values.append(dual(scores, np.asarray(bias, np.float64), 2))
        bias, _, _ = step(scores, bias, config=config)
    slack = 0.0 if balance == "quantile_exact" else 1e-4  # within a bin, a quantile is interpolated
    assert all(after <= before + max(slack, 1e-6) * abs(before) for before, after in itertools.pairwise(values))
    assert values[-1] < values[0] - 100


def test_a_constant_on_an_experts_scores_moves_its_bias_by_minus_that():
    config, scores = experts(8, 2), scores_of(4, tokens=512, num_experts=8, spread=1.0)
    raised = scores + 0.75 * (np.arange(8) == 3).astype(np.float32)
    bias = jnp.zeros(8)
    for _ in range(12):
        bias, chosen, _ = step(scores, bias, config=config)
    after, chosen, _ = step(scores, bias, config=config)
    other, chosen_too, _ = step(raised, bias - 0.75 * (np.arange(8) == 3), config=config)
    np.testing.assert_array_equal(chosen_too, chosen)
    moved = np.asarray(other - after)
    np.testing.assert_allclose(moved - moved[0], -0.75 * (np.arange(8) == 3), atol=1e-4)


def test_experts_in_another_order_have_their_biases_in_that_order():
    config, scores = experts(8, 2), scores_of(5, tokens=256, num_experts=8, spread=1.0)
    order = np.random.default_rng(0).permutation(8)
    bias, _, load = step(scores, jnp.zeros(8), config=config)
    other, _, permuted = step(scores[..., order], jnp.zeros(8), config=config)
    np.testing.assert_array_equal(other, bias[order])
    np.testing.assert_array_equal(permuted, load[order])


@pytest.mark.parametrize("balance", ["quantile", "quantile_exact"])
def test_equal_scores_give_no_bias(balance):
    bias, _, _ = step(np.full((2, 32, 8), 0.3, np.float32), jnp.zeros(8), config=experts(8, 2, balance))
    np.testing.assert_array_equal(bias, 0)


def test_nothing_has_a_gradient_through_the_bias_or_the_choice():
    config, scores = experts(8, 2), jnp.asarray(scores_of(6, tokens=32, num_experts=8))

    def moved(scores, bias):
        balanced = quantile.balance(scores, bias, valid=None, config=config)
        return balanced.objective + jnp.sum(quantile.updated(bias, balanced.counts, config=config))

    for_scores = jax.grad(moved)(scores, jnp.zeros(8))
    np.testing.assert_array_equal(for_scores, 0)


@pytest.mark.parametrize("balance", ["quantile", "quantile_exact"])
def test_padding_is_no_ones_load(balance):
    config, scores = experts(8, 2, balance), scores_of(7, tokens=96, num_experts=8, spread=1.0)
    bias, chosen, load = step(scores[:, :64], jnp.zeros(8), config=config)
    scores[:, 64:] = 50.0 * np.eye(8)[0]  # all for the first expert, if it counted
    valid = np.arange(96)[None] < 64
    padded, chosen_too, load_too = step(scores, jnp.zeros(8), valid, config=config)
    np.testing.assert_array_equal(padded, bias)
    np.testing.assert_array_equal(load_too, load)
    np.testing.assert_array_equal(chosen_too[:, :64], chosen)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**16), spread=st.sampled_from([0.0, 0.5, 3.0]), cold=st.booleans())
def test_counted_quantiles_are_within_a_bin_of_sorted_ones(seed, spread, cold):
    config, scores = experts(8, 2), scores_of(seed, tokens=200, num_experts=8, spread=spread)
    bias = jnp.zeros(8) if cold else step(scores, jnp.zeros(8), config=config)[0]
    counts = quantile.balance(scores, bias, valid=None, config=config).counts
    sorted_ = quantile_exact.balance(scores, bias, valid=None, config=config).counts.distance
    width = UNIT * 2.0 ** np.asarray(counts.level)
    assert (np.abs(np.asarray(quantile.quantile(counts, 2, 8)) * UNIT - np.asarray(sorted_)) <= width).all()


@pytest.mark.parametrize(("balance", "spread"), [("quantile", 2.0), ("quantile_exact", 2.0), ("quantile", 60.0)])
def test_a_skewed_router_is_balanced_in_a_few_batches(balance, spread):
    """8,192 tokens and 64 experts, each token seeing 4; a spread of 60 needs bins that are 64 times as wide."""
    config = experts(64, 4, balance)
    scores, bias, seen = scores_of(4, tokens=8192, num_experts=64, spread=spread), jnp.zeros(64), []
    for _ in range(5):
        bias, _, load = step(scores, bias, config=config)
        seen.append(max_vio(load))
    assert seen[0] > 10
    if spread == 2.0:
        assert seen[0] < 14
        assert seen[1] < 0.8
        assert max(seen[3:]) < 0.25
    assert seen[-1] < 0.5


def test_the_sign_rule_needs_hundreds_of_batches_for_the_same():
    config, bias = experts(64, 4, "sign"), jnp.zeros(64)
    scores = jnp.asarray(scores_of(4, tokens=8192, num_experts=64, spread=2.0))

    @jax.jit
    def many(bias):
        return jax.lax.fori_loop(0, 300, lambda _, bias: step(scores, bias, config=config)[0], bias)

    _, _, load = step(scores, many(bias), config=config)
    assert max_vio(load) > 10


def test_a_gain_leaves_that_share_of_the_way():
    scores = scores_of(8, tokens=4096, num_experts=8, spread=1.0)
    settled = jnp.zeros(8)
    for _ in range(20):
        settled, _, _ = step(scores, settled, config=experts(8, 2))
    start = jnp.asarray(settled + np.linspace(-0.05, 0.05, 8, dtype=np.float32))
    whole, _, _ = step(scores, start, config=experts(8, 2))
    half, _, _ = step(scores, start, config=experts(8, 2, balance_strength=0.5))
    np.testing.assert_allclose(half - start, 0.5 * (whole - start), atol=2 * UNIT)


def test_a_gain_that_never_converges_is_refused():
    with pytest.raises(ConfigError, match=r"MoEConfig\.balance_strength=2\.0 must be below 2"):
        experts(8, 2, balance_strength=2.0)


# Counting in parts.


@partial(jax.jit, static_argnames=("num_experts", "top_k"))
def count(scores, bias, valid, *, num_experts, top_k):
    return quantile.balance(scores, bias, valid=valid, config=experts(num_experts, top_k)).counts


merged = jax.jit(quantile.merge)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**16), cuts=st.lists(st.integers(0, 8), min_size=1, max_size=3), spread=st.floats(0, 40))
def test_the_bias_is_bitwise_that_of_the_whole_batch_in_any_parts_and_order(seed, cuts, spread):
    rng = np.random.default_rng(seed)
    # Rows of very different width, so that parts need different levels.
    scores = np.concatenate([scores_of(seed + i, tokens=32, num_experts=8, spread=spread * i / 8) for i in range(8)])
    valid, bias = rng.random((8, 32)) < 0.8, rng.normal(size=8).astype(np.float32)
    whole = count(scores, bias, valid, num_experts=8, top_k=2)
    # Parts of a row each, merged in any order into any groups.
    parts = [count(scores[i : i + 1], bias, valid[i : i + 1], num_experts=8, top_k=2) for i in rng.permutation(8)]
    groups = [parts[a:b] for a, b in zip([0, *sorted(cuts)], [*sorted(cuts), 8], strict=True)]
    nothing = jax.tree.map(jnp.zeros_like, whole)
    total = nothing
    for group in groups:
        of_group = nothing
        for part in group:
            of_group = merged(of_group, part)
        total = merged(total, of_group)
    for a, b in zip(total, whole, strict=True):
        np.testing.assert_array_equal(a, b)
    config = experts(8, 2)
    np.testing.assert_array_equal(
        quantile.updated(bias, total, config=config), quantile.updated(bias, whole, config=config)
    )


def test_a_range_that_is_too_narrow_widens_by_merging_bins_and_loses_no_count():
    narrow = Counts(jnp.zeros(1, jnp.int32), jnp.ones((1, NUM_BINS), jnp.int32), jnp.int32(NUM_BINS))
    wide = Counts(jnp.full(1, 3), jnp.zeros((1, NUM_BINS), jnp.int32).at[0, 0].set(5), jnp.int32(5))
    both = merged(narrow, wide)
    histogram = np.zeros(NUM_BINS, int)
    histogram[NUM_BINS // 2 - NUM_BINS // 16 : NUM_BINS // 2 + NUM_BINS // 16] = 8
    histogram[0] += 5
    np.testing.assert_array_equal(both.histogram[0], histogram)
    assert both.level[0] == 3


# Edges.


@pytest.mark.parametrize("balance", ["quantile", "quantile_exact"])
@pytest.mark.parametrize(
    ("tokens", "num_experts", "top_k", "num_valid"), [(1, 4, 2, 1), (16, 4, 4, 16), (16, 4, 2, 0), (3, 8, 1, 3)]
)
def test_one_token_all_experts_and_nothing_but_padding_are_finite(balance, tokens, num_experts, top_k, num_valid):
    scores = scores_of(9, tokens=tokens, num_experts=num_experts)
    valid, before = np.arange(tokens)[None] < num_valid, jnp.arange(num_experts) * UNIT
    bias, chosen, load = step(scores, before, valid, config=experts(num_experts, top_k, balance))
    assert np.isfinite(bias).all()
    assert load.sum() == num_valid * top_k
    assert (np.sort(chosen, axis=-1)[..., 1:] > np.sort(chosen, axis=-1)[..., :-1]).all()
    if num_valid == 0 or top_k == num_experts:
        np.testing.assert_array_equal(bias, before)


def test_an_expert_that_takes_all_tokens_and_one_that_takes_none_are_balanced():
    scores = scores_of(10, tokens=512, num_experts=4)
    scores[..., 0] += 200.0
    scores[..., 1] -= 200.0
    bias = jnp.zeros(4)
    for _ in range(10):
        bias, _, load = step(scores, bias, config=experts(4, 1))
    assert max_vio(load) < 0.2
    assert load.min() > 0
