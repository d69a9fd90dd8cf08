import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_train import losses
from marin_train.configs import ModelConfig
from marin_train.losses import Batch, summed_cross_entropy, summed_loss, token_losses
from marin_train.policy import Policy

SHAPE = ModelConfig(
    vocab_size=13, hidden_dim=8, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4, mlp_dim=8, max_seq_len=32
)


POLICY = Policy(scan=True)
# Compiled once for all tests: compiling is most of what they take.
each_loss = jax.jit(partial(token_losses, config=SHAPE, policy=POLICY))
whole_loss = jax.jit(partial(summed_loss, config=SHAPE, policy=POLICY), static_argnames="z_loss")


def wide(vocab_size):
    return dataclasses.replace(SHAPE, vocab_size=vocab_size)


def random_batch(batch=2, seq_len=10, seed=0):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, SHAPE.vocab_size, size=(batch, seq_len + 1))
    return Batch(tokens.astype(np.int32), rng.random((batch, seq_len)) < 0.6)


def dense_sum(hidden, head, targets, mask, z_loss):
    logits = hidden @ head
    log_z = jnp.log(jnp.sum(jnp.exp(logits), axis=-1))
    nll = log_z - jnp.sum(logits * jax.nn.one_hot(targets, head.shape[1]), axis=-1)
    return jnp.sum(mask * (nll + z_loss * log_z**2)), jnp.sum(mask * nll)


# Of the sequence's tokens a block holds one, a divisor, a non-divisor, more than there are.
@pytest.mark.parametrize(("block_tokens", "z_loss"), [(1, 0.1), (6, 0.1), (14, 0.0), (14, 0.1), (1000, 0.1)])
def test_blocks_equal_the_dense_formula_in_values_and_gradients(monkeypatch, z_loss, block_tokens):
    monkeypatch.setitem(losses.BLOCK_TOKENS, "cpu", block_tokens)
    rng = np.random.default_rng(0)
    hidden = jnp.asarray(rng.normal(size=(2, 9, 5)), jnp.float32)
    head = jnp.asarray(rng.normal(size=(5, 7)), jnp.float32)
    targets, mask = jnp.asarray(rng.integers(0, 7, size=(2, 9))), jnp.asarray(rng.random((2, 9)) < 0.7)

    def blocked(hidden, head):
        objective, nll = summed_cross_entropy(
            hidden, head, targets=targets, mask=mask, z_loss=z_loss, config=wide(7), policy=Policy()
        )
        return 3.0 * objective, nll

    def dense(hidden, head):
        objective, nll = dense_sum(hidden, head, targets, mask, z_loss)
        return 3.0 * objective, nll

    (value, nll), grads = jax.jit(jax.value_and_grad(blocked, argnums=(0, 1), has_aux=True))(hidden, head)
    (dense_value, dense_nll), dense_grads = jax.jit(jax.value_and_grad(dense, argnums=(0, 1), has_aux=True))(
        hidden, head
    )
    np.testing.assert_allclose([value, nll], [dense_value, dense_nll], rtol=1e-5)
    np.testing.assert_allclose(jax.jit(blocked)(hidden, head), [dense_value, dense_nll], rtol=1e-5)
    for a, b in zip(grads, dense_grads, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_logits_of_the_whole_batch_never_exist(monkeypatch):
    monkeypatch.setitem(losses.BLOCK_TOKENS, "cpu", 8)
    hidden, head = jnp.zeros((2, 64, 4)), jnp.zeros((4, 1000))
    targets, mask = jnp.zeros((2, 64), jnp.int32), jnp.ones((2, 64), bool)

    def cost(hidden, head):
        return summed_cross_entropy(
            hidden, head, targets=targets, mask=mask, z_loss=0.0, config=wide(head.shape[1]), policy=Policy()
        )[0]

    compiled = jax.jit(jax.grad(cost, argnums=(0, 1))).lower(hidden, head).compile()
    all_logits = 4 * 2 * 64 * 1000
    assert compiled.memory_analysis().temp_size_in_bytes < all_logits / 2


def test_the_sums_are_over_unmasked_tokens_alone(draw_model):
    batch, model = random_batch(), draw_model(SHAPE)
    each, loss = np.asarray(each_loss(model, batch)), whole_loss(model, batch)
    assert each.shape == batch.loss_mask.shape
    assert int(loss.num_tokens) == int(batch.loss_mask.sum())
    np.testing.assert_allclose(loss.cross_entropy, np.sum(each[batch.loss_mask]), rtol=1e-6)
    np.testing.assert_allclose(loss.objective, loss.cross_entropy)


def test_masked_targets_change_nothing(draw_model):
    batch, model = random_batch(), draw_model(SHAPE)
    # The last target alone is no input of another position.
    mask, other = batch.loss_mask.copy(), batch.tokens.copy()
    mask[:, -1] = False
    other[:, -1] = (other[:, -1] + 1) % SHAPE.vocab_size
    grad = jax.jit(jax.grad(lambda m, b: summed_loss(m, b, config=SHAPE, policy=POLICY).objective))
    gradients = (jax.tree.leaves(grad(model, Batch(tokens, mask))) for tokens in (batch.tokens, other))
    for a, b in zip(*gradients, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_batch_that_is_masked_throughout_costs_nothing_and_is_finite(draw_model):
    batch = random_batch()
    loss = whole_loss(draw_model(SHAPE), batch._replace(loss_mask=np.zeros_like(batch.loss_mask)))
    assert (float(loss.objective), int(loss.num_tokens)) == (0.0, 0)


def test_at_zero_logits_the_loss_is_the_log_of_the_vocabulary(draw_model):
    model = jax.tree.map(jnp.zeros_like, draw_model(SHAPE))
    np.testing.assert_allclose(each_loss(model, random_batch()), np.log(SHAPE.vocab_size), rtol=1e-6)


def test_the_z_loss_adds_the_weighted_square_of_the_log_normaliser(draw_model):
    model = jax.tree.map(jnp.zeros_like, draw_model(SHAPE))
    loss = whole_loss(model, random_batch(), z_loss=0.5)
    loss = jax.tree.map(lambda x: x / loss.num_tokens, loss)
    log_vocab = np.log(SHAPE.vocab_size)
    np.testing.assert_allclose(loss.objective, log_vocab + 0.5 * log_vocab**2, rtol=1e-6)
    np.testing.assert_allclose(loss.cross_entropy, log_vocab, rtol=1e-6)
