import logging
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from marin_train.trackers import Background


class Recorder:
    """Keeps what it is told; blocks in `log` while ``gate`` is closed, raises where ``fails_at`` says."""

    def __init__(self, *, fails_at: int | None = None, is_open: bool = True) -> None:
        self.told: list[Any] = []
        self._fails_at, self.gate = fails_at, threading.Event()
        if is_open:
            self.gate.set()

    def start(self, record: Mapping[str, Any], *, step: int) -> None:
        self.told.append(("start", step))

    def log(self, row: Mapping[str, Any]) -> None:
        self.gate.wait()
        if row["step"] == self._fails_at:
            raise ConnectionError("no route")
        self.told.append(row["step"])

    def finish(self, summary: Mapping[str, Any]) -> None:
        self.told.append("finish")


def run(tracker: Background, steps: int = 5) -> None:
    tracker.start({}, step=0)
    for step in range(1, steps + 1):
        tracker.log({"step": step})
    tracker.finish({})


def test_all_is_told_in_order_by_the_time_a_run_is_finished() -> None:
    recorder = Recorder()
    run(Background(recorder, name="it"), steps=100)
    assert recorder.told == [("start", 0), *range(1, 101), "finish"]


def test_one_that_raises_is_given_up_with_one_warning_and_the_run_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(fails_at=3)
    with caplog.at_level(logging.WARNING, logger="marin_train"):
        run(Background(recorder, name="it"))
    assert recorder.told == [("start", 0), 1, 2]
    assert len(caplog.messages) == 1
    assert "tracker it is told no more of this run (ConnectionError: no route)" in caplog.messages[0]


def test_one_that_hangs_is_given_up_when_its_queue_is_full(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(is_open=False)
    with caplog.at_level(logging.WARNING, logger="marin_train"):
        run(Background(recorder, name="it", room=4), steps=50)
    recorder.gate.set()
    assert len(caplog.messages) == 1
    assert "it does not answer" in caplog.messages[0]


def test_one_that_hangs_at_the_end_is_not_waited_for_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(is_open=False)
    with caplog.at_level(logging.WARNING, logger="marin_train"):
        run(Background(recorder, name="it", last_seconds=0.01))
    recorder.gate.set()
    assert "it does not answer" in caplog.messages[0]
