from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_train.blocks.attention import attend
from marin_train.blocks.scoring import Scoring
from marin_train.errors import ConfigError
from marin_train.policy import Policy

SCORING = Scoring(scale=0.5)


def arrays(seq_len, num_heads, num_kv_heads, *, batch=2, head_dim=4):
    rng = np.random.default_rng(0)
    shapes = [(batch, seq_len, n, head_dim) for n in (num_heads, num_kv_heads, num_kv_heads, num_heads)]
    return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]


def values_and_grads(
    backend, query, key, value, above, *, segment_ids=None, operands="float32", activations="float32", scoring=SCORING
):
    policy = Policy(operands=operands, activations=activations, attention=backend)

    def cost(query, key, value):
        mixed = attend(query, key, value=value, segment_ids=segment_ids, scoring=scoring, policy=policy)
        return jnp.sum(mixed * above), mixed

    query, key, value = (x.astype(activations) for x in (query, key, value))
    (_, mixed), grads = jax.jit(jax.value_and_grad(cost, argnums=(0, 1, 2), has_aux=True))(query, key, value)
    return [mixed, *grads]


def segments(seq_len, seed):
    return jnp.asarray(np.sort(np.random.default_rng(seed).integers(0, 3, size=(2, seq_len)), axis=1))


# Lengths below, at and beyond a block of 128, and one that is no multiple of it.
@pytest.mark.parametrize(
    ("seq_len", "num_heads", "num_kv_heads", "segmented"),
    [(1, 2, 2, False), (128, 2, 1, False), (300, 4, 2, False), (300, 4, 2, True)],
)
def test_blocked_equals_the_formula_in_values_and_gradients(seq_len, num_heads, num_kv_heads, segmented):
    data = arrays(seq_len, num_heads, num_kv_heads)
    segment_ids = None
    if segmented:
        segment_ids = segments(seq_len, 1)
    expected = values_and_grads("reference", *data, segment_ids=segment_ids)
    actual = values_and_grads("blocked", *data, segment_ids=segment_ids)
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


@settings(max_examples=6)
@given(
    backend=st.sampled_from(["blocked", "dot_product"]),
    seq_len=st.integers(1, 290),
    group=st.sampled_from([1, 2]),
    window=st.none() | st.integers(1, 300),
    softcap=st.none() | st.just(3.0),
    seed=st.none() | st.integers(0, 5),
)
def test_every_body_equals_the_formula_under_windows_softcaps_and_segments(
    backend, seq_len, group, window, softcap, seed
):
    scoring = Scoring(scale=0.5, window=window, softcap=softcap if backend == "blocked" else None)
    data = arrays(seq_len, group, 1)
    segment_ids = None if seed is None else segments(seq_len, seed)
    expected = values_and_grads("reference", *data, segment_ids=segment_ids, scoring=scoring)
    actual = values_and_grads(backend, *data, segment_ids=segment_ids, scoring=scoring)
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=5e-5)


@pytest.mark.parametrize(
    ("scoring", "segmented"),
    [(SCORING, False), (Scoring(scale=0.5, window=40, softcap=3.0), True)],
)
def test_the_splash_kernel_equals_the_formula(scoring, segmented):
    data = arrays(150, 2, 1, head_dim=128)
    segment_ids = segments(150, 2) if segmented else None
    expected = values_and_grads("reference", *data, segment_ids=segment_ids, scoring=scoring)
    actual = values_and_grads("splash", *data, segment_ids=segment_ids, scoring=scoring)
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=5e-4, rtol=1e-3)


def test_a_kernel_without_a_softcap_refuses_one():
    with pytest.raises(ConfigError, match=r"attention_softcap=3\.0.*another policy"):
        values_and_grads("dot_product", *arrays(4, 1, 1), scoring=Scoring(scale=0.5, softcap=3.0))


@pytest.mark.parametrize("window", [32, 64])
def test_blocks_outside_a_window_are_not_computed(window):
    def flops(window):
        query, key, value, _ = arrays(1024, 1, 1, batch=1)
        run = partial(
            attend,
            segment_ids=None,
            scoring=Scoring(scale=0.5, window=window),
            policy=Policy(attention="blocked"),
        )
        # As written, which no version of the compiler changes.
        return jax.jit(lambda q, k, v: run(q, k, value=v)).lower(query, key, value).cost_analysis()["flops"]

    # A block of 128 queries sees 128 + window - 1 keys, of 576 on average without a window.
    assert flops(window) < 1.1 * flops(None) * (128 + window) / 576


@pytest.mark.parametrize("backend", ["reference", "blocked", "dot_product"])
def test_activations_in_bfloat16_stay_within_their_precision_and_keep_their_type(backend):
    data = arrays(160, 2, 1)
    actual = values_and_grads(backend, *data, operands="bfloat16", activations="bfloat16")
    for a, b in zip(actual, values_and_grads("reference", *data), strict=True):
        assert a.dtype == jnp.bfloat16
        assert np.linalg.norm(a.astype(jnp.float32) - b) < 0.03 * np.linalg.norm(b)


def test_blocked_with_rounded_operands_stays_within_their_precision():
    data = arrays(160, 2, 1)
    for a, b in zip(
        values_and_grads("blocked", *data, operands="bfloat16"), values_and_grads("reference", *data), strict=True
    ):
        assert np.linalg.norm(a - b) < 0.02 * np.linalg.norm(b)


@pytest.mark.parametrize("backend", ["reference", "blocked", "dot_product"])
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
