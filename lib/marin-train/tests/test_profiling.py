import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from marin_train.configs import TrainConfig
from marin_train.errors import ConfigError
from marin_train.loop import train
from marin_train.profiling import ProfileWindow


def test_a_window_and_hooks_look_on_and_change_no_result(
    finished_run: Path, tiny_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    seen: list[tuple[int, int]] = []
    out = tmp_path / "run"
    hooks = [lambda step, state: seen.append((step, int(state.step)))]
    train(tiny_config(), out, hooks=hooks, profile=ProfileWindow(3, 4))
    assert seen == [(step, step) for step in range(1, 13)]
    assert list((out / "profile").rglob("*.xplane.pb"))
    losses = [
        [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        for run in (finished_run, out)
    ]
    np.testing.assert_array_equal(*losses)


def test_a_window_beyond_the_run_traces_nothing(tiny_config: Callable[..., TrainConfig], tmp_path: Path) -> None:
    train(tiny_config(steps=2), tmp_path / "run", profile=ProfileWindow(3, 4))
    assert not (tmp_path / "run" / "profile").exists()


@pytest.mark.parametrize("text", ["3", "3:", ":4", "a:b", "-1:4", "3-4"])
def test_a_window_of_another_form_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"must look like 100:104"):
        ProfileWindow.parse(text)


def test_a_window_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(ConfigError, match="1 <= start <= stop"):
        ProfileWindow.parse("5:4")
