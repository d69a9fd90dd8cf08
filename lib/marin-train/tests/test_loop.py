import dataclasses
import itertools
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from marin_train import signals
from marin_train.checkpoints import checkpoints
from marin_train.configs import Component, DataConfig, OptimizerConfig, PackingConfig, Stage, TrainConfig, to_dict
from marin_train.errors import CheckpointError, ConfigError, DivergedError, ExhaustedError, InterruptedRunError
from marin_train.loop import train
from marin_train.tracking import read_metrics

MakeConfig = Callable[..., TrainConfig]
TIMES = ("step_time_s", "tokens_per_s", "mfu_causal", "mfu_full")

CHILD = """
import json, logging, os, signal, sys
from marin_train import loop
from marin_train.checkpoints import writing
from marin_train.config_files import from_dict
from marin_train.configs import TrainConfig

config, out_dir, die_at = from_dict(TrainConfig, json.loads(sys.argv[1])), sys.argv[2], sys.argv[3]

def die():
    os.kill(os.getpid(), signal.SIGKILL)

class DieAtStep:
    def start(self, record, *, step): pass
    def finish(self, summary): pass
    def log(self, row):
        if die_at == f"step {row['step']}":
            die()

save_leaves, flush, saves = writing.save_leaves, writing.flush, 0

def dying_save(path, leaves):
    global saves
    if die_at == f"save {saves}":
        die()
    saves += 1
    save_leaves(path, leaves)

def dying_flush(path):
    if die_at == "rename" and path.name.startswith(".saving-"):  # the last thing before it
        die()
    flush(path)

writing.save_leaves, writing.flush = dying_save, dying_flush
loop.train(config, out_dir, trackers=[DieAtStep()])
"""


def _rows(out: Path) -> list[dict[str, Any]]:
    """A run's metrics without their times."""
    rows = read_metrics(out / "metrics.jsonl")
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


def _saved(out: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in checkpoints(out / "checkpoints")]


def _run_and_be_killed(config: TrainConfig, out: Path, *, at: str, anew: bool = False) -> None:
    environment = os.environ | ({"JAX_ENABLE_COMPILATION_CACHE": "false"} if anew else {})
    command = [sys.executable, "-c", CHILD, json.dumps(to_dict(config)), str(out), at]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_killed_anywhere_and_run_again_the_losses_are_bitwise_those_of_one_run(
    tiny_config: MakeConfig, tmp_path: Path, finished_run: Path
) -> None:
    config, out = tiny_config(), tmp_path / "killed"
    # In the first save, the model written and the optimizer not.
    _run_and_be_killed(config, out, at="save 1")
    assert _saved(out) == []
    # A save waits for the one before it, so after step 8 that of step 4 is there; that of step 8 may be. This process
    # compiles anew: equality must not hang on sharing a program.
    _run_and_be_killed(config, out, at="step 9", anew=True)
    assert _saved(out) in ([4], [8, 4])
    # In a save, everything written and nothing renamed.
    before = _saved(out)
    _run_and_be_killed(config, out, at="rename")
    assert _saved(out) == before
    result = train(config, out)
    assert _rows(out) == _rows(finished_run)
    assert result.checkpoint.name == "step-00000012"
    assert not list((out / "checkpoints").glob(".saving-*"))


def test_a_finished_run_is_returned_as_it_is(tiny_config: MakeConfig, run_copy: Path) -> None:
    before = {name: (run_copy / name).read_bytes() for name in ("metrics.jsonl", "summary.json", "run.json")}
    train(tiny_config(), run_copy)
    assert {name: (run_copy / name).read_bytes() for name in before} == before


