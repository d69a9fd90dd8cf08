"""Bodies of dispatch on one device, against the oracle: values, gradients, and what they count."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_train.moe.dispatch import BODIES
from marin_train.moe.dispatch.rows import ranks
from marin_train.moe.experts import Experts
from marin_train.moe.routing import Routes
from marin_train.policy import Policy

FAST = sorted(set(BODIES) - {"oracle"})
NUM_EXPERTS, WIDTH = 4, 6
PLAIN = Policy()


@partial(jax.jit, static_argnames=("body", "num_expected", "policy"))
def run(x, experts, weights, matrices, slope, *, body, num_expected, policy):
    """Output, gradients of tokens, weights and matrices, and the rows computed."""

    def cost(x, weights, matrices):
        output, computed = BODIES[body](x, Routes(experts, weights), matrices, num_expected=num_expected, policy=policy)
        return jnp.sum(output * slope), (output, computed)

    gradients, (output, computed) = jax.grad(cost, argnums=(0, 1, 2), has_aux=True)(x, weights, matrices)
    return output, gradients, computed


def drawn(seed: int, experts: np.ndarray):
    rng = np.random.default_rng(seed)
    tokens = len(experts)
    weights = np.where(experts < NUM_EXPERTS, rng.random(experts.shape), 0).astype(np.float32)
    shapes = ((NUM_EXPERTS, WIDTH, 8), (NUM_EXPERTS, WIDTH, 8), (NUM_EXPERTS, 8, WIDTH))
    matrices = Experts(*(rng.normal(size=shape).astype(np.float32) for shape in shapes))
    x, slope = rng.normal(size=(2, tokens, WIDTH)).astype(np.float32)
    return x, experts, weights, matrices, slope


def check(body: str, seed: int, experts: np.ndarray, *, num_expected: int, policy: Policy = PLAIN, rtol: float = 1e-5):
    arguments = drawn(seed, experts)
    output, gradients, computed = run(*arguments, body=body, num_expected=num_expected, policy=policy)
    truth, true_gradients, _ = run(*arguments, body="oracle", num_expected=num_expected, policy=policy)
    routed = experts < NUM_EXPERTS
    assert computed >= routed.sum()
    found, expected = (output, gradients[0], gradients[2]), (truth, true_gradients[0], true_gradients[2])
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * max(1.0, float(np.abs(b).max())))
    # A route to nowhere has no weight that could have a gradient.
    a, b = (np.where(routed, g[1], 0) for g in (gradients, true_gradients))
    np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * max(1.0, float(np.abs(b).max())))
    return int(computed)


def some(seed: int, *, tokens: int, slots: int, skew: float, padding: float) -> np.ndarray:
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(tokens, NUM_EXPERTS)) + skew * np.arange(NUM_EXPERTS)
    experts = np.argsort(-scores, axis=1)[:, :slots].astype(np.int32)
    experts[rng.random(tokens) < padding] = NUM_EXPERTS
    return experts


@pytest.mark.parametrize("body", FAST)
@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**16),
    shape=st.sampled_from([(1, 2), (37, 2), (64, 1), (50, 4)]),
    skew=st.sampled_from([0.0, 0.5, 50.0]),
    padding=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_every_body_equals_the_oracle_in_values_and_gradients(body, seed, shape, skew, padding):
    tokens, slots = shape
    experts = some(seed, tokens=tokens, slots=slots, skew=skew, padding=padding)
    check(body, seed, experts, num_expected=tokens * slots)


@pytest.mark.parametrize("body", FAST)
def test_one_expert_may_take_all_tokens_and_the_others_none(body):
    check(body, 0, np.full((200, 1), 2, np.int32), num_expected=200)


@pytest.mark.parametrize("body", FAST)
def test_tokens_may_have_as_many_slots_as_there_are_experts_and_leave_most_empty(body):
    rng = np.random.default_rng(0)
    experts = np.where(rng.random((40, NUM_EXPERTS)) < 0.3, np.arange(NUM_EXPERTS), NUM_EXPERTS).astype(np.int32)
    check(body, 1, experts, num_expected=48)


@pytest.mark.parametrize("body", FAST)
@pytest.mark.parametrize("policy", [Policy(operands="bfloat16"), Policy(remat="full")], ids=["bfloat16", "recomputed"])
def test_the_policy_holds_within_experts(body, policy):
    experts = some(3, tokens=64, slots=2, skew=0.5, padding=0.1)
    check(body, 3, experts, num_expected=128, policy=policy, rtol=1e-5 if policy.operands == "float32" else 2e-2)


def test_blocks_compute_an_eighth_more_than_balanced_loads_and_beyond_that_what_is_routed():
    experts = np.tile(np.arange(NUM_EXPERTS, dtype=np.int32), 256)[:, None]
    assert check("block", 4, experts, num_expected=1024) == 1.125 * 1024
    # One expert's first block has room for 288; six more blocks of 128 hold its other 736.
    assert check("block", 4, np.zeros_like(experts), num_expected=1024) == 1.125 * 1024 + 6 * 128


@settings(max_examples=25)
@given(places=st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_ranks_count_those_before_that_lead_to_the_same_place(places):
    rank, load = ranks(np.array(places, np.int32), 5)
    assert [places[:i].count(place) for i, place in enumerate(places)] == rank.tolist()
    assert [places.count(place) for place in range(5)] == load.tolist()
