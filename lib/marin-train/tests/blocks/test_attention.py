import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_train.blocks.attention import attend
from marin_train.blocks.scoring import Scoring
from marin_train.policy import Policy

SCORING = Scoring(scale=0.5)


def arrays(seq_len, num_heads, num_kv_heads, *, batch=2, head_dim=4):
    rng = np.random.default_rng(0)
    shapes = [(batch, seq_len, n, head_dim) for n in (num_heads, num_kv_heads, num_kv_heads, num_heads)]
    return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]


def values_and_grads(backend, query, key, value, above, *, segment_ids=None, operands="float32"):
    def cost(query, key, value):
        mixed = attend(
            query,
            key,
            value=value,
            segment_ids=segment_ids,
            scoring=SCORING,
            policy=Policy(operands=operands, attention=backend),
        )
        return jnp.sum(mixed * above), mixed

    (_, mixed), grads = jax.jit(jax.value_and_grad(cost, argnums=(0, 1, 2), has_aux=True))(query, key, value)
    return [mixed, *grads]


# Lengths below, at and beyond a block of 128, and one that is no multiple of it.
@pytest.mark.parametrize(
    ("seq_len", "num_heads", "num_kv_heads", "segmented"),
    [(1, 2, 2, False), (128, 2, 1, False), (300, 4, 2, False), (300, 4, 2, True)],
)
def test_blocked_equals_the_formula_in_values_and_gradients(seq_len, num_heads, num_kv_heads, segmented):
    data = arrays(seq_len, num_heads, num_kv_heads)
    segment_ids = None
    if segmented:
        segment_ids = jnp.asarray(np.sort(np.random.default_rng(1).integers(0, 3, size=(2, seq_len)), axis=1))
    expected = values_and_grads("reference", *data, segment_ids=segment_ids)
    actual = values_and_grads("blocked", *data, segment_ids=segment_ids)
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_blocked_with_rounded_operands_stays_within_their_precision():
    data = arrays(160, 2, 1)
    for a, b in zip(
        values_and_grads("blocked", *data, operands="bfloat16"), values_and_grads("reference", *data), strict=True
    ):
        assert np.linalg.norm(a - b) < 0.02 * np.linalg.norm(b)


@pytest.mark.parametrize("backend", ["reference", "blocked"])
def test_nothing_is_seen_of_the_future_or_of_another_segment(backend):
    query, *rest = (np.asarray(x) for x in arrays(140, 2, 2, batch=1)[:3])
    segment_ids = np.array([[0] * 70 + [1] * 70])

    @jax.jit
    def mixed(key, value):
        return attend(
            query, key, value=value, segment_ids=segment_ids, scoring=SCORING, policy=Policy(attention=backend)
        )

    def changed_by(position):
        moved = [x + 9.0 * (np.arange(140) == position)[:, None, None].astype(np.float32) for x in rest]
        return np.any(np.asarray(mixed(*rest)) != np.asarray(mixed(*moved)), axis=(0, 2, 3))

    changed = changed_by(100)
    assert not changed[:100].any()
    assert changed[100:].all()
    changed = changed_by(3)
    assert changed[3:70].all()
    assert not changed[70:].any()
