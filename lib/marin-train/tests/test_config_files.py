import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from marin_train.config_files import from_dict, load
from marin_train.configs import RopeScaling, Stage, TrainConfig, to_dict
from marin_train.errors import ConfigError

TOML = """
steps = 20
batch_size = 4

[model]
vocab_size = 64
hidden_dim = 16
num_layers = 2
num_heads = 2
num_kv_heads = 1
head_dim = 8
mlp_dim = 32
max_seq_len = 32

[data]
seq_len = 16

[[data.components]]
name = "all"
path = "store"
weight = 2

[optimizer]
learning_rate = 1e-2
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(TOML)
    return path


def test_what_is_written_comes_back(file: Path, tmp_path: Path) -> None:
    config = load(file)
    assert config.optimizer.learning_rate == 0.01
    assert config.data.components[0].weight == 2.0
    written = tmp_path / "run.json"
    written.write_text(json.dumps(to_dict(config)))
    assert load(written) == config == from_dict(TrainConfig, to_dict(config))


def test_overrides_reach_every_depth_in_order(file: Path) -> None:
    overrides = ["steps=7", "optimizer.learning_rate=1", "data.components.0.path=a=b", "schedule.decay=0.5", "steps=8"]
    config = load(file, overrides=overrides)
    assert (config.steps, config.optimizer.learning_rate, config.schedule.decay) == (8, 1.0, 0.5)
    assert config.data.components[0].path == "a=b"


def test_an_override_reaches_into_an_optional_group_that_a_file_leaves_out_or_says_is_null(tmp_path: Path) -> None:
    overrides = ["model.rope_scaling.kind=linear", "model.rope_scaling.factor=2"]
    path = tmp_path / "run.toml"
    path.write_text(TOML)
    expected = RopeScaling(kind="linear", factor=2.0)
    assert load(path, overrides=overrides).model.rope_scaling == expected
    written = tmp_path / "run.json"
    written.write_text(json.dumps(to_dict(load(path))))
    assert load(written, overrides=overrides).model.rope_scaling == expected


def test_stages_are_read_from_toml_and_from_an_override(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(TOML + "[[data.stages]]\nstart = 5\nweights = { all = 2 }\n")
    assert load(path).data.stages == (Stage(start=5, weights={"all": 2.0}),)
    assert load(path, overrides=["data.stages.0.weights.all=3"]).data.stages[0].weights == {"all": 3.0}
    written = tmp_path / "run.json"
    written.write_text(json.dumps(to_dict(load(path))))
    assert load(written) == load(path)


def test_stages_that_do_not_follow_one_another_are_refused(file: Path) -> None:
    two = json.dumps([{"start": start, "weights": {"all": 1}} for start in (5, 5)])
    with pytest.raises(ConfigError, match="start=5 follows start=5; each stage begins after"):
        load(file, overrides=[f"data.stages={two}"])


REFUSED = {
    "model.hiden_dim=3": "model.hiden_dim is not a field of ModelConfig; did you mean 'hidden_dim'",
    "zzz=1": "zzz is not a field of TrainConfig; TrainConfig has model, data",
    "steps=many": "steps is 'many', expected int",
    "steps=true": "steps is True, expected int",
    "steps=1.5": "steps is 1.5, expected int",
    "optimizer.name=sgd": "optimizer.name is 'sgd', expected one of 'adamw', 'adamc', 'lion'",
    "data.components=5": "data.components is 5, expected a list",
    'data.stages={"start": 1}': "expected a list; in TOML its tables are headed [[data.stages]]",
    "data.packing.overlong=drop": "PackingConfig.overlong='drop' changes nothing under kind='contiguous'",
    "data.components.3.weight=1": "'3' must be a number below 1",
    "steps.x=1": "'steps' is a value, not a group",
    "model=5": "model is 5, expected the fields of ModelConfig",
    "steps": "override 'steps' must look like",
    "steps=0": "TrainConfig.steps=0 must be positive",
    "seed=4294967296": "TrainConfig.seed=4294967296 must lie between 0 and 2**32 - 1",
    "log_every=0": "TrainConfig.log_every=0 must be positive",
    "checkpoint_steps=-1": "TrainConfig.checkpoint_steps=-1 must not be negative",
    "optimizer.beta2=1": "OptimizerConfig.beta2=1.0 must be at least 0 and below 1",
    "optimizer.weight_decay=-0.1": "OptimizerConfig.weight_decay=-0.1 must not be negative",
    "schedule.final_ratio=-1": "ScheduleConfig.final_ratio=-1.0 must not be negative",
    'data.stages=[{"start": 1, "weights": 3}]': "data.stages.0.weights is 3, expected names and values",
    'data.stages=[{"start": 1, "weights": {"all": true}}]': "data.stages.0.weights.all is True, expected float",
    'data.stages=[{"start": 1, "weights": {"al": 1}}]': "the weights from step 1 on name 'al', which is no component",
    'data.stages=[{"start": 0, "weights": {"all": 1}}]': "Stage.start=0 must be positive",
    'data.stages=[{"start": 4, "weights": {"all": 0}}]': "from step 4 on has no weight above 0",
    'data.stages=[{"start": 4, "weights": {"all": -1}}]': "Stage.weights['all']=-1.0 from step 4 on must be finite",
    "data.components.0.weight=0": "DataConfig.components has no weight above 0",
    "data.components.0.weight=Infinity": "Component.weight=inf of 'all' must be finite",
    "data.components.0.max_epochs=0": "Component.max_epochs=0.0 of 'all' must be positive",
    "data.components.0.validation=-1": "Component.validation=-1 of 'all' must not be negative",
    "data.shuffle.window=0": "ShuffleConfig.window=0 must be positive",
    "data.components.0.weight=-1": "Component.weight=-1.0 of 'all' must not be negative",
    "data.components.0.weight=1" + "0" * 400: "data.components.0.weight is a number of 401 digits",
    "data.components.0.weight=NaN": "Component.weight=nan of 'all' must not be negative",
    "data.components.0.name=": "Component.name of 'store' is empty",
    "data.components.²=1": "'²' must be a number below 1",
    "data.shuffle.block=9223372036854775808": "ShuffleConfig.block=9223372036854775808 must not be more than 2**62",
    "steps=9223372036854775808": "TrainConfig.steps=9223372036854775808 must not be more than 2**30",
    "model.mlp_dim=2147483648": "ModelConfig.mlp_dim=2147483648 must not be more than 2**30",
    "schedule.cycles=21": "ScheduleConfig.cycles=21 exceeds TrainConfig.steps=20",
    "schedule.rewarmups=[4294967296]": "ScheduleConfig.rewarmups=(4294967296,) must each be",
    "z_loss=Infinity": "TrainConfig.z_loss=inf must be finite",
    "optimizer.weight_decay=Infinity": "OptimizerConfig.weight_decay=inf must be finite",
    "data.components." + "9" * 5000 + "=1": "must be a number below 1",
    "model=" + "x" * 5000: "model is 'xxx",
    "data.components=" + "[" * 100_000: "expected a list",
}


@pytest.mark.parametrize("override", REFUSED)
def test_a_mistake_is_refused_by_the_name_of_its_field(file: Path, override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(file, overrides=[override])
    assert REFUSED[override] in str(caught.value)
    assert len(str(caught.value)) < 600, "it is to fit on a screen"


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(TOML.replace("head_dim = 8\n", ""))
    with pytest.raises(ConfigError, match=r"model\.head_dim is missing"):
        load(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [("run.toml", "steps =", "is not TOML"), ("run.json", "{", "is not JSON"), ("run.yaml", "", "must end in"),
     ("run.json", "[]", "holds list")],
)  # fmt: skip
def test_a_file_that_is_not_a_configuration_is_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=message):
        load(tmp_path / name)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml cannot be read: No such file"):
        load(tmp_path / "absent.toml")


def test_the_tests_own_configuration_survives_the_round_trip(tiny_config: Callable[..., TrainConfig]) -> None:
    assert from_dict(TrainConfig, json.loads(json.dumps(to_dict(tiny_config())))) == tiny_config()


@pytest.mark.parametrize(
    "scaling",
    [
        None,
        RopeScaling(kind="llama3", factor=8.0, original_max_seq_len=8192),
        RopeScaling(kind="longrope", original_max_seq_len=8, short_factor=(1.0,) * 4, long_factor=(1.5, 2.0, 4.0, 8.0)),
    ],
)
def test_a_models_scaling_of_positions_survives_the_round_trip(
    scaling: RopeScaling | None, tiny_config: Callable[..., TrainConfig]
) -> None:
    config = tiny_config()
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, rope_scaling=scaling))
    assert from_dict(TrainConfig, json.loads(json.dumps(to_dict(config)))) == config
