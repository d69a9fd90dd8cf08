"""That what is learnt is the next token: a model that reads a token learns what follows it, and nothing beside it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_train import train_step
from marin_train.configs import Component, DataConfig, MeshConfig, ModelConfig, OptimizerConfig, TrainConfig
from marin_train.losses import Batch, summed_loss, token_losses
from marin_train.mesh import make_mesh
from marin_train.policy import Policy

RUN = TrainConfig(
    model=ModelConfig(
        vocab_size=16, hidden_dim=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, mlp_dim=32, max_seq_len=16
    ),
    data=DataConfig(components=(Component(name="a", path="a"),), seq_len=12),
    steps=120,
    batch_size=16,
    optimizer=OptimizerConfig(learning_rate=3e-2, weight_decay=0.0),
    mesh=MeshConfig(data=1),
)
PLAIN = Policy(scan=True)


def pairs(seed):
    """Any token, then the one that follows from it, then any token: of the next, every second can be known.

    Only those count. The token after the next is any, and so is the one that a mask shifted by one lets count.
    """
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 16, size=(16, 13))
    tokens[:, 1::2] = (5 * tokens[:, :12:2] + 3) % 16
    mask = np.zeros((16, 12), bool)
    mask[:, ::2] = True
    return Batch(jnp.asarray(tokens, jnp.int32), jnp.asarray(mask))


@functools.cache
def scored():
    return jax.jit(functools.partial(token_losses, config=RUN.model, policy=PLAIN))


def make_step():
    return train_step.make_train_step(RUN, policy=PLAIN, mesh=make_mesh(RUN.mesh))


@functools.cache
def true_step():
    return make_step()


def loss_of_next_tokens(step, *, shift_mask=0):
    """Mean loss of the next tokens that can be known, on new data, after training with that step."""
    state = train_step.init_state(RUN, mesh=make_mesh(RUN.mesh))
    for seed in range(RUN.steps):
        batch = pairs(seed)
        state, _ = step(state, batch._replace(loss_mask=jnp.roll(batch.loss_mask, shift_mask, axis=1)))
    fresh = pairs(RUN.steps)
    return float(jnp.mean(scored()(state.model, fresh), where=fresh.loss_mask))


def test_the_next_token_is_learnt():
    assert loss_of_next_tokens(true_step()) < 0.1


@pytest.mark.parametrize("shift", [-1, 1], ids=["the token after the next", "the token that is read"])
def test_labels_a_token_off_do_not_teach_it(monkeypatch, shift):
    from marin_train import losses

    def shifted(model, batch, **how):
        labels = jnp.roll(batch.tokens, shift, axis=1)[:, 1:]
        summed = losses.summed_cross_entropy

        def other(hidden, head, *, targets, **rest):
            return summed(hidden, head, targets=labels, **rest)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(losses, "summed_cross_entropy", other)
            return summed_loss(model, batch, **how)

    monkeypatch.setattr(train_step, "summed_loss", shifted)
    assert loss_of_next_tokens(make_step()) > 2.0


def test_a_mask_a_token_off_does_not_teach_it():
    assert loss_of_next_tokens(true_step(), shift_mask=1) > 2.0


def test_one_batch_is_learnt_by_heart():
    # Every sequence begins with its own three ids; what follows them is then decided.
    rng = np.random.default_rng(0)
    tokens, mask = rng.integers(0, 16, size=(16, 13)), np.ones((16, 12), bool)
    mask[:, :3] = False
    batch = Batch(jnp.asarray(tokens, jnp.int32), jnp.asarray(mask))
    state = train_step.init_state(RUN, mesh=make_mesh(RUN.mesh))
    for _ in range(2 * RUN.steps):
        state, metrics = true_step()(state, batch)
    assert float(metrics["loss"]) < 0.01
