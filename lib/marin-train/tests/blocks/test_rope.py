import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_train.blocks import rotary, rotate
from marin_train.blocks.rope import attention_factor, frequencies
from marin_train.configs import ModelConfig, RopeScaling
from marin_train.errors import ConfigError

SHORT = (1.0, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0)
LONG = (1.0, 1.2, 1.9, 4.0, 9.0, 17.5, 30.0, 60.0)
LONGROPE = RopeScaling(kind="longrope", factor=32.0, original_max_seq_len=4096, short_factor=SHORT, long_factor=LONG)

# dim, theta, the model's length, scaling; then what transformers 5.24.0 gives for it in float32: the frequencies of
# modeling_rope_utils.ROPE_INIT_FUNCTIONS[kind] and its attention factor.
PUBLISHED = {
    "linear": (
        (16, 1e6, 131_072, RopeScaling(kind="linear", factor=8.0)),
        "0.125 0.0222284924 0.00395284733 0.000702926656 0.000125000006 2.22284925e-05 3.95284678e-06 7.02926684e-07",
        1.0,
    ),
    "llama3": (
        (32, 5e5, 131_072, RopeScaling(kind="llama3", factor=8.0, original_max_seq_len=8192)),
        "1.0 0.440366626 0.193922758 0.0853971019 0.0376060307 0.0165604409 0.00729266508 0.00321144611 "
        "0.000524846022 7.78465546e-05 3.42810235e-05 1.50962178e-05 6.64786967e-06 2.92749974e-06 "
        "1.28917316e-06 5.6770881e-07",
        1.0,
    ),
    "yarn": (
        (32, 1e6, 131_072, RopeScaling(kind="yarn", factor=4.0, original_max_seq_len=32_768)),
        "1.0 0.421696514 0.177827939 0.0749894157 0.0316227786 0.0133352149 0.00477990136 0.00165996165 "
        "0.000549999997 0.000168678584 4.44569851e-05 1.87473561e-05 7.90569356e-06 3.33380353e-06 "
        "1.40585337e-06 5.92843435e-07",
        1.138629436111989,
    ),
    "yarn, every field": (
        (
            16,
            1e4,
            131_072,
            RopeScaling(
                kind="yarn",
                factor=16.0,
                original_max_seq_len=4096,
                beta_fast=16.0,
                beta_slow=2.0,
                attention_factor=0.9,
            ),
        ),
        "1.0 0.316227764 0.100000001 0.0316227786 0.00687499903 0.00118585408 6.2500003e-05 1.97642366e-05",
        0.9,
    ),
    "longrope, short": (
        (16, 1e4, 4096, LONGROPE),
        "1.0 0.316227764 0.095238097 0.0287479796 0.00833333284 0.00243252143 0.00066666666 0.000158113893",
        1.1902380714238083,
    ),
    "longrope, long": (
        (16, 1e4, 4097, LONGROPE),
        "1.0 0.263523132 0.0526315793 0.00790569466 0.00111111114 0.00018070158 3.33333337e-05 5.27046268e-06",
        1.1902380714238083,
    ),
}


def turned(x, position):
    x = np.asarray(x)
    rotation = rotary(jnp.asarray([[position]]), dim=x.shape[-1], theta=10_000.0, max_seq_len=2048)
    return np.asarray(rotate(jnp.asarray(x, jnp.float32)[None, None, None], rotation))[0, 0, 0]


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 10**6))
def test_scores_depend_on_the_distance_of_two_positions_alone(first, second, shift):
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(2, 8))
    here = turned(query, first) @ turned(key, second)
    there = turned(query, first + shift) @ turned(key, second + shift)
    np.testing.assert_allclose(here, there, atol=1e-5)


def test_position_zero_turns_nothing_and_lengths_are_kept():
    x = np.random.default_rng(1).normal(size=8)
    np.testing.assert_allclose(turned(x, 0), x, rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(turned(x, 77)), np.linalg.norm(x), rtol=1e-5)


def test_the_first_pair_is_the_first_value_of_each_half_and_turns_one_radian_a_position():
    np.testing.assert_allclose(turned([1.0, 0.0, 0.0, 0.0], 1), [np.cos(1), 0, np.sin(1), 0], atol=1e-6)


