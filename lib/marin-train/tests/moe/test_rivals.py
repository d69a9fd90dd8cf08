"""The other balance rules: each against its formula, and by what it does to loads."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_train.configs import MoEConfig
from marin_train.configs.experts import BIASED, STRENGTHS, Balance
from marin_train.errors import ConfigError
from marin_train.moe.balance import quantile_exact, rule, sequence, sinkhorn, switch
from marin_train.moe.routing import weigh

SHAPE = (3, 32, 8)
RULES = Balance.__args__


def experts(balance: str, **fields) -> MoEConfig:
    return MoEConfig(num_experts=8, top_k=2, expert_dim=4, balance=balance, **fields)


@pytest.fixture(scope="module")
def scores() -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.normal(size=SHAPE) + 1.5 * rng.normal(size=8)).astype(np.float32)


@pytest.fixture(scope="module")
def valid() -> np.ndarray:
    return np.arange(32) < np.array([[32], [20], [0]])


@partial(jax.jit, static_argnames="config")
def balance(scores, bias, valid, *, config):
    balanced = rule(config).balance(scores, bias, valid=valid, config=config)
    return balanced, weigh(scores, balanced.chosen, valid=valid, config=config)


def loads(routes) -> np.ndarray:
    return np.bincount(np.asarray(routes.experts).ravel(), minlength=9)[:8]


@pytest.mark.parametrize("name", RULES)
def test_under_every_rule_padding_is_routed_nowhere_and_changes_nothing(name, scores, valid):
    config = experts(name)
    bias = jnp.linspace(-0.1, 0.1, 8) if config.is_biased else None
    balanced, routes = balance(scores, bias, valid, config=config)
    other = np.where(valid[..., None], scores, 7.0 * np.arange(8))
    again, routes_too = balance(other, bias, valid, config=config)
    assert (np.asarray(routes.experts)[~valid] == 8).all()
    assert (np.asarray(routes.weights)[~valid] == 0).all()
    assert (np.asarray(routes.weights)[valid] > 0).any()
    np.testing.assert_array_equal(routes_too.experts, routes.experts)
    np.testing.assert_allclose(again.objective, balanced.objective, rtol=1e-6)
    for a, b in zip(jax.tree.leaves(again.counts), jax.tree.leaves(balanced.counts), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", [name for name in RULES if name != "expert_choice"])
def test_all_but_expert_choice_give_each_token_different_experts_of_its_own(name, scores):
    config = experts(name)
    balanced, _ = balance(scores, jnp.zeros(8) if config.is_biased else None, None, config=config)
    chosen = np.sort(balanced.chosen, axis=-1)
    assert chosen.shape == (3, 32, 2)
    assert (chosen[..., 0] < chosen[..., 1]).all()
    assert (balanced.counts is None) == (name not in BIASED)


def test_the_sign_rule_moves_each_bias_by_a_step_towards_the_mean_load(scores):
    config, before = experts("sign", balance_strength=0.25), jnp.linspace(-1, 1, 8)
    balanced, routes = balance(scores, before, None, config=config)
    moved = rule(config).updated(before, balanced.counts, config=config) - before
    np.testing.assert_allclose(moved, 0.25 * np.sign(96 * 2 / 8 - loads(routes)), atol=1e-6)


def test_switchs_loss_is_its_formula_and_its_gradient_lowers_the_scores_of_the_busiest(scores, valid):
    config = experts("switch", balance_strength=1.0)
    balanced, routes = balance(scores, None, valid, config=config)
    share = loads(routes) / (52 * 2)
    s = scores[valid].astype(np.float64)
    mean = (np.exp(s) / np.exp(s).sum(axis=1, keepdims=True)).mean(axis=0)
    np.testing.assert_allclose(balanced.objective, 52 * 8 * (share * mean).sum(), rtol=1e-5)
    slope = jax.grad(lambda s: switch.balance(s, None, valid=valid, config=config).objective)(scores)
    assert np.asarray(slope)[valid][:, share.argmax()].mean() > 0 > np.asarray(slope)[valid][:, share.argmin()].mean()
    assert (np.asarray(slope)[~valid] == 0).all()


def test_switchs_loss_is_one_a_token_where_all_is_balanced():
    config = experts("switch", balance_strength=1.0)
    scores = (
        np.eye(8, dtype=np.float32)[(np.arange(32) // 4) % 8]
        + np.eye(8, dtype=np.float32)[(np.arange(32) // 4 + 1) % 8]
    )
    assert float(switch.balance(scores[None], None, valid=None, config=config).objective) == pytest.approx(32)


@pytest.mark.parametrize("combine", ["softmax", "sigmoid"])
def test_the_sequence_wise_loss_is_its_formula_in_each_sequence(combine, scores, valid):
    config = experts("sequence", balance_strength=1.0, combine=combine)
    balanced, routes = balance(scores, None, valid, config=config)
    expected = 0.0
    for s, ok, chosen in zip(scores.astype(np.float64), valid, np.asarray(routes.experts), strict=True):
        if not ok.any():
            continue
        weights = np.exp(s) if combine == "softmax" else 1 / (1 + np.exp(-s))
        mean = (weights / weights.sum(axis=1, keepdims=True))[ok].mean(axis=0)
        share = np.bincount(chosen[ok].ravel(), minlength=8) / (2 * ok.sum())
        expected += ok.sum() * 8 * (share * mean).sum()
    np.testing.assert_allclose(balanced.objective, expected, rtol=1e-5)
    parts = sum(
        float(sequence.balance(scores[i : i + 1], None, valid=valid[i : i + 1], config=config).objective)
        for i in range(3)
    )
    np.testing.assert_allclose(parts, expected, rtol=1e-5)


def test_sinkhorns_potentials_give_columns_of_equal_sums_and_nearly_equal_loads(scores, valid):
    v = np.asarray(sinkhorn.potentials(jnp.asarray(scores), valid), np.float64)
    plan = np.exp(scores[valid] + v)
    columns = (plan / plan.sum(axis=1, keepdims=True)).sum(axis=0)
    np.testing.assert_allclose(columns, 52 / 8, rtol=0.02)
    greedy, _ = balance(scores, None, valid, config=experts("none"))
    chosen, routes = balance(scores, None, valid, config=experts("sinkhorn"))
    assert loads(routes).max() < 2.0 * 52 * 2 / 8 < np.bincount(np.asarray(greedy.chosen)[valid].ravel()).max() < 52 + 1
    assert float(chosen.objective) == 0


def test_expert_choice_gives_every_expert_exactly_its_share_of_its_best_tokens(scores, valid):
    config = experts("expert_choice", renormalise=False)
    _, routes = balance(scores, None, valid, config=config)
    assert routes.experts.shape == SHAPE
    np.testing.assert_array_equal(loads(routes), 52 * 2 // 8)
    share = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    taken = np.asarray(routes.experts)[valid] < 8
    for e in range(8):
        affinity = share[valid][:, e]
        assert affinity[taken[:, e]].min() >= affinity[~taken[:, e]].max()
    np.testing.assert_allclose(routes.weights[valid], np.where(taken, share[valid], 0), rtol=1e-5)


@pytest.mark.parametrize("name", ["expert_choice", "sinkhorn"])
def test_a_model_that_does_not_learn_chooses_by_each_tokens_own_scores(name, scores):
    config = experts(name)
    assert not rule(config).IS_CAUSAL
    chosen = rule(config, learns=False).balance(jnp.asarray(scores), None, valid=None, config=config).chosen
    np.testing.assert_array_equal(chosen, np.argsort(-scores, axis=-1)[..., :2])


def test_exact_quantiles_of_parts_are_refused():
    counts = quantile_exact.Quantiles(jnp.zeros(8), jnp.int32(4))
    with pytest.raises(ConfigError, match=r"TrainConfig\.accumulation=1, or balance='quantile'"):
        quantile_exact.merge(counts, counts)


@pytest.mark.parametrize("name", sorted(set(RULES) - set(STRENGTHS)))
def test_a_strength_is_refused_under_a_rule_that_has_none(name):
    with pytest.raises(ConfigError, match=r"MoEConfig\.balance_strength=0\.1 changes nothing"):
        experts(name, balance_strength=0.1)


# Weights.


@pytest.mark.parametrize("combine", ["softmax", "sigmoid"])
@pytest.mark.parametrize("renormalise", [False, True])
def test_weights_are_made_of_the_scores_without_the_bias(combine, renormalise, scores):
    config = dataclasses.replace(experts("quantile"), combine=combine, renormalise=renormalise, scale=2.5)
    chosen = np.array([[[7, 1]]])
    row = scores[:1, :1].astype(np.float64)
    shares = np.exp(row) / np.exp(row).sum() if combine == "softmax" else 1 / (1 + np.exp(-row))
    expected = shares[0, 0, [7, 1]]
    expected = 2.5 * (expected / expected.sum() if renormalise else expected)
    weights = weigh(scores[:1, :1], chosen, valid=None, config=config).weights
    np.testing.assert_allclose(weights[0, 0], expected, rtol=1e-5)
