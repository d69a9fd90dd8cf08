import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_train.blocks import rotary, rotate


def turned(x, position):
    x = np.asarray(x)
    rotation = rotary(jnp.asarray([[position]]), dim=x.shape[-1], theta=10_000.0, max_seq_len=2048)
    return np.asarray(rotate(jnp.asarray(x, jnp.float32)[None, None, None], rotation))[0, 0, 0]


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000))
def test_scores_depend_on_the_distance_of_two_positions_alone(first, second, shift):
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(2, 8))
    here = turned(query, first) @ turned(key, second)
    there = turned(query, first + shift) @ turned(key, second + shift)
    np.testing.assert_allclose(here, there, atol=2e-3)


def test_position_zero_turns_nothing_and_lengths_are_kept():
    x = np.random.default_rng(1).normal(size=8)
    np.testing.assert_allclose(turned(x, 0), x, rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(turned(x, 77)), np.linalg.norm(x), rtol=1e-5)


def test_the_first_pair_is_the_first_value_of_each_half_and_turns_one_radian_a_position():
    np.testing.assert_allclose(turned([1.0, 0.0, 0.0, 0.0], 1), [np.cos(1), 0, np.sin(1), 0], atol=1e-6)
