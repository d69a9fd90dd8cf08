"""Two real processes that train together on loopback, by the command that a user gives."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from marin_train.checkpoints import load_model
from marin_train.configs import TrainConfig, to_dict
from marin_train.distributed import join
from marin_train.errors import ConfigError
from marin_train.tracking import read_metrics

Start = Callable[[Path, Path], list[subprocess.Popen[str]]]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts both processes of a run by its configuration and directory; what a test leaves running is ended."""
    children = []

    def both(config: Path, out: Path) -> list[subprocess.Popen[str]]:
        port = free_port()
        for process in range(2):
            command = [sys.executable, "-m", "marin_train.cli", "run", str(config), "--out", str(out)]
            command += ["--coordinator", f"localhost:{port}", "--num-processes", "2", "--process-id", str(process)]
            environment = os.environ | {"JAX_PLATFORMS": "cpu", "MARIN_HEARTBEAT_SECONDS": "10"}
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            children.append(subprocess.Popen(command, text=True, env=environment, **pipes))
        return children[-2:]

    yield both
    for child in children:
        child.kill()
        child.communicate()


def test_two_processes_train_as_one_does(
    start: Start, tiny_config: Callable[..., TrainConfig], finished_run: Path, tmp_path: Path
) -> None:
    config, out = tmp_path / "run.json", tmp_path / "run"
    config.write_text(json.dumps(to_dict(tiny_config(log_every=3))))
    children = start(config, out)
    answers = [child.communicate(timeout=240) for child in children]
    assert [child.returncode for child in children] == [0, 0], [error[-2000:] for _, error in answers]
    # The first tells how it goes and where the result lies, the second nothing.
    assert ["step 3/12" in error for _, error in answers] == [True, False]
    assert [output.splitlines()[-1:] for output, _ in answers] == [[str(out / "checkpoints" / "step-00000012")], []]
    together, alone = (read_metrics(run / "metrics.jsonl") for run in (out, finished_run))
    assert [row["step"] for row in together] == list(range(1, 13))
    np.testing.assert_allclose([r["loss"] for r in together], [r["loss"] for r in alone], rtol=1e-5)
    assert json.loads((out / "summary.json").read_text())["tokens"] == 12 * 4 * 16
    assert load_model(out).path == out / "checkpoints" / "step-00000012"


def test_when_one_is_killed_the_other_ends_and_both_go_on_from_their_last_checkpoint(
    start: Start, tiny_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    config, out = tmp_path / "run.json", tmp_path / "run"
    config.write_text(json.dumps(to_dict(tiny_config(steps=3000, checkpoint_steps=20, log_every=1))))
    children = start(config, out)
    assert children[0].stderr is not None
    for line in children[0].stderr:
        if line.startswith("step 45/"):
            break
    children[1].kill()
    _, error = children[0].communicate(timeout=120)
    assert children[0].returncode == 1
    assert "another process of this run is gone" in error
    assert "Traceback" not in error
    children[1].communicate()
    steps = sorted(path.name for path in (out / "checkpoints").glob("step-*"))
    assert "step-00000020" in steps
    again = start(config, out)
    assert again[0].stderr is not None
    assert any(line.startswith("resuming after step ") for line in again[0].stderr)
    for child in again:
        child.send_signal(signal.SIGTERM)
    for child in again:
        child.communicate(timeout=120)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_processes": 2}, "need --coordinator"),
        ({"coordinator": "localhost:1", "process_id": 0}, r"--num-processes is missing \(MARIN_NUM_PROCESSES=''\)"),
        ({"coordinator": "localhost:1", "num_processes": 2, "process_id": 2}, "--process-id 2 must be at least 0"),
        ({"coordinator": "localhost", "num_processes": 2, "process_id": 0}, "'localhost' is no HOST:PORT"),
        ({"coordinator": "localhost:99999", "num_processes": 2, "process_id": 0}, "'localhost:99999' is no HOST:PORT"),
    ],
)
def test_a_part_of_the_address_that_is_missing_or_wrong_is_named(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        join(**settings)
