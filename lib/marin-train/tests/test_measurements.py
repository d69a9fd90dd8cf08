import dataclasses
import itertools
import json
import logging

import pytest

from marin_train import measurements
from marin_train.configs import Component, DataConfig, ModelConfig, TrainConfig
from marin_train.errors import ConfigError
from marin_train.measurements import Measurement, measure
from marin_train.policy import Policy

RUN = TrainConfig(
    model=ModelConfig(
        vocab_size=16, hidden_dim=8, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=8, mlp_dim=8, max_seq_len=8
    ),
    data=DataConfig(components=(Component(name="a", path="a"),), seq_len=8),
    steps=1,
    batch_size=2,
)
CHOSEN = Policy(operands="bfloat16", attention="blocked", remat="full", scan=True)


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """The policies chosen, in order, on a machine that slows down; what is kept lies below `tmp_path`."""
    told, speeds = [], itertools.count(9, -1)

    def peak_flops(operands):
        speed = next(speeds)
        return {precision: {"float32": 1e9, "bfloat16": 4e9}[precision] * speed for precision in operands}

    def choose(config, *, rates):
        told.append(config.policy)
        return CHOSEN if config.policy == "auto" else measurements.by_name(config.policy)

    monkeypatch.setenv("MARIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(measurements, "peak_flops", peak_flops)
    monkeypatch.setattr(measurements, "choose", choose)
    return told


def kept(tmp_path):
    return sorted((tmp_path / "cache" / "measurements").iterdir())


def test_a_policy_is_chosen_once_for_runs_of_a_shape_and_the_best_rates_hold(measured, tmp_path, caplog):
    first = measure(RUN)
    assert first == Measurement(policy=CHOSEN, rates={"float32": 9e9, "bfloat16": 36e9})
    with caplog.at_level(logging.INFO, logger="marin_train"):
        again = measure(dataclasses.replace(RUN, steps=9))
    assert again == dataclasses.replace(first, is_earlier=True)
    assert measured == ["auto"]
    (path,) = kept(tmp_path)
    assert str(path) in caplog.text


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(RUN, batch_size=4),
        dataclasses.replace(RUN, policy="float32-reference-keep-scan"),
        dataclasses.replace(RUN, model=dataclasses.replace(RUN.model, mlp_dim=16)),
    ],
    ids=["batch", "policy", "width"],
)
def test_another_shape_or_policy_is_measured_by_itself(measured, other):
    measure(RUN)
    measure(other)
    assert measured == [RUN.policy, other.policy]


@pytest.mark.parametrize("name", ["XLA_FLAGS", "version", "cpu"])
def test_another_compiler_or_machine_is_measured_by_itself(measured, monkeypatch, name):
    measure(RUN)
    if name == "XLA_FLAGS":
        monkeypatch.setenv(name, "--xla_cpu_multi_thread_eigen=false")
    elif name == "version":
        monkeypatch.setattr(measurements, "version", lambda _: "99")
    else:
        monkeypatch.setattr(measurements, "_cpu_lines", lambda: ["model name : another"])
    assert not measure(RUN).is_earlier


@pytest.mark.parametrize("damage", ["", "[]", '{"policy": {"operands": "float8"}}', "no policy", "no rates"])
def test_what_cannot_be_read_is_measured_anew_with_a_warning(measured, tmp_path, caplog, damage):
    first = measure(RUN)
    (path,) = kept(tmp_path)
    values = json.loads(path.read_text())
    if damage == "no policy":
        values["policy"]["attention"] = "telepathy"
    elif damage == "no rates":
        values["rates"] = "fast"
    path.write_text(json.dumps(values) if damage.startswith("no ") else damage)
    again = measure(RUN)
    assert (again.policy, again.is_earlier) == (first.policy, False)
    assert "is measured anew" in caplog.text
    assert measure(RUN).is_earlier


def test_a_run_starts_where_nothing_can_be_kept(measured, monkeypatch, tmp_path, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MARIN_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.INFO, logger="marin_train"):
        assert measure(RUN).policy == CHOSEN
    assert "not kept" in caplog.text


def test_a_policy_that_is_none_is_refused_before_anything_is_measured(measured):
    with pytest.raises(ConfigError, match="is not a policy"):
        measure(dataclasses.replace(RUN, policy="fast"))
    assert measured == []
