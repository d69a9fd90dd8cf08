"""A vocabulary padded for sharding against the same model without padding: padding is layout, and nothing else."""

import dataclasses

import jax
import numpy as np
import pytest

from marin_train import models
from marin_train.configs import Component, DataConfig, ModelConfig, OptimizerConfig, TrainConfig
from marin_train.losses import Batch, summed_loss, token_losses
from marin_train.models import decoder
from marin_train.optim import make_optimizer
from marin_train.parameters import ParameterTable, init_model, map_parameters
from marin_train.policy import Policy

PLAIN = ModelConfig(
    vocab_size=19, hidden_dim=12, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=6, mlp_dim=20, max_seq_len=16
)
CASES = {
    "llama, untied": PLAIN,
    "qwen3, tied": dataclasses.replace(PLAIN, family="qwen3", tie_embeddings=True),
    "gemma3, untied, soft-capped": dataclasses.replace(PLAIN, family="gemma3", logit_softcap=2.0),
}
PADDED = 32
RNG = np.random.default_rng(0)
BATCH = Batch(RNG.integers(0, PLAIN.vocab_size, size=(2, 9)), RNG.random((2, 8)) < 0.7)

every_head = pytest.mark.parametrize("config", CASES.values(), ids=CASES)


def padded(config):
    return dataclasses.replace(config, vocab_multiple=PADDED)


def fresh(config):
    family = models.family(config)
    return init_model(family.Model, family.parameter_table(config), seed=3)


def without_padding(config, model):
    """The leaves by path, with what pads them cut off."""
    leaves, table = {}, models.family(config).parameter_table(config)
    for path, leaf in jax.tree_util.tree_flatten_with_path(model)[0]:
        parameter = table[jax.tree_util.keystr(path, simple=True, separator=".")]
        leaves[parameter.path] = np.asarray(leaf)[tuple(map(slice, parameter.real_shape))]
    return leaves


@every_head
def test_a_padded_model_starts_as_the_same_model_and_zeros(config):
    model = fresh(padded(config))
    assert model.embed.shape == (PADDED, 12)
    np.testing.assert_array_equal(model.embed[19:], 0)
    if model.output is not None:
        np.testing.assert_array_equal(model.output[:, 19:], 0)
    leaves = without_padding(padded(config), model)
    for path, leaf in without_padding(config, fresh(config)).items():
        np.testing.assert_array_equal(leaves[path], leaf)


@pytest.mark.parametrize("config", list(CASES.values())[1:], ids=list(CASES)[1:])
def test_losses_and_gradients_are_those_without_padding_and_padding_has_none(config):
    def costs(config):
        def cost(model):
            sums = summed_loss(model, BATCH, config=config, policy=Policy(), z_loss=0.1)
            return sums.objective, (sums, token_losses(model, BATCH, config=config, policy=Policy()))

        return jax.jit(jax.value_and_grad(cost, has_aux=True))(fresh(config))

    (_, plain), gradient = costs(config)
    (_, same), padded_gradient = costs(padded(config))
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(same), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    leaves = without_padding(padded(config), padded_gradient)
    np.testing.assert_array_equal(padded_gradient.embed[19:], 0)
    if padded_gradient.output is not None:
        np.testing.assert_array_equal(padded_gradient.output[:, 19:], 0)
    for path, leaf in without_padding(config, gradient).items():
        np.testing.assert_allclose(leaves[path], leaf, atol=1e-5)


@every_head
def test_padding_is_never_a_likely_token(config):
    config = padded(config)
    model, family = fresh(config), models.family(config)
    hidden = jax.random.normal(jax.random.key(0), (1, 4, 12))
    logits = np.asarray(decoder.logits(hidden, family.head(model), config=config, policy=Policy()))
    assert np.all(np.isneginf(logits[..., 19:]))
    assert np.all(np.isfinite(logits[..., :19]))


@pytest.mark.parametrize("name", ["adamw", "lion", "adafactor"])
def test_in_no_rule_does_padding_move_or_weigh(name):
    data = DataConfig(components=(Component(name="a", path="a"),), seq_len=8)
    optimizer = OptimizerConfig(name=name, cautious=True)

    def trained(config):
        run = TrainConfig(model=config, data=data, steps=4, batch_size=2, optimizer=optimizer)
        table = models.family(config).parameter_table(config)
        table, rng = ParameterTable((table["embed"], table["output"])), np.random.default_rng(1)

        def drawn(parameter):
            filled = zip(parameter.shape, parameter.real_shape, strict=True)
            return np.pad(rng.normal(size=parameter.real_shape).astype(np.float32), [(0, n - m) for n, m in filled])

        rule, model = make_optimizer(run, table), {p.path: drawn(p) for p in table}
        update, state, start = jax.jit(rule.update), rule.init(model), model
        for _ in range(3):
            updates, state = update(map_parameters(drawn, table, model), state, model)
            model = jax.tree.map(np.add, model, jax.device_get(updates))
        assert np.abs(model["embed"] - start["embed"]).max() > 1e-4
        return model

    plain, model = trained(PLAIN), trained(padded(PLAIN))
    np.testing.assert_array_equal(model["embed"][19:], 0)
    np.testing.assert_array_equal(model["output"][:, 19:], 0)
    if name != "adafactor":  # whose norms are over whole leaves
        np.testing.assert_allclose(model["embed"][:19], plain["embed"], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(model["output"][:, :19], plain["output"], rtol=1e-5, atol=1e-6)
