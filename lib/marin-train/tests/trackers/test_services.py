"""What services have of a run that was stopped and went on, read back from the files that their clients write."""

import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from marin_train.errors import ConfigError, MissingExtraError
from marin_train.trackers import SERVICES, make_tracker

RECORD = {"run_id": "abc", "config": {"steps": 9}, "policy": "float32"}


def resumed_run(name: str, out: Path) -> dict[int, list[float]]:
    """Steps 1 to 5, then from a checkpoint of step 3 on to step 7: step -> its losses, each as told once."""
    for start, stop in ((0, 5), (3, 7)):
        tracker = make_tracker(name, out)
        tracker.start(RECORD, step=start)
        for step in range(start + 1, stop + 1):
            tracker.log({"step": step, "loss": 1 / step, "nothing": None})
        tracker.finish({"loss": 0.5, "config": {}})
    return {step: [1 / step] for step in range(1, 8)}


def test_tensorboard_has_every_step_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    expected = resumed_run("tensorboard", tmp_path)
    found: dict[int, list[float]] = {}
    for file in sorted((tmp_path / "tensorboard").iterdir(), key=lambda file: file.name.rpartition(".")[2]):
        content, events = file.read_bytes(), []
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            events.append(Event.FromString(content[12 : 12 + length]))
            content = content[12 + length + 4 :]
        for event in events:
            if event.session_log.status == 1:  # START: what is there of this step and later ones is void
                found = {step: losses for step, losses in found.items() if step < event.step}
            for value in event.summary.value:
                if value.tag == "loss":
                    found.setdefault(event.step, []).append(value.simple_value)
    assert found == {step: [pytest.approx(loss) for loss in losses] for step, losses in expected.items()}


def log_records(content: bytes) -> Iterator[bytes]:
    """The records of a file in LevelDB's log format behind a header of 7 bytes, as W&B's client writes."""
    at, block, parts = 7, 32768, b""
    while at + 7 <= len(content):
        if block - at % block < 7:  # too little is left of a block for another header
            at += block - at % block
            continue
        length, kind = struct.unpack("<HB", content[at + 4 : at + 7])
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part of one
            yield parts
            parts = b""


def test_wandb_goes_on_in_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_MODE", "offline")
    expected = resumed_run("wandb", tmp_path)
    files = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert len({file.stem for file in files}) == 1
    found: dict[int, float] = {}
    for file in files:
        for data in log_records(file.read_bytes()):
            record = Record.FromString(data)
            values = {"/".join(i.nested_key) or i.key: i.value_json for i in record.history.item}
            if "loss" in values:
                found[int(values["_step"])] = float(values["loss"])
    assert found == {step: pytest.approx(losses[0]) for step, losses in expected.items()}


def test_trackio_has_every_step_once_and_prints_nothing_where_results_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("trackio")
    import trackio.sqlite_storage
    import trackio.utils

    monkeypatch.setattr(trackio.sqlite_storage, "TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.setattr(trackio.utils, "TRACKIO_DIR", tmp_path / "trackio")
    expected = resumed_run("trackio", tmp_path)
    found: dict[int, list[float]] = {}
    for entry in trackio.SQLiteStorage.get_logs("marin", f"{tmp_path.name}-abc"):
        found.setdefault(entry["step"], []).append(entry["loss"])
    assert found == expected
    assert capfd.readouterr().out == ""


def test_a_service_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tracker 'mlflow' is not one of: wandb, tensorboard, trackio"):
        make_tracker("mlflow", tmp_path)


@pytest.mark.parametrize("name", SERVICES)
def test_a_missing_client_is_told_with_its_install_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, SERVICES[name], None)
    with pytest.raises(MissingExtraError, match=f"pip install {SERVICES[name]}"):
        make_tracker(name, tmp_path)
