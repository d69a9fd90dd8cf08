"""A run takes a step over from one that only seems dead, and its body with it: one body, one commit, by one of them."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from marin_core import RunReport, run
from marin_core.errors import UsageError
from marin_core.launchers import Job, JobStatus
from marin_core.launchers.process import ProcessLauncher

SOURCE = """
    import time
    from pathlib import Path
    from marin_core import Out, step

    HERE = Path(__file__).parent

    @step
    def slow(out: Out) -> str:
        with (HERE / "runs.txt").open("a") as f:
            f.write("slow\\n")
        while not (HERE / "gate").exists():
            time.sleep(0.01)
        (out / "a.txt").write_text("whole")
        return "whole"
"""


class Shared:
    """A launcher whose bodies belong to no driver: whoever adopts one is told of its end as well."""

    kind = "shared"

    def __init__(self) -> None:
        self.process = ProcessLauncher()
        self.listeners: dict[str, list[Callable[[str], None]]] = {}
        self.cancelled: list[str] = []
        self.after_each: Callable[[], None] = lambda: None

    def launch(self, job: Job, *, notify: Callable[[str], None]) -> None:
        self.listeners[job.name] = [notify]
        self.process.launch(job, notify=self._tell)

    def _tell(self, name: str) -> None:
        for tell in self.listeners[name]:
            tell(name)
            self.after_each()

    def poll(self, name: str) -> JobStatus | None:
        return self.process.poll(name)

    def cancel(self, name: str, *, grace: float = 3.0) -> None:
        self.cancelled.append(name)

    def adopt(self, name: str, *, notify: Callable[[str], None]) -> bool:
        self.listeners.get(name, []).append(notify)
        return name in self.listeners


class Runs:
    """One step, and the runs of it, each in a thread."""

    def __init__(self, flow: ModuleType, prefix: str) -> None:
        self.flow, self.prefix, self.launcher = flow, prefix, Shared()
        self.here = Path(flow.__file__ or "").parent
        self.threads: list[threading.Thread] = []
        self.reports: list[RunReport] = []

    def start(self, **options: object) -> None:
        def go() -> None:
            self.reports.append(run(self.flow.slow(), prefix=self.prefix, launcher=self.launcher, **options))

        self.threads.append(threading.Thread(target=go))
        self.threads[-1].start()

    def finish(self) -> None:
        (self.here / "gate").touch()
        for thread in self.threads:
            thread.join()

    def bodies(self) -> int:
        runs = self.here / "runs.txt"
        return len(runs.read_text().splitlines()) if runs.exists() else 0

    def file(self, pattern: str) -> Path:
        return next(Path(self.prefix).glob(f"slow/*/{pattern}"))

    def attempt(self, number: int = 1) -> dict:
        return json.loads(self.file(f"attempts/{number}/attempt.json").read_text())

    def seem_dead(self) -> None:
        """Makes the holder of the lease a process that has ended, which is how another runner would see it."""
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        lease = json.loads(self.file("lease.json").read_text())
        lease["holder"] = {"pid": gone.pid, "started": 1}
        lease["body"] = None
        self.file("lease.json").write_text(json.dumps(lease))


@pytest.fixture
def runs(module: Callable[[str], ModuleType], prefix: str) -> Runs:
    return Runs(module(SOURCE), prefix)


def until(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.01)


def test_an_overtaken_run_neither_commits_the_adopted_body_nor_writes_its_record(runs: Runs) -> None:
    runs.start()
    until(lambda: runs.bodies() == 1)
    first = runs.attempt()
    runs.seem_dead()
    runs.start()
    until(lambda: runs.attempt()["run_id"] != first["run_id"])
    seen: list[str] = []

    def note() -> None:  # the overtaken run is told first
        runs.threads[0].join()
        seen.append(runs.attempt()["run_id"])

    runs.launcher.after_each = note
    runs.finish()
    until(lambda: len(seen) == 2)
    assert first["run_id"] not in seen
    assert sorted(report.ok for report in runs.reports) == [False, True]
    winner = next(report for report in runs.reports if report.ok)
    assert winner.node("slow").reason == f"goes on with the body that run {first['run_id']} started"
    loser = next(report for report in runs.reports if not report.ok)
    assert loser.exit_code == 3
    assert "lost to run" in str(loser.node("slow").failure)
    assert runs.bodies() == 1
    last = runs.attempt()
    assert (last["state"], last["run_id"], last["epoch"]) == ("succeeded", winner.record.run_id, 2)
    assert last["started_at"] == first["started_at"]
    step = json.loads(runs.file("step.json").read_text())
    assert (step["attempt"], step["epoch"], step["value"]) == (1, 2, "whole")


def test_a_body_of_other_code_is_cancelled_and_not_adopted(runs: Runs) -> None:
    runs.start()
    until(lambda: runs.bodies() == 1)
    path = runs.file("attempts/1/attempt.json")
    record = runs.attempt()
    record["digests"]["code"] = "0" * 64
    path.write_text(json.dumps(record))
    runs.seem_dead()
    runs.start()
    until(lambda: runs.bodies() == 2)
    assert [name.rsplit("/", 1)[1].split("@")[0] for name in runs.launcher.cancelled] == ["1"]
    runs.finish()
    assert json.loads(runs.file("step.json").read_text())["attempt"] == 2


def test_a_body_that_could_not_be_ended_is_left_to_whoever_comes_next(runs: Runs) -> None:
    real = runs.launcher.launch

    def launch(job: Job, *, notify: Callable[[str], None]) -> None:
        if job.name.startswith("late/"):
            until(lambda: runs.bodies() == 1)
            raise UsageError("no cluster answers")
        real(job, notify=notify)

    runs.launcher.launch = launch  # type: ignore[method-assign]
    with pytest.raises(UsageError, match="no cluster answers"):
        run(runs.flow.slow(), runs.flow.slow(name="late"), prefix=runs.prefix, launcher=runs.launcher)
    assert runs.attempt()["state"] == "running"
    lease = json.loads(runs.file("lease.json").read_text())
    assert lease["held"]
    late = next(Path(runs.prefix).glob("late/*/lease.json"))
    assert not json.loads(late.read_text())["held"]
    runs.seem_dead()
    runs.start()
    runs.finish()
    assert runs.reports[0].ok
    assert runs.bodies() == 1


@pytest.mark.parametrize("text", ["{", "[]"])
def test_an_unreadable_record_of_the_last_attempt_begins_a_new_one(runs: Runs, text: str) -> None:
    directory = Path(runs.prefix)
    runs.start()
    until(lambda: runs.bodies() == 1)
    runs.file("attempts/1/attempt.json").write_text(text)
    runs.seem_dead()
    runs.start()
    until(lambda: (next(directory.glob("slow/*")) / "attempts/2").exists())
    runs.finish()
    assert json.loads(runs.file("step.json").read_text())["attempt"] == 2
