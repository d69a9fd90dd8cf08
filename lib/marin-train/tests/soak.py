"""A run killed again and again at random moments, most of them while it saves; `nox -s soak` runs it, CI does not.

uv run --only-group dev nox -s soak              20 kills
SOAK_KILLS=200 SOAK_SEED=1 uv run --only-group dev nox -s soak
"""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from marin_train.checkpoints import checkpoints
from marin_train.configs import TrainConfig, to_dict
from marin_train.loop import train
from marin_train.tracking import read_metrics

CHILD = """
import json, sys
from marin_train import loop
from marin_train.config_files import from_dict
from marin_train.configs import TrainConfig

class Tell:
    def start(self, record, *, step): print(step, flush=True)
    def finish(self, summary): pass
    def log(self, row): pass

loop.train(from_dict(TrainConfig, json.loads(sys.argv[1])), sys.argv[2], trackers=[Tell()])
"""


def _losses(out: Path) -> list[tuple[int, Any]]:
    return [(row["step"], row["loss"]) for row in read_metrics(out / "metrics.jsonl")]


def test_killed_at_random_moments_a_run_has_bitwise_the_losses_of_one_that_never_was(
    tiny_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    kills, rng = int(os.environ.get("SOAK_KILLS", "20")), random.Random(int(os.environ.get("SOAK_SEED", "0")))
    # Saves follow one another without a pause, and a killed start gets a few steps further on average.
    config = tiny_config(steps=3000, checkpoint_seconds=1e-9, checkpoint_steps=50)
    train(config, tmp_path / "whole")
    out, killed, mid_save, begun = tmp_path / "killed", 0, 0, []
    while killed < kills:
        command = [sys.executable, "-c", CHILD, json.dumps(to_dict(config)), str(out)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            begun.append(int(child.stdout.readline()))
            try:
                child.wait(timeout=rng.uniform(0.0, 3.0))
                break  # it came to its end
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGKILL)
        killed += 1
        mid_save += any((out / "checkpoints").glob(".saving-*"))
    train(config, out)
    print(f"{killed} kills, {mid_save} of them in a save; starts went on after steps {begun}")
    assert _losses(out) == _losses(tmp_path / "whole")
    assert begun == sorted(begun)
    assert not list((out / "checkpoints").glob(".saving-*"))
    assert checkpoints(out / "checkpoints")[0].name == "step-00003000"
