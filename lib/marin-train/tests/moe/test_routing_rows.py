"""What a run tells of its routing, where, how often, and that a restart changes none of it."""

import dataclasses
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_train.configs import TrainConfig
from marin_train.errors import InterruptedRunError
from marin_train.loop import train
from marin_train.routing_rows import FILE, MAX_LOAD_ROWS, OVER_LAYERS, RoutingRows
from marin_train.tracking import read_metrics

FIGURES = {f"routing/{name}" for name in OVER_LAYERS}


@pytest.fixture(scope="module")
def rows(mixture_run: Path) -> dict[int, dict[str, Any]]:
    return {row["step"]: row for row in read_metrics(mixture_run / "metrics.jsonl")}


@pytest.fixture(scope="module")
def loads(mixture_run: Path) -> dict[int, np.ndarray]:
    return {row["step"]: np.array(row["load"]) for row in read_metrics(mixture_run / FILE)}


def test_every_row_has_the_figures_over_layers_and_some_have_each_layers(rows: dict[int, dict[str, Any]]) -> None:
    assert all(row.keys() >= FIGURES for row in rows.values())
    each = {f"routing/{layer}/{name}" for layer in range(3) for name in OVER_LAYERS}
    with_layers = [step for step, row in rows.items() if row.keys() & each]
    assert with_layers == [1, 5, 10, 12]
    assert all(rows[step].keys() >= each for step in with_layers)


def test_loads_account_for_every_route_at_the_steps_that_are_told(loads: dict[int, np.ndarray]) -> None:
    assert list(loads) == [1, 5, 10, 12]
    for load in loads.values():
        assert load.shape == (3, 8)
        assert (load.sum(axis=1) == 4 * 16 * 2).all()


def test_the_figures_are_those_of_the_loads(rows: dict[int, dict[str, Any]], loads: dict[int, np.ndarray]) -> None:
    for step, load in loads.items():
        shares = load / load.sum(axis=1, keepdims=True)
        logs = np.log(shares, where=shares > 0, out=np.zeros_like(shares))
        expected = {
            "max_vio": load.max(axis=1) / load.mean(axis=1) - 1,
            "load_entropy": -(shares * logs).sum(axis=1) / np.log(8),
            "dead": (load == 0).sum(axis=1),
        }
        for name, values in expected.items():
            told = [rows[step][f"routing/{layer}/{name}"] for layer in range(3)]
            np.testing.assert_allclose(told, values, rtol=1e-5, err_msg=name)


def test_over_layers_the_worst_is_told_of_balance_and_the_mean_of_shares(rows: dict[int, dict[str, Any]]) -> None:
    for step in (1, 5, 10, 12):
        layers = {name: [rows[step][f"routing/{layer}/{name}"] for layer in range(3)] for name in OVER_LAYERS}
        told = {name: rows[step][f"routing/{name}"] for name in OVER_LAYERS}
        assert told["max_vio"] == max(layers["max_vio"]) > min(layers["max_vio"])
        assert told["load_entropy"] == min(layers["load_entropy"])
        assert told["dead"] == sum(layers["dead"])
        assert told["padding"] == pytest.approx(np.mean(layers["padding"]))
        assert told["bias_drift"] == max(layers["bias_drift"]) > 0


class StopAt:
    """A tracker that keeps what it is told, and asks the run to stop at a step."""

    def __init__(self, step: int) -> None:
        self.step, self.rows = step, list[Mapping[str, Any]]()

    def start(self, record: Mapping[str, Any], *, step: int) -> None: ...

    def finish(self, summary: Mapping[str, Any]) -> None: ...

    def log(self, row: Mapping[str, Any]) -> None:
        self.rows.append(row)
        if row["step"] == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_stopped_run_ends_with_the_same_file_of_loads_and_services_are_told_scalars(
    mixture_config: TrainConfig, mixture_run: Path, tmp_path: Path
) -> None:
    told = StopAt(6)
    with pytest.raises(InterruptedRunError):
        train(mixture_config, tmp_path / "out", trackers=[told])
    assert all(isinstance(value, int | float) for row in told.rows for value in row.values())
    assert any("routing/2/max_vio" in row for row in told.rows)
    # What a killed process wrote behind its last checkpoint is cut off again.
    with (tmp_path / "out" / FILE).open("a") as file:
        file.write(json.dumps({"step": 10, "first_layer": 0, "load": [[1]]}) + '\n{"step": 11, "lo')
    train(mixture_config, tmp_path / "out")
    assert (tmp_path / "out" / FILE).read_bytes() == (mixture_run / FILE).read_bytes()


def test_a_dense_run_has_no_file_of_loads_and_no_such_figures(finished_run: Path) -> None:
    assert not (finished_run / FILE).exists()
    assert not any(name.startswith("routing/") for name in read_metrics(finished_run / "metrics.jsonl")[0])


@given(steps=st.integers(1, 3000), log_every=st.integers(1, 500))
def test_rows_of_loads_are_few_however_long_the_run_and_have_its_ends(
    mixture_config: TrainConfig, steps: int, log_every: int
) -> None:
    rows = RoutingRows(dataclasses.replace(mixture_config, steps=steps, log_every=log_every))
    routing = SimpleNamespace(load=np.zeros((1, 1), int))
    due = [step for step in range(1, steps + 1) if rows.loads(step, routing) is not None]
    assert {1, steps} <= set(due)
    assert len(due) <= MAX_LOAD_ROWS + 2


def test_layers_have_their_numbers_in_the_model_and_what_is_no_number_is_null(mixture_config: TrainConfig) -> None:
    moe = dataclasses.replace(mixture_config.model.moe, num_dense_layers=1)
    behind_dense = SimpleNamespace(model=SimpleNamespace(moe=moe), log_every=1, steps=3)
    routing = SimpleNamespace(**{name: np.array([1.0, np.inf]) for name in OVER_LAYERS}, load=np.ones((2, 8), int))
    row = RoutingRows(behind_dense).figures(1, routing)
    assert (row["routing/1/max_vio"], row["routing/2/max_vio"], row["routing/max_vio"]) == (1.0, None, None)
    assert "routing/0/max_vio" not in row
    assert RoutingRows(behind_dense).loads(1, routing)["first_layer"] == 1
