"""Interrupts with real signals: whatever bodies do, the run ends, says so, and nothing turns successful afterwards."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from marin_core import run
from marin_core.errors import RunInterrupted
from marin_core.records import NodeRecord
from marin_core.running.ledger import Silence

SCRIPT = textwrap.dedent(
    """
    import os, re, signal, subprocess, sys, time
    from pathlib import Path
    from marin_core import Out, main, run, step
    from marin_core.running import interrupts

    HERE = Path(__file__).parent

    def note(word):
        with (HERE / "notes").open("a") as f:
            f.write(f"{word} {os.getpid()}\\n")

    @step
    def before() -> int:
        return 1

    @step
    def body(out: Out, upstream: int, *, does: str) -> str:
        def asked(*_):
            note("asked")
            returning.append(1)

        returning = []
        if does in ("ignores", "returns"):
            signal.signal(signal.SIGTERM, asked)
        (out / "a.txt").write_text("a")
        note("body")
        if does == "hashes":
            (out / "large").touch()
            os.truncate(out / "large", 1 << 40)  # nothing on disk, and hours of hashing
            return "done"
        if does == "computes":
            re.match("(a+)+$", "a" * 64 + "b")  # in C, for longer than anybody lives
        while not (does == "returns" and returning) and not (HERE / "gate").exists():
            try:
                time.sleep(0.01)
            except KeyboardInterrupt:
                if does != "swallows":
                    raise
                returning.append(1)
                break
        return "done"

    @step
    def after(text: str) -> str:
        return text

    def build(*, does: str = "waits", patient: bool = False):
        if patient:
            interrupts.GRACE = interrupts._DRAINED_WITHIN = 10_000.0
        return after(body(before(), does=does))

    if __name__ == "__main__":
        if "--library" in sys.argv:
            run(build(does="hashes"))
        main(build)
    """
)


def until(condition: Callable[[], object]) -> None:
    """Waits for what must come; if it does not, the suite's own timeout ends the test."""
    while not condition():
        threading.Event().wait(0.01)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


class Run:
    """A script in a directory of its own, running."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "job.py").write_text(SCRIPT)
        self.driver: Any = None

    def start(self, *flags: str, ignoring: int | None = None) -> None:
        command = [sys.executable, "job.py", *flags]
        if ignoring is not None:
            command = ["sh", "-c", f'trap "" {ignoring}; exec "$@"', "sh", *command]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.driver = subprocess.Popen(command, cwd=self.directory, text=True, start_new_session=True, **pipes)
        until(lambda: self.notes("body"))

    def notes(self, word: str) -> list[int]:
        path = self.directory / "notes"
        lines = path.read_text().splitlines() if path.exists() else []
        return [int(line.split()[1]) for line in lines if line.startswith(f"{word} ") and line.split()[1:]]

    def record(self) -> dict[str, Any]:
        return json.loads(next((self.directory / ".marin/runs").glob("*.json")).read_text())

    def cancelled(self, number: int) -> None:
        """Waits for the end and looks at all that a cancelled run promises."""
        out, err = self.driver.communicate()
        assert self.driver.returncode == 128 + number
        assert err == "interrupted: finished steps are kept, running ones were stopped\n"
        assert out.splitlines()[-1].startswith("report: .marin/runs/")
        record = self.record()
        assert record["status"] == "cancelled"
        assert [n["outcome"] for n in record["nodes"]] == ["succeeded", "cancelled", "cancelled"]
        assert list((self.directory / ".marin/body").glob("*/step.json")) == []
        (attempt,) = (self.directory / ".marin/body").glob("*/attempts/1/attempt.json")
        assert json.loads(attempt.read_text())["state"] == "cancelled"
        (lease,) = (self.directory / ".marin/body").glob("*/lease.json")
        assert json.loads(lease.read_text())["held"] is False
        until(lambda: not any(map(alive, self.notes("body"))) or self.notes("body") == [self.driver.pid])


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    if made.driver is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(made.driver.pid, signal.SIGKILL)
        made.driver.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_signal_that_ends_a_run_leaves_a_record_and_a_report(job: Run, number: int) -> None:
    job.start()
    job.driver.send_signal(number)
    job.cancelled(number)


@pytest.mark.parametrize("does", ["ignores", "computes"])
def test_a_body_that_does_not_end_when_it_is_asked_is_killed(job: Run, does: str) -> None:
    job.start("--does", does)
    job.driver.send_signal(signal.SIGINT)
    job.cancelled(signal.SIGINT)
    assert bool(job.notes("asked")) == (does == "ignores")


def test_a_second_signal_kills_at_once(job: Run) -> None:
    job.start("--does", "ignores", "--patient")
    job.driver.send_signal(signal.SIGINT)
    until(lambda: job.notes("asked"))  # with all the patience in the world, the run would now wait for the body
    job.driver.send_signal(signal.SIGINT)
    job.cancelled(signal.SIGINT)


def test_a_run_waits_for_no_hash_of_what_it_will_not_commit(job: Run) -> None:
    job.start("--library")

    def opened() -> bool:
        with contextlib.suppress(FileNotFoundError):
            files = Path(f"/proc/{job.driver.pid}/fd").iterdir()
            return any(file.readlink().match("out/large") for file in files)
        return False

    until(opened)
    job.driver.send_signal(signal.SIGINT)
    _, err = job.driver.communicate()
    assert "RunInterrupted: interrupted by signal 2" in err
    assert [n["outcome"] for n in job.record()["nodes"]] == ["succeeded", "cancelled", "cancelled"]


def test_a_body_that_succeeds_as_it_is_asked_to_end_does_not_count(job: Run) -> None:
    job.start("--does", "returns")
    job.driver.send_signal(signal.SIGINT)
    job.cancelled(signal.SIGINT)
    assert job.notes("asked")


def test_an_inline_body_that_swallows_the_interrupt_does_not_count(job: Run) -> None:
    job.start("--does", "swallows", "--launcher", "inline")
    job.driver.send_signal(signal.SIGINT)
    job.cancelled(signal.SIGINT)


def test_no_inline_body_starts_after_a_signal_that_came_between_two(
    module: Callable[[str], ModuleType], prefix: str
) -> None:
    flow = module("""
        from marin_core import Out, step

        @step
        def first() -> int:
            return 1

        @step
        def second(out: Out, number: int) -> None:
            (out / "started").touch()
    """)

    class Signals(Silence):
        def changed(self, node: NodeRecord) -> None:
            if (node.name, node.outcome) == ("first", "succeeded"):
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(RunInterrupted):
        run(flow.second(flow.first()), prefix=prefix, launcher="inline", observer=Signals())
    assert not (Path(prefix) / "second").exists()
    (record,) = map(json.loads, (p.read_text() for p in (Path(prefix) / "runs").glob("*.json")))
    assert [n["outcome"] for n in record["nodes"]] == ["succeeded", "cancelled"]


def test_a_signal_that_was_to_be_ignored_is_ignored(job: Run) -> None:
    job.start(ignoring=signal.SIGHUP)
    job.driver.send_signal(signal.SIGHUP)
    (job.directory / "gate").touch()
    assert job.driver.wait() == 0
    assert job.record()["status"] == "succeeded"


def test_what_was_cancelled_runs_when_the_command_is_given_again(job: Run) -> None:
    job.start()
    job.driver.send_signal(signal.SIGINT)
    job.driver.communicate()
    (job.directory / "gate").touch()
    job.start()
    out, _ = job.driver.communicate()
    assert "done: 2 of 3 steps executed" in out
