import dataclasses
import json
import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from marin_train.certificates import read_certificate, write_certificate
from marin_train.checkpoints import checkpoints, find, load_model, named_leaves
from marin_train.configs import TrainConfig
from marin_train.errors import CheckpointError, MarinTrainError
from marin_train.loop import train
from marin_train.tracking import read_metrics

MakeConfig = Callable[..., TrainConfig]


def _newest(run: Path) -> Path:
    return checkpoints(run / "checkpoints")[0]


def _largest_file(checkpoint: Path, part: str) -> Path:
    return max((f for f in (checkpoint / part).rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)


def _flip_a_byte(checkpoint: Path) -> None:
    file = _largest_file(checkpoint, "optimizer")
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(bytes(raw))


def _change_a_digest(checkpoint: Path) -> None:
    """As a certificate would be that was written for other leaves: whole in itself."""
    certificate = read_certificate(checkpoint)
    name, leaf = next(iter(certificate.leaves["model"].items()))
    other = {name: dataclasses.replace(leaf, digest="0" * 16)}
    leaves = certificate.leaves | {"model": certificate.leaves["model"] | other}
    write_certificate(checkpoint, dataclasses.replace(certificate, leaves=leaves))


def _replace(file: Path, old: bytes, new: bytes) -> None:
    content = file.read_bytes()
    assert old in content
    file.write_bytes(content.replace(old, new))


DAMAGE: dict[str, Callable[[Path], None]] = {
    "a flipped byte": _flip_a_byte,
    "leaves of another digest": _change_a_digest,
    "a truncated file": lambda c: _largest_file(c, "model").write_bytes(b""),
    "a lost file": lambda c: _largest_file(c, "optimizer").unlink(),
    "no certificate": lambda c: (c / "certificate.json").unlink(),
    "another configuration": lambda c: _replace(c / "config.json", b'"seed": 0', b'"seed": 1'),
    "another step in the certificate": lambda c: _replace(c / "certificate.json", b'"step": 12', b'"step": 11'),
    "half a certificate": lambda c: (c / "certificate.json").write_text('{"step": 12'),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_of_a_damaged_checkpoint_the_one_before_is_used_with_a_warning(
    what: str, tiny_config: MakeConfig, run_copy: Path, finished_run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    DAMAGE[what](_newest(run_copy))
    with caplog.at_level(logging.INFO, logger="marin_train"):
        train(tiny_config(), run_copy)
    assert any("step-00000012 is damaged" in message for message in caplog.messages)
    assert "resuming after step 8 of 12" in caplog.messages
    rows, expected = (read_metrics(run / "metrics.jsonl") for run in (run_copy, finished_run))
    assert [row["loss"] for row in rows] == [row["loss"] for row in expected]
    # The damaged one was written anew.
    assert find(run_copy).name == "step-00000012"


def test_where_all_are_damaged_the_run_begins_anew(
    tiny_config: MakeConfig, run_copy: Path, finished_run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for checkpoint in checkpoints(run_copy / "checkpoints"):
        (checkpoint / "certificate.json").unlink()
    train(tiny_config(), run_copy)
    assert sum("is damaged" in message for message in caplog.messages) == 3
    rows, expected = (read_metrics(run / "metrics.jsonl") for run in (run_copy, finished_run))
    assert [row["loss"] for row in rows] == [row["loss"] for row in expected]


def test_a_checkpoint_alone_is_enough_to_load_its_model(finished_run: Path, tmp_path: Path) -> None:
    alone = _newest(finished_run)
    trained = load_model(Path(shutil.copytree(alone, tmp_path / "elsewhere")))
    assert trained.config == load_model(finished_run).config
    assert trained.policy.name == "float32-reference-keep-scan"
    assert trained.special_ids == {"bos": None, "eos": 0}
    assert trained.tokenizer_file.read_text() == (alone / "tokenizer.json").read_text()
    assert all(np.isfinite(leaf).all() for leaf in named_leaves(trained.model).values())


def test_a_run_means_its_newest_whole_checkpoint(run_copy: Path) -> None:
    assert find(run_copy) == find(run_copy / "checkpoints") == _newest(run_copy)
    assert find(_newest(run_copy)) == _newest(run_copy)
    (_newest(run_copy) / "certificate.json").unlink()
    assert find(run_copy).name == "step-00000008"


def test_a_directory_without_checkpoints_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        find(tmp_path)


def test_a_damaged_checkpoint_asked_for_by_name_is_refused(run_copy: Path) -> None:
    _largest_file(_newest(run_copy), "model").write_bytes(b"")
    with pytest.raises(CheckpointError, match="step-00000012 is damaged"):
        load_model(_newest(run_copy))


def test_going_on_under_another_policy_is_refused(tiny_config: MakeConfig, run_copy: Path) -> None:
    record = json.loads((run_copy / "run.json").read_text())
    record["policy"]["operands"] = "bfloat16"
    (run_copy / "run.json").write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match=r"computed with the policy .*float32.*record says .*bfloat16"):
        train(tiny_config(), run_copy)


def test_a_process_that_lost_its_directory_commits_nothing(tiny_config: MakeConfig, tmp_path: Path) -> None:
    class TakeOver:
        def start(self, record: object, *, step: int) -> None:
            (tmp_path / "out" / "checkpoints" / "writer").write_text("another process")

        def log(self, row: object) -> None: ...

        def finish(self, summary: object) -> None: ...

    with pytest.raises(MarinTrainError, match="another process has taken over"):
        train(tiny_config(), tmp_path / "out", trackers=[TakeOver()])
    assert checkpoints(tmp_path / "out" / "checkpoints") == []
