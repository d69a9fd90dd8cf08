"""Bodies on a real Ray cluster on loopback, with drivers, keepers and raylets killed for real.

The driver that is killed is a process of its own; the one that comes after it runs in the test's.
"""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from marin_core import Launcher, Resources, RunReport, run
from marin_core.launchers import kind_of, make_launcher
from marin_core.store import open_store

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.timeout(120)  # all of them take half a minute; one that hangs has lost its cluster

SOURCE = """
    import os, subprocess, sys, time
    from pathlib import Path
    from marin_core import Out, Resources, Work, main, step

    HERE = Path(__file__).parent

    def note(*words):
        with (HERE / "runs.txt").open("a") as f:
            f.write(" ".join(map(str, words)) + "\\n")

    @step
    def slow(out: Out, work: Work) -> str:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        note("child", child.pid)
        note("slow", os.getpid())
        print("waiting")
        while not (HERE / "gate").exists():
            time.sleep(0.01)
        work.open("epoch", "w").write(str(work.epoch))
        (out / "a.txt").write_text("whole")
        return os.environ.get("CUDA_VISIBLE_DEVICES", "")

    @step
    def plain(out: Out) -> int:
        note("plain", os.getpid())
        print("said")
        (out / "a.txt").write_text("whole")
        return 1

    def build():
        return slow()

    if __name__ == "__main__":
        main(build)
"""

DRIVER = """
import importlib, os, signal, sys
from marin_core import run
from marin_core.launchers.ray import RayLauncher

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

class DiesOnceLaunched(RayLauncher):
    def launch(self, job, *, notify):
        super().launch(job, notify=notify)
        die()

class DiesOnceEnded(RayLauncher):
    def launch(self, job, *, notify):
        super().launch(job, notify=die)

directory, module, step, prefix, launcher = sys.argv[1:]
sys.path.insert(0, directory)
run(getattr(importlib.import_module(module), step)(), prefix=prefix, launcher=globals()[launcher]())
"""


SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    # How soon Ray notices that a node has died; a living one answers within ten seconds, or is asked again.
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
}


def until(condition: Callable[[], object], *, what: str) -> None:
    """Waits for what must come; if it does not, the suite's own timeout ends the test and shows this line."""
    while not condition():
        time.sleep(0.01)


