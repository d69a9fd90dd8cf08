"""Configurations that cannot be run are refused when they are stated, by field and value."""

import dataclasses
import math

import pytest

from marin_train import Component, ConfigError, DataConfig, GuardConfig, OptimizerConfig, TrainConfig, presets

GOOD = TrainConfig(
    model=presets.llama_nano(512),
    data=DataConfig(components=(Component(name="corpus", path="store"),), seq_len=64),
    steps=10,
    batch_size=2,
)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("steps", 0),
        ("steps", -1),
        ("steps", 2**31),
        ("batch_size", 0),
        ("seed", -1),
        ("seed", 10**20),
        ("policy", "nonsense"),
        ("policy", ""),
        ("log_every", 0),
        ("z_loss", -1e-4),
    ],
)
def test_a_run_that_cannot_be_is_refused_by_field_and_value(field, value):
    with pytest.raises(ConfigError, match=field) as error:
        dataclasses.replace(GOOD, **{field: value})
    assert repr(value) in str(error.value) or str(value) in str(error.value)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_learning_rate_is_positive_and_finite(value):
    with pytest.raises(ConfigError, match="learning_rate"):
        OptimizerConfig(learning_rate=value)


def test_a_deviation_is_of_two_values_at_least():
    assert GuardConfig(window=1).skip_sigma is None
    with pytest.raises(ConfigError, match=r"GuardConfig\.window=1 must be at least 2"):
        GuardConfig(window=1, skip_sigma=3.0)
