"""The loop with launchers that misbehave, and beside other runners."""

import errno
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from marin_core import RunReport, StepRunner, leases, lower, run
from marin_core.launchers import Job, JobStatus
from marin_core.launchers.process import ProcessLauncher
from marin_core.reasons import Options
from marin_core.running.ledger import Silence
from marin_core.store import open_store
from marin_core.store.local import LocalStore

FLOW = """
    from dataclasses import dataclass
    from marin_core import step

    @step
    def one(*, n: int = 1) -> int:
        return n

    @step
    def other() -> int:
        return 2

    @step
    def fails() -> int:
        raise ValueError("no")

    @step(timeout_seconds=0.001)
    def brief() -> int:
        return 3

    @dataclass
    class Stays:
        n: int

        def __reduce__(self):
            raise TypeError("it stays")

    @step
    def stays() -> Stays:
        return Stays(1)

    @step
    def reads(value: Stays) -> int:
        return value.n
"""


@pytest.fixture
def flow(module: Callable[[str], ModuleType]) -> ModuleType:
    return module(FLOW)


class Silent(ProcessLauncher):
    """Tells nobody of an end, so it has to be asked."""

    notifies = False

    def launch(self, job: Job, *, notify: Callable[[str], None]) -> None:
        super().launch(job, notify=lambda _: None)


class Told(Silence):
    """Waits until a run has said what it waits for."""

    def __init__(self) -> None:
        self.waits = threading.Event()

    def said(self, text: str) -> None:
        if text.endswith("waiting for it"):
            self.waits.set()


class Waiting:
    """A run that waits for a step which another runner holds."""

    def __init__(self, step: Any, target: Any, prefix: str, **options: Any) -> None:
        self.store = open_store(prefix)
        self.address = lower(step).targets[0]
        found = leases.acquire(self.store, self.address, run_id="other", witness=leases.Witness())
        assert found is not None
        self.lease, told = found, Told()
        self.reports: list[RunReport] = []
        runner = StepRunner(prefix, observer=told, **options)
        self.thread = threading.Thread(target=lambda: self.reports.append(runner.run(lower(target))))
        self.thread.start()
        told.waits.wait()

    def finish(self) -> RunReport:
        leases.release(self.store, self.address, self.lease)
        self.thread.join()
        return self.reports[0]


def until(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.01)


def test_a_launcher_that_tells_nothing_is_asked_also_while_another_runner_is_waited_for(
    flow: ModuleType, prefix: str
) -> None:
    with Silent() as launcher:
        waiting = Waiting(flow.one(), [flow.one(), flow.other()], prefix, launcher=launcher)
        until(lambda: list(Path(prefix).glob("other/*/step.json")))
        assert waiting.finish().ok


def test_what_was_there_before_another_runner_came_is_still_made_again_by_force(flow: ModuleType, prefix: str) -> None:
    assert run(flow.one(), prefix=prefix).ok
    waiting = Waiting(flow.one(), flow.one(), prefix, options=Options(force=("one",)))
    report = waiting.finish()
    assert (report.executed, report.node("one").reason) == ((waiting.address,), "forced by --force")


def test_a_body_that_cannot_be_started_is_tried_again(flow: ModuleType, prefix: str) -> None:
    class Busy(ProcessLauncher):
        asked = 0

        def launch(self, job: Job, *, notify: Callable[[str], None]) -> None:
            self.asked += 1
            if self.asked == 1:
                raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
            super().launch(job, notify=notify)

    with Busy() as launcher:
        report = run(flow.one(retries=1), flow.other(), prefix=prefix, launcher=launcher)
    assert report.ok
    first = json.loads(next(Path(prefix).glob("one/*/attempts/1/attempt.json")).read_text())
    assert (first["state"], report.node("one").attempt) == ("failed", 2)
    assert "could not be started: [Errno 11]" in first["failure"]["message"]


