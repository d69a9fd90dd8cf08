"""Bodies on a real Ray cluster on loopback, with drivers, keepers and raylets killed for real."""

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

import pytest

ray = pytest.importorskip("ray")

SCRIPT = textwrap.dedent(
    """
    import os, subprocess, sys, time
    from pathlib import Path
    from marin_core import Input, Out, Resources, Work, main, step

    GATE = Path(__file__).with_name("gate")
    RUNS = Path(__file__).with_name("runs.txt")

    def note(*words):
        with RUNS.open("a") as f:
            f.write(" ".join(map(str, words)) + "\\n")

    @step
    def first(out: Out) -> int:
        note("first", os.getpid())
        (out / "a.txt").write_text("whole")
        return 1

    @step
    def slow(out: Out, work: Work, source: Input) -> str:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        note("child", child.pid)
        note("slow", os.getpid(), os.getppid())
        print("waiting")
        while not GATE.exists():
            time.sleep(0.01)
        work.open("epoch", "w").write(str(work.epoch))
        (out / "b.txt").write_text((source / "a.txt").read_text() + " loaf")
        return (out / "b.txt").read_text()

    @step
    def last(text: str) -> str:
        note("last", os.getpid())
        return text.upper()

    def build(*, retries: int = 0):
        return last(slow(first(), retries=retries))

    if __name__ == "__main__":
        main(build)
    """
)

FATAL = textwrap.dedent(
    """
    import os, signal
    from marin_core.launchers.ray import RayLauncher

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    class DiesOnceLaunched(RayLauncher):
        def launch(self, job, *, notify):
            super().launch(job, notify=notify)
            if job.name.startswith("slow/"):
                die()

    class DiesOnceEnded(RayLauncher):
        def launch(self, job, *, notify):
            super().launch(job, notify=die if job.name.startswith("slow/") else notify)
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


def start_ray(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--object-store-memory=80000000"]
    ports = ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"]
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "stdout": subprocess.DEVNULL}
    return subprocess.Popen(
        [*command, *ports, *arguments],
        env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address. Ray's sockets need a short path."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as directory:
        head = start_ray("--head", "--port=0", "--num-cpus=2", "--include-dashboard=false", f"--temp-dir={directory}")
        current = Path(directory) / "ray_current_cluster"
        until(lambda: current.exists() or head.poll() is not None, what="the head node starts")
        address = current.read_text().strip()
        ray.init(address, namespace="test", log_to_driver=False, logging_level="CRITICAL")
        yield address
        ray.shutdown()
        head.terminate()
        head.wait()


def keepers() -> list[str]:
    return [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]


class Job:
    """A script in a directory of its own, and the drivers that were started on it."""

    def __init__(self, directory: Path, address: str) -> None:
        self.directory, self.address = directory, address
        self.script = directory / "job.py"
        self.script.write_text(SCRIPT)
        (directory / "fatal.py").write_text(FATAL)
        self.drivers: list[subprocess.Popen[str]] = []

    def start(self, *flags: str, launcher: str = "ray") -> subprocess.Popen[str]:
        driver = subprocess.Popen(
            [sys.executable, str(self.script), "--launcher", launcher, *flags],
            cwd=self.directory,
            env=os.environ | {"RAY_ADDRESS": self.address},
            text=True,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.drivers.append(driver)
        return driver

    def lines(self, word: str) -> list[list[int]]:
        runs = self.directory / "runs.txt"
        found = [line.split() for line in runs.read_text().splitlines()] if runs.exists() else []
        return [[int(n) for n in line[1:]] for line in found if line[0] == word]

    def counts(self) -> list[int]:
        return [len(self.lines(word)) for word in ("first", "slow", "last")]

    def pids(self) -> list[int]:
        return [line[0] for word in ("slow", "child") for line in self.lines(word)]

    def open_gate(self) -> None:
        (self.directory / "gate").touch()

    def record(self, name: str, file: str = "step.json") -> dict:
        return json.loads(next((self.directory / ".marin" / name).glob(f"*/{file}")).read_text())


@pytest.fixture
def job(tmp_path: Path, cluster: str) -> Iterator[Job]:
    made = Job(tmp_path, cluster)
    yield made
    for driver in made.drivers:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()
    for pid in made.pids():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_run_on_ray_prints_one_document_and_leaves_no_actor(job: Job) -> None:
    job.open_gate()
    driver = job.start("--json")
    out, err = driver.communicate()
    assert err.splitlines() == [line for line in err.splitlines() if line.split(":")[0] in ("first", "slow", "last")]
    assert json.loads(out)["status"] == "succeeded"
    assert job.record("last")["value"] == "WHOLE LOAF"
    assert job.counts() == [1, 1, 1]
    assert next((job.directory / ".marin/slow").glob("*/attempts/1/log.txt")).read_text() == "waiting\n"
    until(lambda: keepers() == [], what="the keepers go")


def test_a_restarted_driver_adopts_the_body_that_is_still_running(job: Job) -> None:
    driver = job.start()
    until(lambda: job.lines("slow"), what="the slow body starts")
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    second = job.start()
    until(lambda: job.record("slow", "attempts/1/attempt.json")["pid"] == second.pid, what="the body is adopted")
    assert all(alive(pid) for pid in job.pids())
    job.open_gate()
    out, err = second.communicate()
    assert (err, second.returncode) == ("", 0), out
    assert job.counts() == [1, 1, 1]
    assert job.record("slow")["attempt"] == 1
    assert job.record("slow")["epoch"] == 2
    assert job.record("slow", "work/*/epoch") == 1
    attempt = job.record("slow", "attempts/1/attempt.json")
    assert (attempt["state"], attempt["epoch"], attempt["launcher"]) == ("succeeded", 2, "ray")
    assert "goes on with the body that run" in out
    until(lambda: keepers() == [], what="the keepers go")
