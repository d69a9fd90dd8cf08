from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_train.configs import Component, DataConfig, ModelConfig, OptimizerConfig, ScheduleConfig, TrainConfig
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
