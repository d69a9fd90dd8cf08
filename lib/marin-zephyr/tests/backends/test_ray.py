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

import pytest

from marin_zephyr import Dataset, Session, agg
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


def notes(directory: Path, pattern: str = "*") -> list[list[str]]:
    """What `note` has left, one entry a call."""
    return [path.name.split("-") for path in directory.glob(pattern)]


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
    """The tasks of the head wait for one of the other node, which waits to be killed; its worker is stopped before, so
    that it lives on when Ray has given it up, and comes back to life when its task has been done elsewhere."""
    home = Path(os.environ.get("RAY_TMPDIR", tmp_path)) and tmp_path / "notes"
    home.mkdir()

    def note(row: dict) -> dict:
        import ray

        node = ray.get_runtime_context().get_node_id()
        (home / f"{row['n']}-{node}-{os.getpid()}").touch()
        until(lambda: len({name[1] for name in notes(home)}) == 2)  # the other node has one
        if node == other and not (tmp_path / "killed").exists():
            until(lambda: (tmp_path / "killed").exists())
        return row

    node = second()
    import ray

    other = next(n["NodeID"] for n in ray.nodes() if n["Alive"] and n["Resources"].get("CPU") == 1)
    ghosts: list[int] = []

    def kill() -> None:
        until(lambda: notes(home, f"*-{other}-*"))
        ghosts.extend(int(name[2]) for name in notes(home, f"*-{other}-*"))
        os.kill(ghosts[0], signal.SIGSTOP)
        node.kill()
        (raylet,) = [int(c) for c in children(node.pid) if b"raylet/raylet" in Path(f"/proc/{c}/cmdline").read_bytes()]
        os.kill(raylet, signal.SIGKILL)
        (tmp_path / "killed").touch()

    killer = threading.Thread(target=kill)
    killer.start()
    dataset = Dataset.from_rows([{"n": i} for i in range(8)], num_shards=8).map(note)
    try:
        on_ray.run(dataset.write_parquet(tmp_path / "out"))
    finally:
        killer.join()
        for ghost in ghosts:
            os.kill(ghost, signal.SIGCONT)
    with Session(backend="inline") as inline:
        inline.run(Dataset.from_rows([{"n": i} for i in range(8)], num_shards=8).map(dict).write_parquet(tmp_path / "clean"))
    ours, clean = tree(tmp_path / "out"), tree(tmp_path / "clean")
    assert {k: v for k, v in ours.items() if k.startswith("part")} == {k: v for k, v in clean.items() if k.startswith("part")}
    tried = [int(name[0]) for name in notes(home)]
    assert len(tried) == 8 + len(ghosts) == 9
