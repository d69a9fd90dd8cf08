"""Configurations that cannot be run are refused when they are stated, by field and value."""

import ast
import dataclasses
import inspect
import math
import re

import pytest

from marin_train import (
    Component,
    ConfigError,
    DataConfig,
    GuardConfig,
    OptimizerConfig,
    PackingConfig,
    ScheduleConfig,
    ShuffleConfig,
    TrainConfig,
    configs,
    presets,
)

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


@pytest.mark.parametrize(
    ("config", "fields", "idle"),
    [
        (OptimizerConfig, {"name": "adamw", "momentum": 0.9}, "momentum=0.9"),
        (OptimizerConfig, {"name": "lion", "eps": 1e-6}, "eps=1e-06"),
        (OptimizerConfig, {"name": "adafactor", "beta1": 0.8}, "beta1=0.8"),
        (OptimizerConfig, {"name": "soap", "ns_steps": 3}, "ns_steps=3"),
        (OptimizerConfig, {"name": "muon", "refresh_steps": 3}, "refresh_steps=3"),
        (OptimizerConfig, {"name": "adamc", "adam_learning_rate": 0.1}, "adam_learning_rate=0.1"),
        (ScheduleConfig, {"name": "cosine", "decay": 0.5}, "decay=0.5"),
        (ScheduleConfig, {"name": "linear", "decay_shape": "sqrt"}, "decay_shape='sqrt'"),
        (ScheduleConfig, {"name": "constant", "final_ratio": 0.1}, "final_ratio=0.1"),
        (ScheduleConfig, {"warmup": 0, "rewarmups": (5,)}, r"rewarmups=(5,)"),
        (GuardConfig, {"window": 64, "max_nonfinite": 1}, "window=64"),
        (ShuffleConfig, {"window": 8}, "window=8"),
        (PackingConfig, {"overlong": "drop"}, "overlong='drop'"),
    ],
)
def test_a_field_that_another_one_leaves_without_effect_is_refused(config, fields, idle):
    with pytest.raises(ConfigError, match=re.escape(f"{config.__name__}.{idle} changes nothing")):
        config(**fields)


@pytest.mark.parametrize(
    ("config", "fields"),
    [(OptimizerConfig, {"name": "adamv"}), (ScheduleConfig, {"name": "wds"}), (PackingConfig, {"kind": "whole"})],
)
def test_a_choice_that_does_not_exist_is_refused(config, fields):
    ((name, value),) = fields.items()
    with pytest.raises(ConfigError, match=rf"{config.__name__}\.{name}='{value}' is not one of"):
        config(**fields)


def test_a_schedule_that_decays_from_its_warmup_on_may_warm_up_as_long_as_it_likes():
    assert ScheduleConfig(name="cosine", warmup=0.95).warmup == 0.95


def test_a_deviation_is_of_two_values_at_least():
    with pytest.raises(ConfigError, match=r"GuardConfig\.window=1 must be at least 2"):
        GuardConfig(window=1, skip_sigma=3.0)


@pytest.mark.parametrize("module", [configs.data, configs.model, configs.optimization, configs.run])
def test_every_field_says_what_it_does(module):
    for section in ast.parse(inspect.getsource(module)).body:
        if isinstance(section, ast.ClassDef):
            for field, after in zip(section.body, [*section.body[1:], None], strict=True):
                documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                assert documented or not isinstance(field, ast.AnnAssign), f"{section.name}: {ast.unparse(field)}"
