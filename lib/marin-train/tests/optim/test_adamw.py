import dataclasses

import jax
import numpy as np
import optax
import pytest

from marin_train import models
from marin_train.configs import Component, DataConfig, ModelConfig, OptimizerConfig, ScheduleConfig, TrainConfig
from marin_train.optim import make_adamw, make_optimizer

SHAPE = ModelConfig(
    vocab_size=9, hidden_dim=4, num_layers=2, num_heads=1, num_kv_heads=1, head_dim=4, mlp_dim=6, max_seq_len=8
)
TABLE = models.family(SHAPE).parameter_table(SHAPE)
RUN = TrainConfig(
    model=SHAPE,
    data=DataConfig(components=(Component(name="a", path="a"),), seq_len=8),
    steps=10,
    batch_size=1,
    optimizer=OptimizerConfig(learning_rate=0.1, eps=1e-30, weight_decay=0.0, clip_norm=2.0),
    schedule=ScheduleConfig(warmup=0, decay=0),
)


@pytest.fixture
def model(draw_model):
    return draw_model(SHAPE)


def test_only_matrices_decay(model):
    optimizer = make_adamw(lambda _: 0.5, TABLE, beta1=0.9, beta2=0.99, eps=1e-8, weight_decay=0.2)
    zeros = jax.tree.map(np.zeros_like, model)
    updates, _ = jax.jit(optimizer.update)(zeros, optimizer.init(model), model)
    decayed = {
        jax.tree_util.keystr(path, simple=True, separator=".")
        for path, leaf in jax.tree_util.tree_flatten_with_path(updates)[0]
        if np.any(leaf)
    }
    assert decayed == {p.path for p in TABLE if p.role in ("matrix", "head")}
    assert "embed" not in decayed
    np.testing.assert_allclose(updates.output, -0.5 * 0.2 * model.output, rtol=1e-6)


def test_an_update_is_adams_with_bias_correction(model):
    optimizer = make_adamw(lambda _: 0.1, TABLE, beta1=0.9, beta2=0.99, eps=1e-3, weight_decay=0.0)
    update, state, mean, square = jax.jit(optimizer.update), optimizer.init(model), 0.0, 0.0
    for step in range(1, 4):
        gradient = float(step)
        updates, state = update(jax.tree.map(lambda x: np.full_like(x, gradient), model), state, model)  # noqa: B023
        mean, square = 0.9 * mean + 0.1 * gradient, 0.99 * square + 0.01 * gradient**2
        expected = -0.1 * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.99**step)) + 1e-3)
        np.testing.assert_allclose(updates.embed, expected, rtol=1e-5)


def test_the_clip_is_to_the_norm_over_all_leaves_together(model):
    clip_norm, gradients = RUN.optimizer.clip_norm, jax.tree.map(np.ones_like, model)
    norm = np.sqrt(TABLE.size)
    assert float(optax.tree.norm(gradients)) == pytest.approx(norm)
    optimizer = make_optimizer(RUN, TABLE)
    _, state = jax.jit(optimizer.update)(gradients, optimizer.init(model), model)
    for leaf in jax.tree.leaves(optax.tree.get(state, "mu")):
        np.testing.assert_allclose(leaf, 0.1 * clip_norm / norm, rtol=1e-5)
    wide = make_optimizer(dataclasses.replace(RUN, optimizer=dataclasses.replace(RUN.optimizer, clip_norm=1e9)), TABLE)
    _, state = jax.jit(wide.update)(gradients, wide.init(model), model)
    for leaf in jax.tree.leaves(optax.tree.get(state, "mu")):
        np.testing.assert_allclose(leaf, 0.1, rtol=1e-5)