def stat(pid: int) -> list[str]:
    """State, parent and so on, as Linux tells them; empty for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def alive(pid: int) -> bool:
    return bool(fields := stat(pid)) and fields[0] not in "ZX"


def parent(pid: int) -> int:
    return int(stat(pid)[1])


def start_node(*arguments: str, within: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--object-store-memory=80000000"]
    # A line says when it has started; what comes later is too little to fill the pipe.
    ports = ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"]
    node = subprocess.Popen(
        [*within, *command, *ports, *arguments],
        env=os.environ | SETTINGS,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert node.stdout is not None
    assert any(b"block forever" in line for line in node.stdout)
    return node


@pytest.fixture(scope="module")
def object_store() -> Iterator[str | None]:
    """A real S3 server with the bucket ``lab``, known to every process from here on; None where there is none."""
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("obstore") is None:
        yield None
        return
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    urllib.request.urlopen(urllib.request.Request(f"{address}/lab", method="PUT")).close()
    client = {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret", "REGION": "us-east-1", "ENDPOINT_URL": address}
    with pytest.MonkeyPatch.context() as environment:
        for name, value in client.items():
            environment.setenv(f"AWS_{name}", value)
        yield address
    server.stop()


@pytest.fixture(scope="module")
def cluster(object_store: str | None) -> Iterator[str]:
    """The address of a cluster of one node with two cores, which this process has joined."""
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as directory:  # short path
        head = start_node("--head", "--port=0", "--num-cpus=2", "--include-dashboard=false", f"--temp-dir={directory}")
        try:
            address = (Path(directory) / "ray_current_cluster").read_text().strip()
            until(lambda: joined(address), what="the head node takes drivers, which on a busy machine can be late")
            yield address
        finally:
            ray.shutdown()
            head.terminate()
            head.wait()


def joined(address: str) -> bool:
    with contextlib.suppress(ConnectionError, RuntimeError):
        ray.init(address, namespace="test", log_to_driver=False, logging_level="CRITICAL")
    return ray.is_initialized()


def keepers() -> list[str]:
    return [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]


class Flow:
    """A module with one step, and the drivers that were started on it."""

    def __init__(self, module: ModuleType, prefix: str, address: str) -> None:
        self.module, self.prefix, self.address = module, prefix, address
        self.directory = Path(module.__file__ or "").parent
        self.drivers: list[subprocess.Popen[str]] = []
        self.threads: list[threading.Thread] = []
        self.reports: list[RunReport] = []

    def script(self, *flags: str, **environment: str) -> subprocess.Popen[str]:
        """The module as a script, on Ray."""
        command = [str(self.module.__file__), "--launcher", "ray", "--prefix", self.prefix, *flags]
        return self._driver(command, environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def killed(self, launcher: str, *, step: str = "slow") -> None:
        """A driver that kills itself at the moment that its launcher is named for."""
        arguments = [str(self.directory), self.module.__name__, step, self.prefix, launcher]
        driver = self._driver(["-c", DRIVER, *arguments], {})
        assert driver.wait() == -signal.SIGKILL

    def _driver(self, command: list[str], environment: dict[str, str], **pipes: Any) -> subprocess.Popen[str]:
        environment = os.environ | {"RAY_ADDRESS": self.address} | environment
        driver = subprocess.Popen([sys.executable, *command], env=environment, text=True, **pipes)
        self.drivers.append(driver)
        return driver

    def start(self, step: Any = None, *, launcher: str | Launcher = "ray", **options: Any) -> None:
        """A run in this process, in a thread."""

        def go() -> None:
            self.reports.append(run(step or self.module.slow(), prefix=self.prefix, launcher=launcher, **options))

        self.threads.append(threading.Thread(target=go, daemon=True))
        self.threads[-1].start()

    def finish(self) -> RunReport:
        self.open_gate()
        for thread in self.threads:
            thread.join()
        return self.reports[-1]

    def open_gate(self) -> None:
        (self.directory / "gate").touch()

    def noted(self, word: str) -> list[int]:
        runs = self.directory / "runs.txt"
        found = [line.split() for line in runs.read_text().splitlines()] if runs.exists() else []
        return [int(line[1]) for line in found if line[0] == word]

    def pids(self) -> list[int]:
        return self.noted("slow") + self.noted("child")

    def file(self, name: str) -> Path:
        return next(Path(self.prefix).glob(f"slow/*/{name}"))

    def record(self, name: str) -> dict:
        return json.loads(self.file(name).read_text())

    def job(self) -> str:
        """The name of the one job there is."""
        return next(name for name in keepers() if name.startswith("slow/"))


@pytest.fixture
def flow(module: Callable[[str], ModuleType], prefix: str, cluster: str) -> Iterator[Flow]:
    made = Flow(module(SOURCE), prefix, cluster)
    yield made
    made.open_gate()
    for driver in made.drivers:
        with contextlib.suppress(ProcessLookupError):
            driver.kill()
        driver.communicate()
    until(lambda: keepers() == [], what="no keeper is left behind, whatever happened")


def test_a_script_on_ray_prints_its_document_alone_and_its_body_logs_as_elsewhere(flow: Flow) -> None:
    flow.open_gate()
    driver = flow.script("--json")
    out, err = driver.communicate()
    assert json.loads(out)["status"] == "succeeded"
    assert [line.split(":")[0] for line in err.splitlines()] == ["slow"] * len(err.splitlines())
    assert flow.file("attempts/1/log.txt").read_text() == "waiting\n"
    assert flow.file("attempts/1/out/a.txt").read_text() == "whole"
    assert flow.record("attempts/1/attempt.json")["launcher"] == "ray"


def test_a_driver_killed_before_it_could_note_the_launch_is_followed_by_one_that_adopts_the_body(flow: Flow) -> None:
    flow.killed("DiesOnceLaunched")
    until(lambda: flow.noted("slow"), what="the body starts without its driver")
    first = flow.record("attempts/1/attempt.json")
    flow.start()
    until(lambda: flow.record("attempts/1/attempt.json")["epoch"] == 2, what="the body is adopted")
    assert all(alive(pid) for pid in flow.pids())
    report = flow.finish()
    assert report.ok
    assert report.node("slow").reason == f"goes on with the body that run {first['run_id']} started"
    assert len(flow.noted("slow")) == 1
    assert (flow.record("step.json")["attempt"], flow.record("step.json")["epoch"]) == (1, 2)
    assert flow.file("work/*/epoch").read_text() == "1"
    assert flow.record("attempts/1/attempt.json")["state"] == "succeeded"


def test_a_driver_killed_once_the_body_ended_is_followed_by_one_that_commits_what_it_left(flow: Flow) -> None:
    flow.open_gate()
    flow.killed("DiesOnceEnded")
    assert not list(Path(flow.prefix).glob("slow/*/step.json"))
    until(lambda: keepers() == [], what="the keeper goes, so that only the prefix can tell")
    flow.start()
    assert flow.finish().ok
    assert len(flow.noted("slow")) == 1
    assert (flow.record("step.json")["attempt"], flow.record("step.json")["epoch"]) == (1, 2)


def test_on_an_object_store_a_driver_that_comes_later_commits_what_was_uploaded(
    flow: Flow, object_store: str | None
) -> None:
    pytest.importorskip("marin_core.store.objects")
    if object_store is None:
        pytest.skip("no S3 server")
    flow.open_gate()
    flow.prefix = "s3://lab/prefix"
    flow.killed("DiesOnceEnded", step="plain")
    until(lambda: keepers() == [], what="the keeper goes, so that only the prefix can tell")
    flow.start(flow.module.plain())
    report = flow.finish()
    assert report.ok
    assert len(flow.noted("plain")) == 1
    assert (report.path("plain") / "a.txt").read_text() == "whole"
    key = f"{report.node('plain').address}/attempts/1"
    assert open_store(flow.prefix).read(f"{key}/log.txt") == b"said\n"
    assert json.loads(open_store(flow.prefix).read(f"{key}/attempt.json") or b"")["epoch"] == 2


def test_a_run_under_another_launcher_first_ends_the_body_that_is_left_on_ray(flow: Flow) -> None:
    flow.killed("DiesOnceLaunched")
    until(lambda: flow.noted("slow"), what="the body starts without its driver")
    old = flow.pids()
    flow.start(launcher="process")
    until(lambda: len(flow.noted("slow")) == 2, what="the new body starts")
    assert not any(alive(pid) for pid in old)
    assert flow.finish().ok
    assert flow.record("step.json")["attempt"] == 2


def test_sigterm_to_the_driver_ends_the_body_and_what_it_started(flow: Flow) -> None:
    driver = flow.script()
    until(lambda: flow.noted("slow"), what="the body starts")
    driver.terminate()
    out, err = driver.communicate()
    assert (driver.returncode, err) == (143, "interrupted: finished steps are kept, running ones were stopped\n"), out
    until(lambda: not any(alive(pid) for pid in flow.pids()), what="the body and its child die")
    assert flow.record("attempts/1/attempt.json")["state"] == "cancelled"
    assert not list(Path(flow.prefix).glob("slow/*/exit.json"))


def test_two_drivers_execute_a_step_once(flow: Flow) -> None:
    driver = flow.script()
    flow.start()
    until(lambda: flow.noted("slow"), what="one of them starts the body")
    assert flow.finish().ok
    driver.communicate()
    assert driver.returncode == 0
    assert len(flow.noted("slow")) == 1


def test_a_killed_keeper_takes_its_body_along_and_the_attempt_is_lost_and_made_again(flow: Flow) -> None:
    flow.start(flow.module.slow(retries=1))
    until(lambda: flow.noted("slow"), what="the body starts")
    first = flow.pids()
    os.kill(parent(first[0]), signal.SIGKILL)
    until(lambda: len(flow.noted("slow")) == 2, what="the second attempt's body starts")
    until(lambda: not any(alive(pid) for pid in first), what="the first body and its child die")
    assert flow.finish().ok
    assert flow.record("step.json")["attempt"] == 2
    assert flow.record("attempts/1/attempt.json")["failure"]["message"] == "the launcher lost the body"


def test_only_the_driver_that_owns_a_body_can_cancel_it(flow: Flow) -> None:
    earlier, later = make_launcher("ray"), make_launcher("ray")
    assert kind_of(earlier) == "ray"
    flow.start(launcher=earlier)
    until(lambda: flow.noted("slow"), what="the body starts")
    name, ended = flow.job(), threading.Event()
    assert later.adopt(name, notify=lambda _: ended.set())
    until(lambda: ray.get(later._jobs[name].owned, timeout=60) is None, what="the keeper knows its new owner")
    earlier.cancel(name, grace=0)
    assert all(alive(pid) for pid in flow.pids())
    later.cancel(name, grace=0)
    until(lambda: not any(alive(pid) for pid in flow.pids()), what="the body and its child die")
    assert ended.wait(60)
    assert not flow.finish().ok


@pytest.fixture
def elsewhere(cluster: str, prefix: str, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A node with two GPUs, as far as Ray is told, which sees another, empty directory where the prefix is."""
    (tmp_path / "apart").mkdir()
    Path(prefix).mkdir()
    hide = 'mount --bind "$0" "$1" && shift && exec "$@"'
    within = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", hide, str(tmp_path / "apart"), prefix)
    if subprocess.run([*within, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no mount namespaces here")
    marks = '--resources={"accelerator_type:H100": 1}'
    node = start_node(f"--address={cluster}", "--num-cpus=1", "--num-gpus=2", marks, within=within)
    until(lambda: ray.cluster_resources().get("GPU"), what="the node is known")
    yield node
    node.terminate()
    node.wait()
    until(lambda: not ray.cluster_resources().get("GPU"), what="the node leaves")


def test_a_body_is_placed_where_its_accelerators_are_and_dies_with_that_node(
    flow: Flow, elsewhere: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    gpu = flow.module.slow(resources=Resources(accelerators="h100:1"))
    flow.start(gpu)
    report = flow.finish()
    failure = str(report.node("slow").failure)
    assert report.exit_code == 2
    assert f"prefix {flow.prefix} is a directory that Ray's node" in failure
    assert flow.noted("slow") == []
    (flow.directory / "gate").unlink()
    flow.prefix = str(tmp_path / "shared")
    flow.start(gpu)
    until(lambda: flow.noted("slow"), what="the body starts")
    body = flow.pids()
    assert b"CUDA_VISIBLE_DEVICES=0" in Path(f"/proc/{body[0]}/environ").read_bytes().split(b"\0")
    os.kill(parent(parent(body[0])), signal.SIGKILL)
    until(lambda: not any(alive(pid) for pid in body), what="the body and its child die")
    flow.threads[-1].join()
    assert "the launcher lost the body" in str(flow.reports[-1].node("slow").failure)


def test_without_a_cluster_one_is_started_for_the_run(flow: Flow, tmp_path: Path) -> None:
    flow.open_gate()
    flow.address = "local"
    driver = flow.script("--json", HOME=str(tmp_path))  # where Ray keeps the token of a cluster that it starts
    out, err = driver.communicate()
    assert json.loads(out)["status"] == "succeeded"
    assert [line.split(":")[0] for line in err.splitlines()] == ["slow"] * len(err.splitlines())


def test_a_cluster_that_does_not_answer_is_a_mistake_told_in_one_line(flow: Flow) -> None:
    flow.address = "127.0.0.1:1"
    driver = flow.script("--json")
    out, err = driver.communicate()
    assert (driver.returncode, out) == (2, "")
    told = (
        "error: no Ray cluster answers at 127.0.0.1:1 ([Errno 111] Connection refused); see RAY_ADDRESS, or start one"
    )
    assert err.splitlines()[-1] == f"{told}: ray start --head"


def test_a_request_that_no_node_can_have_fails_with_the_totals_of_the_cluster(flow: Flow) -> None:
    flow.start(flow.module.slow(resources=Resources(accelerators="h100:8")))
    report = flow.finish()
    assert report.exit_code == 2
    assert "it asks for 1 CPU, 8 GPU, H100, which no node of the Ray cluster can ever have" in str(report.record)
    assert "the cluster has 1 node with 2 CPU, " in str(report.record)
    assert flow.noted("slow") == []
