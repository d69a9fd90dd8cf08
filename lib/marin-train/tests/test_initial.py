import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from marin_train.checkpoints import load_model, named_leaves
from marin_train.configs import OptimizerConfig, TrainConfig
from marin_train.errors import CheckpointError, ConfigError
from marin_train.hf import export_hf
from marin_train.initial import examine_source, first_state
from marin_train.loop import train
from marin_train.mesh import make_mesh
from marin_train.tracking import read_metrics

MakeConfig = Callable[..., TrainConfig]

SMALL = OptimizerConfig(learning_rate=1e-4)


def _leaves(config: TrainConfig) -> dict[str, np.ndarray]:
    state = first_state(config, mesh=make_mesh(config.mesh), fingerprint=examine_source(config))
    return {name: np.asarray(leaf) for name, leaf in named_leaves(state).items()}


def test_a_run_begins_with_the_parameters_of_another_and_all_else_anew(
    tiny_config: MakeConfig, finished_run: Path
) -> None:
    begun = _leaves(tiny_config(init_from=str(finished_run), ema_decay=0.9))
    drawn = _leaves(tiny_config(ema_decay=0.9))
    trained = {name: np.asarray(leaf) for name, leaf in named_leaves(load_model(finished_run).model).items()}
    for name, leaf in trained.items():
        np.testing.assert_array_equal(begun[f"model.{name}"], leaf)
        np.testing.assert_array_equal(begun[f"ema.{name}"], leaf)
        assert (leaf != drawn[f"model.{name}"]).any()
    others = [name for name in begun if not name.startswith(("model.", "ema."))]
    assert others
    for name in others:
        np.testing.assert_array_equal(begun[name], drawn[name])


def test_an_exported_directory_serves_as_its_checkpoint_does(
    tiny_config: MakeConfig, finished_run: Path, tmp_path: Path
) -> None:
    exported = export_hf(finished_run, tmp_path / "exported")
    by_checkpoint, by_export = (_leaves(tiny_config(init_from=str(path))) for path in (finished_run, exported))
    for name, leaf in by_checkpoint.items():
        np.testing.assert_array_equal(by_export[name], leaf)


def test_what_was_learned_is_kept_and_a_restart_needs_the_source_no_more(
    tiny_config: MakeConfig, finished_run: Path, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(finished_run, tmp_path / "source"))
    config = tiny_config(init_from=str(source), optimizer=SMALL, steps=6, checkpoint_steps=2)
    train(config, tmp_path / "out")
    before, after = (read_metrics(run / "metrics.jsonl") for run in (finished_run, tmp_path / "out"))
    assert after[0]["loss"] < before[0]["loss"] - 0.05
    shutil.rmtree(source)
    shutil.rmtree(tmp_path / "out" / "checkpoints" / "step-00000006")
    train(config, tmp_path / "out")
    assert [row["loss"] for row in read_metrics(tmp_path / "out" / "metrics.jsonl")] == [row["loss"] for row in after]


def test_a_source_that_changed_before_the_first_checkpoint_is_refused(
    tiny_config: MakeConfig, finished_run: Path, tmp_path: Path
) -> None:
    config = tiny_config(init_from=str(finished_run), steps=1)
    train(config, tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "checkpoints")
    record = tmp_path / "out" / "run.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"init_fingerprint": "0" * 64}))
    with pytest.raises(CheckpointError, match="is no longer what it was"):
        train(config, tmp_path / "out")


@pytest.mark.parametrize("exported", [False, True])
def test_another_model_is_refused_by_field_before_anything_is_written(
    exported: bool, tiny_config: MakeConfig, finished_run: Path, tmp_path: Path
) -> None:
    source = export_hf(finished_run, tmp_path / "exported") if exported else finished_run
    config = tiny_config(init_from=str(source))
    model = dataclasses.replace(config.model, mlp_dim=48, max_seq_len=64)
    with pytest.raises(ConfigError, match=r"is another model.*\. mlp_dim: 32 there, 48 here$"):
        train(dataclasses.replace(config, model=model), tmp_path / "out")
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        train(tiny_config(init_from=str(tmp_path / "none")), tmp_path / "out")
    assert not (tmp_path / "out").exists()
