"""The ray backend on a real cluster on loopback, with workers and nodes killed for real."""

import contextlib
import hashlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marin_zephyr import Dataset, Session, agg, col
from marin_zephyr.errors import MissingExtraError, OutputError, UsageError, UserCodeError, WorkerDiedError

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra `ray` is not installed")
pytestmark = pytest.mark.timeout(120)

SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    # How soon Ray notices that a node has died.
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
}


def tree(path: Path) -> dict[str, str]:
    files = [p for p in path.rglob("*") if p.is_file()]
    return {p.relative_to(path).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def until(condition: Callable[[], object]) -> None:
    """Waits for what must come; if it does not, the test's own timeout ends it."""
    while not condition():
        time.sleep(0.01)


def start_node(*arguments: str, within: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--object-store-memory=80000000"]
    ports = ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"]
    # A line says when it has started; what comes later is too little to fill the pipe.
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
def cluster() -> Iterator[str]:
    """The address of a cluster whose one node has two CPUs."""
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as directory:  # short path
        head = start_node("--head", "--port=0", "--num-cpus=2", "--include-dashboard=false", f"--temp-dir={directory}")
        try:
            yield (Path(directory) / "ray_current_cluster").read_text().strip()
        finally:
            head.terminate()
            head.wait()


@pytest.fixture(scope="module")
def on_ray(cluster: str) -> Iterator[Session]:
    with Session(backend="ray", ray_address=cluster) as session:
        until(lambda: joined(session))  # a head node on a busy machine takes drivers late
        yield session


def joined(session: Session) -> bool:
    with contextlib.suppress(UsageError):
        return session.count(Dataset.from_rows([{"n": 1}])) == 1
    return False


@pytest.fixture
def second(cluster: str, on_ray: Session) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts another node with one CPU; the cluster is of one node again when the test is over."""
    import ray

    nodes: list[subprocess.Popen[bytes]] = []

    def start(*, within: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        nodes.append(start_node(f"--address={cluster}", "--num-cpus=1", within=within))
        until(lambda: ray.cluster_resources().get("CPU") == 3)
        return nodes[-1]

    yield start
    for node in nodes:
        node.terminate()
        node.wait()
    until(lambda: ray.cluster_resources().get("CPU") == 2)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    directory = tmp_path / "raw"
    directory.mkdir()
    for i in range(6):
        rows = [{"id": i * 50 + j, "key": (i * 7 + j) % 40, "x": j / 7, "text": "w" * (j % 9)} for j in range(50)]
        (directory / f"{i}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows) + "bad\n")
    return directory


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def orders_of(probe: Path, *, blob: bytes = b"") -> Any:
    """What a node is told, and the probe that it looks for."""
    from marin_zephyr.backends.ray import _Orders
    from marin_zephyr.fingerprints import library_versions

    probe.write_text("token")
    return _Orders(blob=blob, probe=probe, token="token", memory=1 << 20, versions=library_versions(), path=())


@needs_ray
def test_outputs_are_byte_identical_to_the_inline_backend_s(on_ray: Session, raw: Path, tmp_path: Path) -> None:
    base = Dataset.from_files(raw, on_error="quarantine", with_source=True, shard_bytes=3000)
    plans = {
        "rows": lambda out: base.map(lambda row: {**row, "y": row["x"] * 3}).write_jsonl(out, compression="zst"),
        "distinct": lambda out: base.distinct(on="key").write_parquet(out),
        "groups": lambda out: base.group_by("key").agg(n=agg.count(), x=agg.mean("x")).write_parquet(out),
    }
    for name, plan in plans.items():
        with Session(backend="inline") as inline:
            inline.run(plan(tmp_path / "inline" / name))
        on_ray.run(plan(tmp_path / "ray" / name))
    assert tree(tmp_path / "inline") == tree(tmp_path / "ray")
    assert any(name.startswith("rows/rejects/") for name in tree(tmp_path / "ray"))
    assert on_ray.run(plans["rows"](tmp_path / "ray" / "rows")).executed == 0


@needs_ray
def test_an_error_of_a_row_function_comes_back_with_its_place_and_ends_the_others(
    on_ray: Session, tmp_path: Path
) -> None:
    def fail_late(row: dict) -> dict:
        while row["n"] > 0:
            (tmp_path / "running").touch()
            time.sleep(0.01)
        until(lambda: (tmp_path / "running").exists())
        return {"n": 1 // row["n"]}

    dataset = Dataset.from_rows([{"n": n} for n in range(4)], num_shards=4)
    with pytest.raises(UserCodeError, match=r"map\(.*fail_late\).*ZeroDivisionError") as caught:
        on_ray.count(dataset.map(fail_late))
    assert "Traceback" in "".join(caught.value.__notes__)
    assert on_ray.count(dataset) == 4  # both CPUs are free again


@needs_ray
def test_a_worker_that_dies_once_costs_nothing_but_time(on_ray: Session, tmp_path: Path) -> None:
    marker = tmp_path / "died"

    def die_once(row: dict) -> dict:
        if row["n"] == 5 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return row

    dataset = Dataset.from_rows([{"n": i} for i in range(10)], num_shards=4).map(die_once)
    report = on_ray.run(dataset.write_parquet(tmp_path / "out"))
    with Session(backend="inline") as inline:
        inline.run(dataset.write_parquet(tmp_path / "clean"))
    assert marker.exists()
    assert report.counters["rows_out"] == 10
    assert tree(tmp_path / "out") == tree(tmp_path / "clean")


@needs_ray
def test_a_task_that_kills_two_workers_is_named(on_ray: Session, raw: Path) -> None:
    dataset = Dataset.from_files(raw / "3.jsonl", on_error="skip").map(lambda row: os._exit(7))
    with pytest.raises(WorkerDiedError, match=r"task 0 of 0-count \(.*3\.jsonl\): lost its worker .*, 2 times"):
        on_ray.count(dataset)


@needs_ray
def test_a_killed_node_costs_only_its_tasks(
    on_ray: Session, second: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """The node is killed in the middle of a task, and its worker stopped, so that Ray gives it up while it lives."""
    import ray

    tries = tmp_path / "tries"
    tries.mkdir()
    node = second()
    other = next(n["NodeID"] for n in ray.nodes() if n["Alive"] and n["Resources"].get("CPU") == 1)

    def slow(row: dict) -> dict:
        here = ray.get_runtime_context().get_node_id()
        (tries / f"{row['n']}-{here}-{os.getpid()}").touch()
        until(lambda: list(tries.glob(f"*-{other}-*")))  # the other node has one
        if here == other:
            until(lambda: (tmp_path / "killed").exists())
        return row

    ghosts: list[int] = []

    def kill() -> None:
        until(lambda: list(tries.glob(f"*-{other}-*")))
        ghosts.extend(int(path.name.split("-")[2]) for path in tries.glob(f"*-{other}-*"))
        os.kill(ghosts[0], signal.SIGSTOP)
        raylets = [pid for pid in children(node.pid) if b"raylet/raylet" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        node.kill()
        for raylet in raylets:
            os.kill(raylet, signal.SIGKILL)
        (tmp_path / "killed").touch()

    rows = [{"n": i} for i in range(8)]
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        on_ray.run(Dataset.from_rows(rows, num_shards=8).map(slow).write_jsonl(tmp_path / "out"))
    finally:
        killer.join()
        for ghost in ghosts:
            os.kill(ghost, signal.SIGCONT)
    lines = [path.read_text() for path in sorted((tmp_path / "out").glob("part-*"))]
    assert [json.loads(line) for line in lines] == rows
    assert len(ghosts) == 1
    assert len(list(tries.iterdir())) == len(rows) + 1


@needs_ray
def test_what_a_worker_that_was_given_up_goes_on_writing_touches_nothing_of_the_accepted_try(tmp_path: Path) -> None:
    from marin_zephyr.backends.pickling import dumps
    from marin_zephyr.backends.ray import _accept, _attempt
    from marin_zephyr.planning import plan
    from marin_zephyr.records import TaskRecord

    rows = Dataset.from_rows([{"n": 1}, {"n": None}], on_error="quarantine").reject(col("n").is_null(), reason="null")
    stage = plan(rows.write_parquet(tmp_path / "out"), output=None, work_dir=tmp_path).stages[0]
    home = stage.spec.home
    (home / "tries").mkdir(parents=True)
    orders = orders_of(home / "tries" / "probe", blob=dumps(stage.spec))
    first = _attempt(orders, 0, stage.inputs[0], home / "tries" / "first", "here")
    assert sorted(path.name for path in home.iterdir()) == ["tries"]
    _accept(first, home / "tries" / "first", home)
    _attempt(orders, 0, stage.inputs[0], home / "tries" / "ghost", "there")
    assert len(first.files) == 2
    assert all(file.is_in(home) for file in first.files)
    assert TaskRecord.load(home, 0) == first


@needs_ray
def test_no_more_tasks_are_under_way_than_workers_were_asked_for(cluster: str, on_ray: Session, tmp_path: Path) -> None:
    def alone(row: dict) -> dict:
        (tmp_path / "one").mkdir()  # fails if another task is here
        (tmp_path / "one").rmdir()
        return row

    with Session(backend="ray", ray_address=cluster, workers=1) as session:
        assert session.count(Dataset.from_rows([{"n": i} for i in range(200)], num_shards=20).map(alone)) == 200
    assert on_ray.count(Dataset.from_rows([{"n": 1}])) == 1  # one session does not end the other's cluster


@needs_ray
def test_a_node_that_does_not_see_the_driver_s_files_is_named(
    on_ray: Session, second: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    (tmp_path / "apart").mkdir()
    (tmp_path / "out").mkdir()
    hide = 'mount --bind "$0" "$1" && shift && exec "$@"'
    mounts = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", hide)
    within = (*mounts, str(tmp_path / "apart"), str(tmp_path / "out"))
    if subprocess.run([*within, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no mount namespaces here")
    second(within=within)

    def wait(row: dict) -> dict:
        until(lambda: False)  # those on the head never end by themselves
        return row

    dataset = Dataset.from_rows([{"n": i} for i in range(8)], num_shards=8).map(wait)
    with pytest.raises(OutputError, match=r"out/\.staging-.* Ray node .* does not see .*storage that all nodes share"):
        on_ray.run(dataset.write_parquet(tmp_path / "out"))
    assert not list((tmp_path / "out").glob("part-*"))


@needs_ray
def test_a_node_with_other_libraries_is_refused(tmp_path: Path) -> None:
    from marin_zephyr.backends.ray import _check_node

    orders = orders_of(tmp_path / "probe")
    _check_node(orders)
    with pytest.raises(UsageError, match=r"node .* has polars .*, the driver 0\.1"):
        _check_node(replace(orders, versions={**orders.versions, "polars": "0.1"}))


@needs_ray
def test_a_cluster_that_does_not_answer_is_a_mistake_told_in_one_line() -> None:
    script = (
        "from marin_zephyr import Dataset, Session\n"
        "from marin_zephyr.errors import UsageError\n"
        "try:\n"
        "    Session(backend='ray', ray_address='127.0.0.1:1').count(Dataset.from_rows([]))\n"
        "except UsageError as e:\n"
        "    print(e)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("no Ray cluster answers at 127.0.0.1:1 ([Errno 111] Connection refused); ")
    assert done.stdout.endswith("start one: ray start --head\n")


@needs_ray
def test_without_a_cluster_one_is_started_and_ends_with_the_session(tmp_path: Path) -> None:
    script = (
        "import ray\n"
        "from marin_zephyr import Dataset, Session\n"
        "with Session(backend='ray', ray_address='local', workers=1) as session:\n"
        "    print(session.count(Dataset.from_rows([{'n': 1}] * 3, num_shards=2)), ray.is_initialized())\n"
        "print(ray.is_initialized())\n"
    )
    # HOME is where Ray keeps the token of a cluster that it starts.
    environment = os.environ | {"HOME": str(tmp_path)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("3 True\nFalse\n", "")


@needs_ray
def test_memory_is_asked_of_ray_by_task_and_what_no_node_has_is_refused(cluster: str, on_ray: Session) -> None:
    dataset = Dataset.from_rows([{"n": i} for i in range(3)], num_shards=3)

    def asked(row: dict) -> dict:
        import ray

        return {"memory": ray.get_runtime_context().get_assigned_resources()["memory"]}

    with Session(backend="ray", ray_address=cluster, workers=2, memory="512MiB") as session:
        assert [row["memory"] for row in session.rows(dataset.map(asked))] == [256 << 20] * 3
    said = r"1,125,899,906,842,624 bytes, and the largest node of the Ray cluster"
    with (
        Session(backend="ray", ray_address=cluster, workers=1, memory="1024TiB") as session,
        pytest.raises(UsageError, match=said),
    ):
        session.count(dataset)
    with pytest.raises(UsageError, match=r"memory='1MiB' is too little"):
        Session(backend="ray", memory="1MiB")


def test_without_the_extra_the_install_line_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "ray" else find(name, *more))
    with pytest.raises(MissingExtraError, match=r"pip install 'marin-zephyr\[ray\]'"):
        Session(backend="ray").count(Dataset.from_rows([{"n": 1}]))


def test_an_address_without_ray_is_a_mistake() -> None:
    with pytest.raises(UsageError, match=r"ray_address='auto' goes with backend=\"ray\", not 'process'"):
        Session(ray_address="auto")