def test_the_record_of_a_run_is_complete(tiny_config: MakeConfig, finished_run: Path) -> None:
    rows = read_metrics(finished_run / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert [row["tokens"] for row in rows] == [64 * step for step in range(1, 13)]
    assert all(row["mfu_full"] > row["mfu_causal"] > 0 for row in rows)
    summary = json.loads((finished_run / "summary.json").read_text())
    assert summary["loss"] == pytest.approx(sum(row["loss"] for row in rows[-10:]) / 10)
    assert summary["tokens"] == summary["tokens_unique"] == 12 * 64
    assert summary["num_params_total"] == 6736
    assert summary["num_params_non_embedding"] == 6736 - 2 * 64 * 16
    assert summary["policy"] == tiny_config().policy
    assert summary["peak_flops"] == summary["matmul_flops_float32"] > 0
    assert summary["config"] == json.loads(json.dumps(to_dict(tiny_config())))
    checkpoint = {path.name for path in (finished_run / "checkpoints" / "step-00000012").iterdir()}
    assert checkpoint == {"model", "optimizer", "config.json", "policy.json", "tokenizer.json", "certificate.json"}


def test_a_run_that_lost_its_metrics_is_refused(tiny_config: MakeConfig, run_copy: Path) -> None:
    (run_copy / "metrics.jsonl").unlink()
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl has the rows of 0 of 12 steps"):
        train(tiny_config(), run_copy)


def test_the_loss_falls(finished_run: Path) -> None:
    losses = [row["loss"] for row in _rows(finished_run)]
    assert sum(losses[-3:]) < sum(losses[:3]) - 0.3


class AtStep:
    """A tracker that does something at a step."""

    def __init__(self, step: int, action: Callable[[], None]) -> None:
        self._step, self._action = step, action

    def start(self, record: Mapping[str, Any], *, step: int) -> None: ...

    def finish(self, summary: Mapping[str, Any]) -> None: ...

    def log(self, row: Mapping[str, Any]) -> None:
        if row["step"] == self._step:
            self._action()


def test_of_two_that_train_into_one_directory_the_later_has_it_and_its_rows(
    tiny_config: MakeConfig, tmp_path: Path, finished_run: Path
) -> None:
    out = tmp_path / "out"
    # Another start comes, and is done, between two steps of this one.
    with pytest.raises(CheckpointError, match="another process has taken over"):
        train(tiny_config(), out, trackers=[AtStep(6, lambda: train(tiny_config(), out))])
    assert _rows(out) == _rows(finished_run)
    assert train(tiny_config(), out).loss == train(tiny_config(), finished_run).loss


@pytest.fixture(scope="module")
def interrupted_run(tiny_config: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that got SIGTERM while its fifth step's row was written; not to be changed."""
    out, before = tmp_path_factory.mktemp("runs") / "interrupted", signal.getsignal(signal.SIGTERM)
    terminate = AtStep(5, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(InterruptedRunError, match="saved after step 6 of 12"):
        train(tiny_config(), out, trackers=[terminate])
    assert signal.getsignal(signal.SIGTERM) is before
    return out


def test_sigterm_saves_and_the_same_call_goes_on(
    tiny_config: MakeConfig, tmp_path: Path, interrupted_run: Path, finished_run: Path
) -> None:
    out = Path(shutil.copytree(interrupted_run, tmp_path / "out"))
    assert _saved(out)[0] == 6
    train(tiny_config(), out)
    assert _rows(out) == _rows(finished_run)


def test_a_notice_of_preemption_saves_and_one_of_before_does_not_stop_the_next_start(
    tiny_config: MakeConfig, tmp_path: Path, finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, notice = tmp_path / "out", tmp_path / "notice"
    monkeypatch.setenv("MARIN_PREEMPTION_FILE", str(notice))
    monkeypatch.setattr(signals, "_LOOKS_SECONDS", 0.0)
    with pytest.raises(InterruptedRunError, match="saved after step 6 of 12"):
        train(tiny_config(), out, trackers=[AtStep(5, notice.touch)])
    assert _saved(out)[0] == 6
    train(tiny_config(), out)
    assert _rows(out) == _rows(finished_run)


def test_a_run_on_packed_documents_with_masks_resumes_bitwise(
    tiny_config: MakeConfig, tmp_path: Path, write_store: Callable[..., Path]
) -> None:
    rng = np.random.default_rng(0)
    documents = [rng.integers(1, 64, size=size).tolist() for size in rng.integers(1, 60, size=60)]
    # Every third document counts nowhere, and of the others their second halves.
    masks = [[number % 3 > 0 and 2 * i > len(d) for i in range(len(d))] for number, d in enumerate(documents)]
    store = write_store(
        tmp_path / "store",
        [documents[:30], [], documents[30:]],
        masks=[list(itertools.chain(*part)) for part in (masks[:30], [], masks[30:])],
    )
    data = DataConfig(
        components=(Component(name="all", path=str(store)),),
        seq_len=16,
        packing=PackingConfig(kind="documents", reset_positions=True),
    )
    config = tiny_config(data=data, steps=8)
    train(config, tmp_path / "whole")
    with pytest.raises(InterruptedRunError, match="saved after step 4 of 8"):
        train(config, tmp_path / "out", trackers=[AtStep(3, lambda: os.kill(os.getpid(), signal.SIGTERM))])
    train(config, tmp_path / "out")
    rows = _rows(tmp_path / "whole")
    assert _rows(tmp_path / "out") == rows
    assert len({row["loss"] for row in rows}) == 8
    contiguous = dataclasses.replace(config, data=dataclasses.replace(data, packing=PackingConfig()))
    with pytest.raises(CheckpointError, match="packing"):
        train(contiguous, tmp_path / "out")


def test_flipped_tokens_under_an_unchanged_manifest_are_noticed(
    tiny_config: MakeConfig, tmp_path: Path, interrupted_run: Path, store: Path
) -> None:
    out = Path(shutil.copytree(interrupted_run, tmp_path / "out"))
    flipped = Path(shutil.copytree(store, tmp_path / "flipped"))
    for part in flipped.glob("*.bin"):
        part.write_bytes(bytes(byte ^ 1 if i % 2 == 0 else byte for i, byte in enumerate(part.read_bytes())))
    with pytest.raises(CheckpointError, match="the batch after step 6"):
        train(tiny_config(path=flipped), out)


def test_time_makes_checkpoints_of_which_the_last_two_stay(tiny_config: MakeConfig, tmp_path: Path) -> None:
    train(tiny_config(checkpoint_seconds=1e-9, checkpoint_steps=5), tmp_path / "out")
    steps = _saved(tmp_path / "out")
    assert steps[0] == 12
    assert {5, 10} <= set(steps)
    assert len(set(steps) - {5, 10}) <= 2


def test_another_runs_directory_is_refused_naming_the_fields(tiny_config: MakeConfig, finished_run: Path) -> None:
    changed = tiny_config(seed=7, optimizer=OptimizerConfig(learning_rate=0.5))
    with pytest.raises(CheckpointError) as caught:
        train(changed, finished_run)
    assert "optimizer.learning_rate: 0.003 there, 0.5 asked for" in str(caught.value)
    assert "seed: 0 there, 7 asked for" in str(caught.value)
    assert caught.value.exit_code == 3


def test_cadence_and_place_may_change_between_starts(
    tiny_config: MakeConfig, tmp_path: Path, run_copy: Path, store: Path
) -> None:
    moved = Path(shutil.copytree(store, tmp_path / "moved"))
    config = tiny_config(path=moved, checkpoint_seconds=1.0, checkpoint_steps=3, log_every=1)
    assert train(config, run_copy).checkpoint.name == "step-00000012"


def test_changed_data_are_refused_naming_the_component(
    tiny_config: MakeConfig, tmp_path: Path, run_copy: Path, write_store: Callable[..., Path]
) -> None:
    other = write_store(tmp_path / "other", [[[1, 2, 3, 0] * 50]])
    with pytest.raises(CheckpointError, match="token stores of all have changed"):
        train(tiny_config(path=other), run_copy)


def test_a_run_may_use_up_its_data_and_asks_for_no_more_than_there_are(
    tiny_config: MakeConfig, tmp_path: Path, store: Path
) -> None:
    num_sequences = (json.loads((store / "manifest.json").read_text())["num_tokens"] - 1) // 16
    # 25 sequences each; "rest" comes in at step 5.
    all_, rest = (Component(name=name, path=str(store), max_epochs=25.5 / num_sequences) for name in ("all", "rest"))
    data = DataConfig(
        components=(all_, dataclasses.replace(rest, weight=0.0)),
        stages=(Stage(start=5, weights={"all": 1.0, "rest": 2.0}),),
        seq_len=16,
    )
    with pytest.raises(ExhaustedError, match=r"13 steps ask for 832 tokens, .* 12 steps and 800 tokens"):
        train(tiny_config(data=data, steps=13), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    result = train(tiny_config(data=data), tmp_path / "out")
    assert result.summary["tokens_unique"] == result.summary["tokens"] == 12 * 4 * 16
    assert train(tiny_config(data=data), tmp_path / "out").summary == result.summary


def test_a_diverging_run_says_where_and_saves_nothing_after(tiny_config: MakeConfig, tmp_path: Path) -> None:
    config = tiny_config(optimizer=OptimizerConfig(learning_rate=1e30), checkpoint_seconds=1e-9)
    with pytest.raises(DivergedError, match=r"step \d+ has loss .*learning_rate=1e\+30"):
        train(config, tmp_path / "out")
    assert max(_saved(tmp_path / "out"), default=0) <= len(_rows(tmp_path / "out"))


def test_a_directory_that_cannot_be_written_is_refused(tiny_config: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file/out cannot be written"):
        train(tiny_config(), tmp_path / "file" / "out")


def test_a_step_that_was_compiled_beside_is_not_compiled_again(
    tiny_config: MakeConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        train(tiny_config(steps=2), tmp_path / "out")
    compiled = re.findall(r"Finished XLA compilation of jit\((\w+)\)", caplog.text)
    assert compiled.count("train_step") == 1


def test_progress_is_logged_one_plain_line_at_a_time(
    tiny_config: MakeConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="marin_train"):
        train(tiny_config(log_every=6), tmp_path / "out")
    lines = [message for message in caplog.messages if message.startswith("step ")]
    assert [line.split("  ")[0] for line in lines] == ["step 6/12", "step 12/12"]
    assert all("tokens/s" in line and "eta" in line and "\n" not in line for line in lines)
    (machine,) = [message for message in caplog.messages if message.startswith("policy ")]
    assert re.fullmatch(rf"policy {tiny_config().policy}, .*; fp32 matmul \d+ GFLOP/s", machine)


def test_one_is_told_once_that_nothing_counts(
    tiny_config: Callable[..., TrainConfig],
    write_store: Callable[..., Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    masked = write_store(tmp_path / "masked", [[[1] * 500]], masks=[[False] * 500])
    train(tiny_config(path=masked), tmp_path / "run")
    assert [r.getMessage()[:50] for r in caplog.records if r.levelname == "WARNING"] == [
        "step 1: no token of its batch counts in the loss, "
    ]
