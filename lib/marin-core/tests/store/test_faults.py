"""A real driver killed at every named point, stopped past its lease, raced, and given broken records and full disks."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from marin_core import RunReport, run
from marin_core.faults import POINTS, VARIABLE
from marin_core.reasons import Options

SCRIPT = textwrap.dedent(
    """
    import os, sys, time
    from pathlib import Path
    from marin_core import Input, Out, StepRunner, lower, main, step

    HERE = Path(__file__).parent

    def note(word):
        with (HERE / "runs.txt").open("a") as f:
            f.write(f"{word} {os.getpid()}\\n")

    @step
    def first(out: Out) -> int:
        note("first")
        (out / "a.txt").write_text("partial")
        while (HERE / "hold").exists():
            time.sleep(0.01)
        (out / "a.txt").write_text("whole")
        return 1

    @step
    def second(out: Out, source: Input) -> str:
        note("second")
        text = (source / "a.txt").read_text()
        (out / "b.txt").write_text(text.upper())
        return text

    def build():
        return second(first())

    if __name__ == "__main__":
        term = os.environ.get("TERM_SECONDS")
        if term:
            runner = StepRunner(os.environ["MARIN_PREFIX"], lease_seconds=float(term), launcher=os.environ["LAUNCHER"])
            report = runner.run(lower(build()))
            for node in report.record.nodes:
                if node.failure:
                    print(node.name, node.failure.type, node.failure.message)
            sys.exit(report.exit_code)
        main(build)
    """
)


class Lab:
    """A script with its notes, and the drivers that were started on it."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.prefix = directory, directory / "prefix"
        (directory / "job.py").write_text(SCRIPT)
        self.drivers: list[subprocess.Popen[str]] = []

    def start(self, *flags: str, **environment: str) -> subprocess.Popen[str]:
        driver = subprocess.Popen(
            [sys.executable, str(self.directory / "job.py"), *flags],
            cwd=self.directory,
            env=os.environ | {"MARIN_PREFIX": str(self.prefix)} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.drivers.append(driver)
        return driver

    def finish(self, *flags: str, **environment: str) -> tuple[int, str]:
        driver = self.start(*flags, **environment)
        out, _ = driver.communicate()
        return driver.returncode, out

    def words(self) -> list[str]:
        notes = self.directory / "runs.txt"
        return [line.split()[0] for line in notes.read_text().splitlines()] if notes.exists() else []

    def step(self, name: str) -> Path:
        return next((self.prefix / name).iterdir())

    def record(self, name: str) -> dict[str, Any]:
        return json.loads((self.step(name) / "step.json").read_text())

    def committed(self) -> set[str]:
        return {p.parent.parent.name for p in self.prefix.glob("*/*/step.json")}

    def check_whole(self) -> None:
        """Whatever happened before: the result is complete, and no committed output is partial."""
        for name, file, text in (("first", "a.txt", "whole"), ("second", "b.txt", "WHOLE")):
            record = self.record(name)
            out = self.step(name) / "attempts" / str(record["attempt"]) / "out"
            assert [p.name for p in out.iterdir()] == [file] == [f["path"] for f in record["files"]]
            assert (out / file).read_text() == text


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    yield made
    for driver in made.drivers:
        with contextlib.suppress(ProcessLookupError):
            driver.send_signal(signal.SIGCONT)
            driver.kill()
        driver.wait()


def until(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.01)


@pytest.mark.parametrize("point", POINTS)
def test_a_driver_killed_at_any_point_leaves_what_a_rerun_completes(lab: Lab, point: str) -> None:
    number = 2 if point == "run-recorded" else 1
    code, _ = lab.finish("--launcher", "inline", **{VARIABLE: f"{point}:{number}"})
    assert code == -signal.SIGKILL
    before, committed = lab.words(), lab.committed()
    assert committed >= ({"first"} if POINTS.index(point) >= POINTS.index("after-commit") else set())
    code, out = lab.finish("--launcher", "inline")
    assert code == 0, out
    lab.check_whole()
    for name in committed:
        assert lab.words().count(name) == 1, "a committed body ran again"
    assert lab.words().count("first") == (1 if "first" in committed else before.count("first") + 1)


def test_a_point_that_there_is_not_is_told(lab: Lab) -> None:
    code, out = lab.finish(**{VARIABLE: "nowhere"})
    assert code == 2
    assert "MARIN_FAULT_POINT=nowhere: give one of run-recorded, " in out


@pytest.mark.parametrize("launcher", ["process", "inline"])
def test_a_holder_stopped_past_its_lease_is_overtaken_and_rejected_when_it_wakes(lab: Lab, launcher: str) -> None:
    (lab.directory / "hold").touch()
    zombie = lab.start(TERM_SECONDS="2", LAUNCHER=launcher)
    until(lambda: "first" in lab.words())
    if launcher == "process":
        until(lambda: json.loads((lab.step("first") / "lease.json").read_text())["body"])
    zombie.send_signal(signal.SIGSTOP)
    (lab.directory / "hold").unlink()
    code, out = lab.finish(TERM_SECONDS="2", LAUNCHER="process")
    assert code == 0, out
    lab.check_whole()
    after = lab.record("first")
    assert after["epoch"] == 2
    zombie.send_signal(signal.SIGCONT)
    out, _ = zombie.communicate()
    assert zombie.returncode == 3, out
    assert "first LeaseLostError" in out
    assert lab.record("first") == after
    lab.check_whole()
    attempt = json.loads((lab.step("first") / "attempts/1/attempt.json").read_text())
    assert (attempt["state"], attempt["failure"]["type"]) == ("failed", "LeaseLostError")
    assert after["attempt"] == 2
    assert lab.words() == ["first", "first", "second"]


def test_two_runners_on_a_disk_share_the_work(lab: Lab) -> None:
    drivers = [lab.start(), lab.start()]
    outs = [driver.communicate()[0] for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0], outs
    assert lab.words() == ["first", "second"]
    lab.check_whole()


@pytest.mark.parametrize("damage", [b"", b'{"epoch": 1, "non', b"\x00\xff garbage", b"[]", b"null"])
def test_a_broken_record_costs_its_own_step_alone(module: Any, tmp_path: Path, damage: bytes) -> None:
    flow = module("""
        from marin_core import Out, step

        @step
        def double(out: Out, *, number: int) -> int:
            (out / "a.txt").write_text("whole")
            return 2 * number
    """)
    targets = [flow.double(number=1), flow.double(number=2)]

    def again(**options: Any) -> RunReport:
        return run(targets, prefix=tmp_path, launcher="inline", options=Options(**options))

    broken, sound = again().executed
    (tmp_path / broken / "step.json").write_bytes(damage)
    report = again()
    assert report.executed == (broken,)
    assert report.node(broken).reason.startswith("record is corrupt: ")
    assert (report.value(broken), report.value(sound)) == (2, 4)
    (tmp_path / broken / "lease.json").write_bytes(damage)
    assert again().executed == ()
    assert again(force=(broken,)).executed == (broken,)
    record = json.loads((tmp_path / broken / "step.json").read_text())
    assert (record["epoch"], record["attempt"]) == (3, 3)


def test_a_prefix_that_was_moved_is_as_good_as_before(lab: Lab) -> None:
    assert lab.finish()[0] == 0
    moved = lab.directory / "elsewhere" / "prefix"
    moved.parent.mkdir()
    lab.prefix.rename(moved)
    lab.prefix = moved
    assert lab.finish()[1].startswith("nothing to do")
    code, out = lab.finish("--force", "second")
    assert code == 0, out
    assert lab.words() == ["first", "second", "second"]
    lab.check_whole()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("left", [0, 4096, 16384])
def test_a_full_disk_is_told_and_what_follows_goes_on(lab: Lab, small_disk: Path, left: int) -> None:
    lab.prefix = small_disk / "prefix"
    ballast = small_disk / "ballast"
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    ballast.write_bytes(b"x" * (free - left))
    code, out = lab.finish("--launcher", "inline")
    assert code == 2, out
    assert "no space left on the device" in out
    assert "Traceback" not in out
    ballast.unlink()
    code, out = lab.finish("--launcher", "inline")
    assert code == 0, out
    lab.check_whole()
