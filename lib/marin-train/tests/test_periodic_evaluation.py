import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marin_train.configs import Component, DataConfig, TrainConfig
from marin_train.errors import ConfigError
from marin_train.held_out import HeldOut, evaluate_held_out
from marin_train.loop import train
from marin_train.periodic_evaluation import add_evaluation, averages, read_evaluations


@pytest.fixture(scope="module")
def evaluated(tiny_config: Callable[..., TrainConfig], store: Path) -> TrainConfig:
    """Two components that hold out 5 and 3 sequences, scored after steps 5, 10 and 12; batches are of 4."""
    first = Component(name="first", path=str(store), validation=5)
    data = DataConfig(components=(first, replace(first, name="second", validation=3)), seq_len=16)
    return tiny_config(data=data, eval_steps=5, ema_decay=0.9)


@pytest.fixture(scope="module")
def run(evaluated: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(evaluated, tmp_path_factory.mktemp("evaluated") / "run").out_dir


class Recorder:
    def __init__(self) -> None:
        self.rows: list[Mapping[str, Any]] = []

    def start(self, record: Mapping[str, Any], *, step: int) -> None: ...

    def log(self, row: Mapping[str, Any]) -> None:
        self.rows.append(row)

    def finish(self, summary: Mapping[str, Any]) -> None: ...


def test_a_run_is_scored_at_its_steps_and_at_its_end_as_its_checkpoint_is(run: Path) -> None:
    rows = read_evaluations(run / "eval.jsonl")
    assert [row["step"] for row in rows] == [5, 10, 12]
    # The checkpoint gives the average of the parameters that the run kept, and so is that what the run scored.
    for result in evaluate_held_out(run, batch_size=2):
        told = rows[-1]["components"][result.component]
        assert told["loss"] == pytest.approx(result.loss, rel=1e-6)
        assert (told["num_tokens"], told["num_sequences"]) == (result.num_tokens, result.num_sequences)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["loss"] == rows[-1]["micro_loss"]
    assert summary["loss_name"] == "held out, mean over the tokens of 2 component(s)"
    assert len(summary["eval_digest"]) == 64
    assert summary["train_loss"] != summary["loss"]


def test_evaluating_changes_no_step(run: Path, evaluated: TrainConfig, tmp_path: Path) -> None:
    recorder = Recorder()
    plain = train(replace(evaluated, eval_steps=0), tmp_path / "plain").out_dir
    assert losses(plain) == losses(run)
    train(evaluated, tmp_path / "tracked", trackers=[recorder])
    told = [row for row in recorder.rows if "eval/micro_loss" in row]
    assert [row["step"] for row in told] == [5, 10, 12]
    assert all(told[0][f"eval/{name}/bits_per_byte"] > 0 for name in ("first", "second"))


def test_evaluations_asked_for_after_the_end_are_told_as_none(evaluated: TrainConfig, tmp_path: Path) -> None:
    config = replace(evaluated, steps=2, eval_steps=0)
    finished = train(config, tmp_path / "run")
    assert (
        train(replace(config, eval_steps=1), tmp_path / "run").summary["loss_name"] == "train, mean of the last 2 steps"
    )
    # Nor does one of an earlier step, made by a start that asked for some, stand for the end.
    result = HeldOut(component="first", loss=1.0, bits_per_byte=0.5, num_tokens=3, num_sequences=1)
    add_evaluation(tmp_path / "run" / "eval.jsonl", 1, [result])
    assert train(replace(config, eval_steps=1), tmp_path / "run").summary["loss"] == finished.summary["loss"]


def losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_averages_weigh_by_tokens_or_by_components() -> None:
    results = [
        HeldOut(component=name, loss=loss, bits_per_byte=loss / 2, num_tokens=tokens, num_sequences=1)
        for name, loss, tokens in (("a", 1.0, 30), ("b", 3.0, 10))
    ]
    expected = {"micro_loss": 1.5, "macro_loss": 2.0, "micro_bits_per_byte": 0.75, "macro_bits_per_byte": 1.0}
    assert averages(results) == expected


def test_an_evaluation_made_again_takes_the_place_of_those_from_there_on(tmp_path: Path) -> None:
    path = tmp_path / "eval.jsonl"
    result = HeldOut(component="a", loss=1.0, bits_per_byte=0.5, num_tokens=3, num_sequences=1)
    for step in (5, 10, 15):
        add_evaluation(path, step, [result])
    add_evaluation(path, 10, [replace(result, loss=2.0)])
    assert [(row["step"], row["micro_loss"]) for row in read_evaluations(path)] == [(5, 1.0), (10, 2.0)]


def test_evaluations_of_nothing_are_refused(tiny_config: Callable[..., TrainConfig], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds anything out; set Component\.validation"):
        train(tiny_config(eval_steps=5), tmp_path / "run")
