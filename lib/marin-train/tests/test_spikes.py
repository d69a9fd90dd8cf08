import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from marin_train.configs import Component, DataConfig, OptimizerConfig, TrainConfig
from marin_train.loop import train
from marin_train.spikes import SpikeDetector
from marin_train.tracking import read_metrics

GARBAGE = 250
"""The number of a document that no order of training prepares for; a run of 60 steps comes by it once."""


@pytest.fixture(scope="module")
def run(
    tiny_config: Callable[..., TrainConfig], write_store: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Documents that count up by one, two to a sequence, and a long one that is drawn; norms are watched."""
    where, rng = tmp_path_factory.mktemp("spikes"), np.random.default_rng(0)
    texts = [[int(t) for t in 1 + (start + np.arange(31)) % 63] + [0] for start in rng.integers(0, 63, 480)]
    texts[GARBAGE] = [*rng.integers(1, 64, 159).tolist(), 0]
    store = write_store(where / "store", [texts], sources=[[("good", GARBAGE), ("bad", 1), ("good", 229)]])
    data = DataConfig(components=(Component(name="all", path=str(store)),), seq_len=32, seed=3)
    fast = OptimizerConfig(learning_rate=0.03)
    return train(tiny_config(data=data, steps=119, batch_size=4, optimizer=fast, watch_steps=50), where / "run").out_dir


def test_a_step_whose_loss_jumps_has_its_documents_written_down(run: Path) -> None:
    rows = read_metrics(run / "metrics.jsonl")
    losses = [row["loss"] for row in rows]
    files = {int(file.stem.removeprefix("step-")): json.loads(file.read_text()) for file in (run / "blame").iterdir()}
    worst = 1 + max(range(40, len(losses)), key=lambda at: losses[at] - np.median(losses[at - 20 : at]))
    assert worst in files
    first = files[worst]["documents"][0]
    assert (first["document"], first["source"]) == (GARBAGE, "bad")
    assert files[worst]["parameters_of"] in (worst, worst + 1)
    assert len(files) <= 8
    # Writing it down is no step's time, nor taken off from one.
    assert all(row["step_time_s"] > 0 for row in rows)


def test_the_pause_that_writing_takes_is_no_steps_time(run: Path) -> None:
    # A step that was done before the pause would be told to have taken less than no time.
    assert min(row["step_time_s"] for row in read_metrics(run / "metrics.jsonl")) > 0


def test_norms_of_every_leaf_are_told_at_their_steps_alone(run: Path) -> None:
    rows = read_metrics(run / "metrics.jsonl")
    watched = {row["step"] for row in rows if any(name.startswith("watch/") for name in row)}
    assert watched == {50, 100}
    norms = {name: value for name, value in rows[49].items() if name.startswith("watch/")}
    gradient = np.sqrt(sum(value**2 for name, value in norms.items() if name.endswith("/gradient")))
    assert gradient == pytest.approx(rows[49]["grad_norm"], rel=1e-5)
    assert norms["watch/layers.attention.query/parameter"] > 0 < norms["watch/embed/update"]


def test_a_loss_far_above_the_usual_is_a_spike_and_a_slow_rise_is_none() -> None:
    detector, rng = SpikeDetector(), np.random.default_rng(0)
    noise = rng.normal(size=200) * 0.05
    assert not any(detector.is_spike(3.0 + step / 200 + noise[step], skipped=False) for step in range(200))
    assert detector.is_spike(5.0, skipped=False)
    assert not detector.is_spike(4.0, skipped=False)
    assert detector.is_spike(None, skipped=True)
    assert not detector.is_spike(None, skipped=False)


def test_the_first_losses_are_measured_against_nothing() -> None:
    detector = SpikeDetector()
    assert not any(detector.is_spike(loss, skipped=False) for loss in (1.0, 9.0, 1.0, 9.0))
