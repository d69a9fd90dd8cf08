from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_train.configs import Component, DataConfig, ModelConfig, OptimizerConfig, ScheduleConfig, TrainConfig
from marin_train.errors import ConfigError
from marin_train.optim import make_schedule, wsd


def exact(step, *, num_steps, num_warmup, num_decay, final):
    """The definition in rational numbers, with a peak of 1."""
    warm = min(Fraction(1), Fraction(step + 1, num_warmup)) if num_warmup else Fraction(1)
    left = min(Fraction(1), Fraction(num_steps - step, num_decay)) if num_decay else Fraction(1)
    return min(warm, final + (1 - final) * left)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_every_value_is_the_definitions_to_float32(data):
    num_steps = data.draw(st.integers(1, 5000))
    num_warmup = data.draw(st.integers(0, num_steps))
    num_decay = data.draw(st.integers(0, num_steps - num_warmup))
    final = data.draw(st.sampled_from([0.0, 0.1, 0.5]))
    schedule = wsd(1.0, num_steps=num_steps, num_warmup=num_warmup, num_decay=num_decay, final_ratio=final)
    for step in {0, num_warmup, num_steps - num_decay, num_steps - 1, data.draw(st.integers(0, num_steps - 1))} - {
        num_steps
    }:
        value = exact(step, num_steps=num_steps, num_warmup=num_warmup, num_decay=num_decay, final=Fraction(final))
        np.testing.assert_allclose(float(schedule(step)), float(value), rtol=3e-7)
        assert float(schedule(step)) > 0


def test_corners_to_the_digit():
    schedule = wsd(0.5, num_steps=20, num_warmup=4, num_decay=8, final_ratio=0.0)
    rates = [float(schedule(step)) for step in range(20)]
    assert rates == [0.125, 0.25, 0.375, *[0.5] * 10, *[0.5 * left / 8 for left in range(7, 0, -1)]]


def test_a_run_turns_fractions_into_whole_steps():
    config = TrainConfig(
        model=ModelConfig(
            vocab_size=8,
            hidden_dim=8,
            num_layers=1,
            num_heads=1,
            num_kv_heads=1,
            head_dim=8,
            mlp_dim=8,
            max_seq_len=8,
        ),
        data=DataConfig(components=(Component(name="a", path="a"),), seq_len=8),
        steps=40,
        batch_size=1,
        optimizer=OptimizerConfig(learning_rate=1.0),
        schedule=ScheduleConfig(warmup=0.1, decay=0.2, final_ratio=0.5),
    )
    schedule = make_schedule(config)
    assert [float(schedule(step)) for step in (0, 3, 31, 32, 36, 39)] == [0.25, 1.0, 1.0, 1.0, 0.75, 0.5625]


def values(steps, *, num_steps, **fields):
    config = TrainConfig(
        model=SHAPE,
        data=DataConfig(components=(Component(name="a", path="a"),), seq_len=8),
        steps=num_steps,
        batch_size=1,
        optimizer=OptimizerConfig(learning_rate=1.0),
        schedule=ScheduleConfig(**fields),
    )
    schedule = make_schedule(config)
    return [float(np.float32(schedule(step))) for step in steps]


SHAPE = ModelConfig(
    vocab_size=8, hidden_dim=8, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=8, mlp_dim=8, max_seq_len=8
)
HALF_ROOT = float(np.sqrt(np.float32(0.5)))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        # 16 updates; at the first, around the end of the warm-up of 4, around the corner at 8, at the last
        ({"decay": 8}, [0.25, 0.75, 1.0, 1.0, 1.0, 1.0, 0.875, 0.125]),
        ({"decay": 0.5, "final_ratio": 0.5}, [0.25, 0.75, 1.0, 1.0, 1.0, 1.0, 0.9375, 0.5625]),
        ({"decay": 8, "decay_shape": "cosine"}, [0.25, 0.75, 1.0, 1.0, 1.0, 1.0, 0.96193975, 0.038060218]),
        ({"decay": 8, "decay_shape": "sqrt"}, [0.25, 0.75, 1.0, 1.0, 1.0, 1.0, 0.6464466, 0.06458565]),
        ({"name": "constant"}, [0.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ({"name": "linear"}, [0.25, 0.75, 1.0, 1.0, 0.75, 8 / 12, 7 / 12, 1 / 12]),
        ({"name": "cosine"}, [0.25, 0.75, 1.0, 1.0, 0.8535534, 0.75, 0.62940955, 0.017037094]),
        ({"name": "inverse_sqrt", "decay": 0}, [0.25, 0.75, 1.0, 0.8944272, HALF_ROOT, 2 / 3, 0.6324555, 0.5]),
        ({"name": "inverse_sqrt", "decay": 8}, [0.25, 0.75, 1.0, 0.8944272, HALF_ROOT, 2 / 3, 0.55339859, 0.0625]),
        ({"name": "constant", "rewarmups": (7,)}, [0.25, 0.75, 1.0, 1.0, 0.25, 0.5, 0.75, 1.0]),
    ],
)
def test_every_name_at_its_corners(fields, expected):
    told = values([0, 2, 3, 4, 7, 8, 9, 15], num_steps=16, warmup=4, **fields)
    np.testing.assert_allclose(told, expected, rtol=5e-7)


def test_each_cycle_is_a_run_of_its_own():
    one = values(range(8), num_steps=8, name="cosine", warmup=0.25)
    assert values(range(24), num_steps=24, name="cosine", warmup=0.25, cycles=3) == one * 3


def test_neighbouring_steps_differ_beyond_what_float32_counts():
    steps = 2**25 + 2
    told = values(range(steps - 4, steps), num_steps=steps, warmup=0, decay=8)
    assert told == [0.5, 0.375, 0.25, 0.125]
    (warm,) = values([2**25], num_steps=2**26, warmup=2**26, decay=0)
    assert warm == float(np.float32(2**25 + 1) / np.float32(2**26))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"warmup": 9, "decay": 8}, "are 9 and 8 updates, but the run has 16"),
        ({"warmup": 9, "decay": 0, "cycles": 2}, "but a cycle has 8"),
        ({"warmup": 1.5, "decay": 0}, "neither a share of the run, up to 1, nor a number of updates"),
        ({"cycles": 0}, "ScheduleConfig.cycles=0 must be positive"),
        ({"rewarmups": (0,)}, "must each be at least 1"),
    ],
)
def test_a_schedule_that_does_not_fit_is_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        values([0], num_steps=16, **fields)