def test_a_body_that_its_launcher_has_forgotten_is_lost(flow: ModuleType, prefix: str) -> None:
    class Forgetful(Silent):
        def poll(self, name: str) -> JobStatus | None:
            return None

    with Forgetful() as launcher:
        failure = run(flow.one(), prefix=prefix, launcher=launcher).node("one").failure
    assert failure is not None
    assert (failure.type, failure.message) == ("Crash", "the launcher lost the body")


def test_a_body_that_has_ended_before_anybody_looked_was_not_too_late(flow: ModuleType, prefix: str) -> None:
    class Waits(ProcessLauncher):
        def launch(self, job: Job, *, notify: Callable[[str], None]) -> None:
            ended = threading.Event()
            super().launch(job, notify=lambda name: (notify(name), ended.set()))
            ended.wait()

    with Waits() as launcher:
        assert run(flow.brief(), prefix=prefix, launcher=launcher).ok


def test_an_argument_that_cannot_be_sent_fails_its_step_alone(flow: ModuleType, prefix: str) -> None:
    report = run(flow.reads(flow.stays()), flow.other(), prefix=prefix, keep_going=True, max_workers=1)
    assert [n.outcome for n in report.record.nodes] == ["succeeded", "failed", "succeeded"]
    assert report.exit_code == 2
    attempt = json.loads(next(Path(prefix).glob("reads/*/attempts/1/attempt.json")).read_text())
    assert attempt["state"] == "failed"
    assert attempt["failure"]["message"].endswith("its arguments cannot be sent to another process: it stays")


def test_the_record_of_an_attempt_that_is_taken_over_in_this_very_moment_stays(
    flow: ModuleType, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LocalStore.read_versioned

    def read(store: LocalStore, key: str) -> Any:
        found = real(store, key)
        if found is not None and key.endswith("attempt.json") and b"another" not in found.data:
            record = json.loads(found.data) | {"run_id": "another"}
            (Path(prefix) / key).write_text(json.dumps(record))
        return found

    monkeypatch.setattr(LocalStore, "read_versioned", read)
    assert not run(flow.fails(), prefix=prefix).ok
    attempt = json.loads(next(Path(prefix).glob("fails/*/attempts/1/attempt.json")).read_text())
    assert (attempt["run_id"], attempt["state"]) == ("another", "running")


def test_what_is_long_is_told_by_its_size_in_the_record_of_a_run(flow: ModuleType, prefix: str) -> None:
    many = [flow.one(n=i) for i in range(40)]
    graph = lower(
        flow.one(n=list(range(1000)), name="list"),
        flow.one(n={"x" * i for i in range(40)}, name="set"),
        flow.one(n="a" * 1_000_000, name="text"),
        flow.one(n=many, name="steps"),
    )
    shown = {n.name: n.arguments["n"] for n in StepRunner(prefix, launcher="inline").run(graph).record.nodes}
    assert shown["list"].startswith("1000 items, sha256 ")
    assert shown["set"].startswith("40 items, sha256 ")
    assert shown["text"].startswith("aaa")
    assert len(shown["text"]) < 300
    assert len(shown["steps"]) == 40


def test_the_record_of_a_run_says_what_runs_while_nothing_else_happens(
    module: Callable[[str], ModuleType], prefix: str, tmp_path: Path
) -> None:
    flow = module(
        """
        from pathlib import Path
        from marin_core import step
        @step
        def first() -> int:
            return 1
        @step
        def waits(x: int, *, gate: str) -> int:
            with open(gate) as f:  # a pipe: opens when the test writes to it
                return len(f.read())
        """
    )
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    done: list[bool] = []
    driver = threading.Thread(
        target=lambda: done.append(run(flow.waits(flow.first(), gate=str(gate)), prefix=prefix).ok)
    )
    driver.start()
    outcomes: dict[str, str] = {}
    end = time.monotonic() + 120
    while outcomes != {"first": "succeeded", "waits": "running"} and time.monotonic() < end:
        for path in Path(prefix, "runs").glob("*.json"):
            outcomes = {n["name"]: n["outcome"] for n in json.loads(path.read_text())["nodes"]}
    gate.write_text("x")
    driver.join()
    assert outcomes == {"first": "succeeded", "waits": "running"}
    assert done == [True]
