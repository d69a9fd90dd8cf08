import dataclasses
import logging
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from marin_train import reporting, train_step
from marin_train.certificates import read_certificate
from marin_train.configs import BatchStage, GuardConfig, TrainConfig
from marin_train.data.mixture import Mixture
from marin_train.errors import InterruptedRunError
from marin_train.loop import train
from marin_train.reporting import Report
from marin_train.run_record import mean_loss
from marin_train.tracking import SilentTracker, read_metrics

TIMES = ("step_time_s", "tokens_per_s", "mfu_causal", "mfu_full")


def test_the_mean_loss_is_over_tokens_and_silent_steps_are_none_of_it() -> None:
    losses, counted = [9.0, 2.0, None, 4.0], [10, 40, 40, 50]
    rows = [{"loss": loss, "loss_tokens": tokens} for loss, tokens in zip(losses, counted, strict=True)]
    assert mean_loss(rows, last=3) == pytest.approx((2.0 * 30 + 4.0 * 10) / 40)
    assert mean_loss(rows, last=4) == pytest.approx((9.0 * 10 + 2.0 * 30 + 4.0 * 10) / 50)
    assert mean_loss(rows[2:3], last=1) is None


def test_a_line_tells_rates_without_the_first_step_which_compiles(
    tiny_config: Callable[..., TrainConfig], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr(reporting, "time", clock)
    config, record = tiny_config(steps=12, log_every=5), SimpleNamespace(peak_flops=1e12)
    report = Report(config, record, metrics=SilentTracker(), loads=SilentTracker(), trackers=(), step=0, loss_tokens=0)
    values = {"loss": 2.0, "num_tokens": 64, "lr": 0.1, "grad_norm": 1.0, "skipped": 0, "nonfinite": 0}
    metrics = {name: np.asarray(value) for name, value in values.items()}
    with caplog.at_level(logging.INFO, logger="marin_train"):
        for step in range(1, 6):
            clock.now += 0.5 if step > 1 else 30.0
            report.push(step, {**metrics, "loss": jax.device_put(metrics["loss"]).block_until_ready()})
        report.flush()
    assert [line.split("  ", 1)[0] for line in caplog.messages] == ["step 5/12"]
    assert "128 tokens/s" in caplog.text
    assert "eta 4 s" in caplog.text


@pytest.fixture(scope="module")
def config(
    tiny_config: Callable[..., TrainConfig], write_store: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> TrainConfig:
    """A run with all that a state can hold, whose batches grow and whose masks leave a third of the tokens."""
    rng = np.random.default_rng(0)
    tokens, mask = rng.integers(1, 64, size=2000).tolist(), (rng.random(2000) < 1 / 3).tolist()
    store = write_store(tmp_path_factory.mktemp("data") / "masked", [[tokens]], masks=[mask])
    return tiny_config(
        path=store,
        steps=8,
        batch_size=4,
        batch_stages=(BatchStage(start=4, batch_size=8),),
        accumulation=2,
        ema_decay=0.9,
        guard=GuardConfig(skip_sigma=4.0, window=4, max_nonfinite=1),
        checkpoint_steps=0,
    )


@pytest.fixture(scope="module")
def whole_run(config: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The directory of such a run, and in which order it dispatched steps and fetched their metrics."""
    out, events = tmp_path_factory.mktemp("runs") / "whole", []
    make, get = train_step.make_train_step, jax.device_get

    def recording_make(*args: Any, **kwargs: Any) -> Any:
        step = make(*args, **kwargs)

        def dispatched(state: Any, batch: Any) -> Any:
            events.append("dispatch")
            return step(state, batch)

        dispatched.lower = step.lower  # by which it is compiled ahead
        return dispatched

    def recording_get(tree: Any) -> Any:
        if isinstance(tree, dict) and "loss" in tree:
            events.append("fetch")
        return get(tree)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_step, "make_train_step", recording_make)
        patch.setattr(jax, "device_get", recording_get)
        train(config, out)
    return out, events


def test_metrics_are_fetched_after_the_next_step_was_dispatched(whole_run: tuple[Path, list[str]]) -> None:
    assert whole_run[1] == ["dispatch", *["dispatch", "fetch"] * 7, "fetch"]


def test_rows_count_the_positions_and_the_tokens_that_their_masks_let_count(
    config: TrainConfig, whole_run: tuple[Path, list[str]]
) -> None:
    rows = read_metrics(whole_run[0] / "metrics.jsonl")
    assert [row["tokens"] for row in rows] == [64, 128, 192, 256, 384, 512, 640, 768]
    mixture = Mixture.open(config.data, batch_size=4, batch_stages=config.batch_stages)
    counted = np.cumsum([mixture.batch(step).loss_mask.sum() for step in range(8)])
    assert [row["loss_tokens"] for row in rows] == counted.tolist()
    for row in rows:
        assert row["skipped"] == 0
        positions = 64 if row["step"] <= 4 else 128
        assert row["tokens_per_s"] * row["step_time_s"] == pytest.approx(positions)


class TerminateAfter:
    """A tracker that sends this process SIGTERM at a step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def start(self, record: Mapping[str, Any], *, step: int) -> None: ...

    def finish(self, summary: Mapping[str, Any]) -> None: ...

    def log(self, row: Mapping[str, Any]) -> None:
        if row["step"] == self._step:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_run_stopped_where_batches_grow_goes_on_bitwise(
    config: TrainConfig, whole_run: tuple[Path, list[str]], tmp_path: Path
) -> None:
    with pytest.raises(InterruptedRunError, match="saved after step 3 of 8"):
        train(config, tmp_path / "out", trackers=[TerminateAfter(2)])
    result = train(config, tmp_path / "out")
    one, other = (
        [{name: value for name, value in each.items() if name not in TIMES} for each in read_metrics(where)]
        for where in (whole_run[0] / "metrics.jsonl", tmp_path / "out" / "metrics.jsonl")
    )
    assert one == other
    whole = read_certificate(whole_run[0] / "checkpoints" / result.checkpoint.name)
    assert read_certificate(result.checkpoint).leaves == whole.leaves
    assert result.summary["tokens"] == 768


def test_stages_beyond_the_run_cost_nothing(config: TrainConfig) -> None:
    late = dataclasses.replace(config, batch_stages=(BatchStage(start=100, batch_size=8),))
    mixture = Mixture.open(config.data, batch_size=4, batch_stages=late.batch_stages, steps=8)
    assert mixture.num_unique_tokens(8) == 8 * 4 * 16
