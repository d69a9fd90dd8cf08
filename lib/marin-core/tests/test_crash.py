"""Crashes and races, with real processes: nothing partial is read, nothing runs twice, no body outlives its driver."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SCRIPT = textwrap.dedent(
    """
    import os, subprocess, sys, time
    from pathlib import Path
    from marin_core import Input, Out, Work, main, step

    GATE = Path(__file__).with_name("gate")
    RUNS = Path(__file__).with_name("runs.txt")

    def note(word):
        with RUNS.open("a") as f:
            f.write(f"{word} {os.getpid()}\\n")

    def wait():
        while not GATE.exists():
            time.sleep(0.01)

    @step
    def first(out: Out) -> int:
        note("first")
        (out / "a.txt").write_text("whole")
        return 1

    @step
    def slow(out: Out, work: Work, source: Input) -> str:
        (out / "b.txt").write_text("partial")
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        note("slow")
        note(f"child {child.pid}")
        if work.epoch == 1:
            work.open("left", "w").write("behind")
        print("waiting")
        wait()
        child.kill()
        (out / "b.txt").write_text((source / "a.txt").read_text() + " " + work.open("left").read())
        return (out / "b.txt").read_text()

    @step
    def last(text: str) -> str:
        note("last")
        return text.upper()

    def build():
        return last(slow(first()))

    if __name__ == "__main__":
        note("main")
        main(build)
    """
)


def until(condition: Callable[[], object], *, what: str) -> None:
    """Waits for what must come; if it does not, the suite's own timeout ends the test and shows this line."""
    while not condition():
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return False
    return fields[0] not in "ZX"


class Job:
    """A script in a directory of its own, and the drivers that were started on it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.script = directory / "job.py"
        self.script.write_text(SCRIPT)
        self.drivers: list[subprocess.Popen[str]] = []

    def start(self, *flags: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(self.script), *flags]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        driver = subprocess.Popen(command, cwd=self.directory, text=True, start_new_session=True, **pipes)
        self.drivers.append(driver)
        return driver

    def lines(self) -> list[list[str]]:
        runs = self.directory / "runs.txt"
        return [line.split() for line in runs.read_text().splitlines()] if runs.exists() else []

    def count(self, word: str) -> int:
        return sum(line[0] == word for line in self.lines())

    def pids(self) -> list[int]:
        return [
            int(line[-1] if line[0] != "child" else line[1]) for line in self.lines() if line[0] in ("slow", "child")
        ]

    def open_gate(self) -> None:
        (self.directory / "gate").touch()

    def records(self, name: str) -> list[dict]:
        return [json.loads(p.read_text()) for p in sorted((self.directory / ".marin").glob(f"{name}/*/step.json"))]

    def value(self) -> str:
        return self.records("last")[0]["value"]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    for driver in made.drivers:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()


def test_sigkill_of_the_driver_takes_the_bodies_along_and_a_rerun_continues(job: Job) -> None:
    driver = job.start()
    until(lambda: job.count("child") == 1, what="the slow body starts")
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    until(lambda: not any(alive(pid) for pid in job.pids()), what="the body and its child die")
    assert job.records("slow") == []
    job.open_gate()
    out, err = job.start().communicate()
    assert err == ""
    assert job.value() == "WHOLE BEHIND"
    assert (job.count("first"), job.count("slow"), job.count("last")) == (1, 2, 1)
    assert job.records("slow")[0]["attempt"] == 2
    assert job.records("slow")[0]["epoch"] == 2
    slow = next((job.directory / ".marin" / "slow").iterdir())
    assert (slow / "attempts/1/out/b.txt").read_text() == "partial"
    assert json.loads((slow / "attempts/1/attempt.json").read_text())["state"] == "running"
    assert "done: 2 of 3 steps executed" in out


def test_the_script_does_not_run_as_main_again_in_a_body(job: Job) -> None:
    job.open_gate()
    assert job.start().wait() == 0
    assert job.count("main") == 1


def test_a_script_that_calls_main_unguarded_does_not_start_itself_again(job: Job) -> None:
    job.script.write_text(SCRIPT.replace('if __name__ == "__main__":', "if True:"))
    job.open_gate()
    assert job.start().wait() == 0
    assert job.count("first") == 1


def test_an_interrupted_inline_body_is_cancelled(job: Job) -> None:
    driver = job.start("--launcher", "inline")
    until(lambda: job.count("child") == 1, what="the slow body starts")
    driver.send_signal(signal.SIGINT)
    assert driver.wait() == 130
    assert job.records("slow") == []
    record = json.loads(next((job.directory / ".marin/runs").glob("*.json")).read_text())
    assert [n["outcome"] for n in record["nodes"]] == ["succeeded", "cancelled", "cancelled"]


def test_sigkill_of_a_body_is_reported_with_its_log(job: Job) -> None:
    driver = job.start()
    until(lambda: job.count("slow") == 1, what="the slow body starts")
    os.kill(job.pids()[0], signal.SIGKILL)
    out, _ = driver.communicate()
    assert driver.returncode == 1
    assert "step slow failed: Crash: the body was killed by SIGKILL" in out
    assert "last: blocked (blocked by slow)" in out
    until(lambda: not any(alive(pid) for pid in job.pids()), what="the body's child dies too")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_bodies_and_records_the_run_as_cancelled(job: Job, number: int, code: int) -> None:
    driver = job.start()
    until(lambda: job.count("child") == 1, what="the slow body starts")
    driver.send_signal(number)
    _, err = driver.communicate()
    assert driver.returncode == code
    assert err == "interrupted: finished steps are kept, running ones were stopped\n"
    until(lambda: not any(alive(pid) for pid in job.pids()), what="the body and its child die")
    assert job.records("slow") == []
    record = json.loads(next((job.directory / ".marin/runs").glob("*.json")).read_text())
    assert record["status"] == "cancelled"
    assert [n["outcome"] for n in record["nodes"]] == ["succeeded", "cancelled", "cancelled"]


def test_two_runners_on_one_graph_execute_each_step_once(job: Job) -> None:
    drivers = [job.start(), job.start()]
    until(lambda: job.count("slow") == 1, what="one of them starts the slow step")
    job.open_gate()
    outs = [d.communicate()[0] for d in drivers]
    assert [d.returncode for d in drivers] == [0, 0]
    assert (job.count("first"), job.count("slow"), job.count("last")) == (1, 1, 1)
    assert job.value() == "WHOLE BEHIND"
    assert all("report:" in out for out in outs)


def test_a_second_runner_takes_over_when_the_holder_dies(job: Job) -> None:
    holder = job.start()
    until(lambda: job.count("child") == 1, what="the holder's body starts")
    second = job.start()
    assert second.stdout is not None
    line = ""
    while "waiting for it" not in line:
        line = second.stdout.readline()
        assert line, "the second runner ended without waiting"
    run = json.loads(next((job.directory / ".marin/slow").glob("*/lease.json")).read_text())["run_id"]
    assert line == f"slow: being made by run {run} (pid {holder.pid} on {socket.gethostname()}), waiting for it\n"
    os.kill(holder.pid, signal.SIGKILL)
    job.open_gate()
    second.communicate()
    assert second.returncode == 0
    assert job.value() == "WHOLE BEHIND"
    assert job.records("slow")[0]["epoch"] == 2