def test_dims_behind_those_that_are_turned_stay():
    x = np.random.default_rng(1).normal(size=(1, 1, 1, 10)).astype(np.float32)
    rotation = rotary(jnp.asarray([[5]]), dim=4, theta=100.0, max_seq_len=2048)
    out = np.asarray(rotate(jnp.asarray(x), rotation))
    np.testing.assert_array_equal(out[..., 4:], x[..., 4:])
    assert np.abs(out[..., :4] - x[..., :4]).min() > 1e-3


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 2**31 - 1), min_size=8, max_size=8), st.sampled_from([1e2, 1e4, 5e5, 1e9]))
def test_angles_are_exact_at_any_position(positions, theta):
    rotation = rotary(jnp.asarray([positions]), dim=128, theta=theta, max_seq_len=2048)
    angles = np.array(positions, np.longdouble)[:, None] * frequencies(128, theta=theta, max_seq_len=2048)
    np.testing.assert_allclose(rotation.cos[0], np.cos(angles).astype(np.float64), atol=2e-6)
    np.testing.assert_allclose(rotation.sin[0], np.sin(angles).astype(np.float64), atol=2e-6)


@pytest.mark.parametrize(("given", "expected", "factor"), PUBLISHED.values(), ids=PUBLISHED)
def test_scaled_frequencies_are_the_published_ones(given, expected, factor):
    dim, theta, max_seq_len, scaling = given
    got = frequencies(dim, theta=theta, max_seq_len=max_seq_len, scaling=scaling)
    # Pairs amid a ramp carry the rounding of float32 sums there.
    np.testing.assert_allclose(got, np.array(expected.split(), float), rtol=1e-5)
    assert attention_factor(scaling) == pytest.approx(factor, rel=1e-12)
    rotation = rotary(jnp.asarray([[0, 7]]), dim=dim, theta=theta, max_seq_len=max_seq_len, scaling=scaling)
    np.testing.assert_allclose(rotation.cos[0, 1], factor * np.cos(7 * got), atol=1e-6)
    np.testing.assert_allclose(rotation.sin[0, 1], factor * np.sin(7 * got), atol=1e-6)


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from(["llama3", "yarn"]),
    st.floats(1.0, 64.0),
    st.sampled_from([16, 64, 128]),
    st.floats(1e2, 1e7),
    st.integers(64, 2**17),
)
def test_fast_pairs_stay_slow_ones_are_scaled_and_the_others_lie_between(kind, factor, dim, theta, original):
    scaling = RopeScaling(kind=kind, factor=factor, original_max_seq_len=original)
    plain = theta ** (-np.arange(0, dim, 2) / dim)
    got = frequencies(dim, theta=theta, max_seq_len=2**18, scaling=scaling)
    assert np.all(got <= plain * (1 + 1e-12))
    assert np.all(got >= plain / factor * (1 - 1e-12))
    turns = original * plain / (2 * math.pi)
    if kind == "llama3":
        np.testing.assert_allclose(got[turns >= 4], plain[turns >= 4])
        np.testing.assert_allclose(got[turns <= 1], plain[turns <= 1] / factor)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"kind": "dynamic"}, r"kind='dynamic' is not one of: 'linear', 'llama3'"),
        ({"kind": "yarn"}, "original_max_seq_len is missing"),
        ({"kind": "linear", "beta_fast": 16.0}, r"beta_fast=16\.0 changes nothing with kind='linear'"),
        ({"kind": "llama3", "original_max_seq_len": 8, "attention_factor": 1.0}, "attention_factor"),
        ({"kind": "llama3", "original_max_seq_len": 8, "low_freq_factor": 4.0}, "must be below"),
        ({"kind": "longrope", "original_max_seq_len": 8, "short_factor": (1.0,)}, "long_factor"),
        (
            {"kind": "longrope", "original_max_seq_len": 8, "short_factor": (0.0,), "long_factor": (1.0,)},
            "short_factor",
        ),
    ],
)
def test_a_scaling_that_cannot_be_or_ignores_a_field_is_refused_by_name(fields, named):
    with pytest.raises(ConfigError, match=named):
        RopeScaling(**fields)


def test_divisors_must_be_as_many_as_pairs():
    with pytest.raises(ConfigError, match="short_factor has 8 divisors, a head has 4 pairs"):
        ModelConfig(
            vocab_size=9,
            hidden_dim=8,
            num_layers=1,
            num_heads=1,
            num_kv_heads=1,
            head_dim=8,
            mlp_dim=8,
            max_seq_len=8,
            rope_scaling=LONGROPE,
        )
