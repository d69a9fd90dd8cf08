"""The process backend: the same bytes, and what is left when somebody is killed."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from marin_zephyr import Dataset, Session, agg, col
from marin_zephyr.errors import RejectRow, UserCodeError, WorkerDiedError, ZephyrError


def tree(path: Path) -> dict[str, str]:
    files = [p for p in path.rglob("*") if p.is_file()]
    return {p.relative_to(path).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.fixture(scope="module")
def pool():
    with Session(backend="process", workers=2) as session:
        yield session


@pytest.fixture
def raw(tmp_path):
    directory = tmp_path / "raw"
    directory.mkdir()
    for i in range(6):
        rows = [{"id": i * 50 + j, "key": (i * 7 + j) % 40, "x": j / 7, "text": "w" * (j % 9)} for j in range(50)]
        (directory / f"{i}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows) + "bad\n")
    return directory


def refuse_threes(row):
    if row["id"] % 33 == 3:
        raise RejectRow("a three")
    return {**row, "twice": row["id"] * 2}


def test_outputs_are_byte_identical_whatever_the_backend(pool, raw, tmp_path):
    base = Dataset.from_files(raw, on_error="quarantine", with_source=True, shard_bytes=3000).map(refuse_threes)
    plans = {
        "rows": lambda out: base.filter(lambda row: row["x"] > 1).write_jsonl(out, compression="zst"),
        "distinct": lambda out: base.distinct(on="key").write_parquet(out),
        "groups": lambda out: base.group_by("key").agg(n=agg.count(), x=agg.mean("x")).write_parquet(out),
    }
    for name, plan in plans.items():
        with Session(backend="inline") as inline:
            inline.run(plan(tmp_path / "inline" / name))
        pool.run(plan(tmp_path / "process" / name))
    assert tree(tmp_path / "inline") == tree(tmp_path / "process")
    assert any(name.startswith("rows/rejects/") for name in tree(tmp_path / "inline"))


def test_an_error_of_a_row_function_comes_back_with_its_place(pool, raw):
    with pytest.raises(UserCodeError, match=r"map\(<lambda> at test_process.*ZeroDivisionError") as caught:
        pool.count(Dataset.from_files(raw, on_error="skip").map(lambda row: {"x": 1 // row["id"]}))
    assert "Traceback" in "".join(caught.value.__notes__)
    assert pool.count(Dataset.from_files(raw, on_error="skip")) == 300


def test_what_cannot_be_sent_to_a_worker_is_an_error_with_the_fix(pool, tmp_path):
    with (
        (tmp_path / "f").open("w") as handle,
        pytest.raises(UserCodeError, match=r"cannot be sent.*inside the function"),
    ):
        pool.count(Dataset.from_rows([{"n": 1}]).map(lambda row: {"n": handle.write("x")}))


def test_a_worker_that_dies_once_costs_nothing_but_time(pool, tmp_path):
    marker = tmp_path / "died"

    def die_once(row):
        if row["n"] == 5 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return row

    dataset = Dataset.from_rows([{"n": i} for i in range(10)], num_shards=4).map(die_once)
    report = pool.run(dataset.write_parquet(tmp_path / "out"))
    with Session(backend="inline") as inline:
        inline.run(dataset.write_parquet(tmp_path / "clean"))
    assert marker.exists()
    assert report.counters["rows_out"] == 10
    assert tree(tmp_path / "out") == tree(tmp_path / "clean")


def test_a_task_that_kills_two_workers_is_named(pool, raw):
    (raw / "3.jsonl").write_text('{"id": 8}\n')
    dataset = Dataset.from_files(raw / "3.jsonl", with_source=True).map(lambda row: os._exit(7))
    at = r"task 0 of 0-count \(.*3\.jsonl\): its worker exited with code 7 in map\(.*on row 0, 3.jsonl, row 1, offset 0"
    with pytest.raises(WorkerDiedError, match=at):
        pool.count(dataset)


SCRIPT = textwrap.dedent("""
    import os, sys, time
    from pathlib import Path
    from marin_zephyr import Dataset, Session

    raw, out, work, hold, backend = sys.argv[1:]

    def slow(row):
        # Holds all shards once two are done, as long as a file lies there: the function must not change between runs.
        if (Path(raw).parent / "held").exists():
            if len(list(Path(hold).glob("done-*"))) >= 2:
                Path(hold, f"pid-{os.getpid()}").touch()
                while True:
                    time.sleep(0.05)
            if row["id"] % 50 == 49:
                Path(hold, f"done-{row['id']}").touch()
        return row

    dataset = Dataset.from_files(raw, on_error="quarantine", shard_bytes=1).map(slow).distinct(on="key")
    with Session(backend=backend, workers=2, work_dir=work) as session:
        report = session.run(dataset.map(lambda row: {**row, "main": True}).write_parquet(out))
    print(report.executed)
""")


def wait_until(what, seconds=60.0):
    """Polls a condition that another process brings about."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False


def test_a_killed_driver_takes_its_workers_along_and_a_rerun_equals_a_clean_run(raw, tmp_path):
    """The script needs no ``__main__`` guard, and its lambdas reach the workers."""
    script = tmp_path / "script.py"
    hold = tmp_path / "hold"
    hold.mkdir()
    script.write_text(SCRIPT)
    (tmp_path / "held").touch()
    arguments = [sys.executable, str(script), str(raw)]
    driver = subprocess.Popen([*arguments, str(tmp_path / "out"), str(tmp_path / "work"), str(hold), "process"])
    try:
        wait_until(lambda: len(list(hold.glob("pid-*"))) == 2)
        workers = [int(p.name.removeprefix("pid-")) for p in hold.glob("pid-*")]
    finally:
        driver.kill()
        driver.wait()
    wait_until(lambda: not any(alive(pid) for pid in workers))
    assert not list((tmp_path / "out").glob("part-*"))
    (tmp_path / "held").unlink()

    def finish(out: str, backend: str) -> int:
        places = [str(tmp_path / out), str(tmp_path / ("work" if out == "out" else "work2")), str(hold), backend]
        return int(subprocess.run([*arguments, *places], capture_output=True, text=True, check=True).stdout)

    resumed, clean = finish("out", "process"), finish("clean", "inline")
    assert clean == 6 + 1 + 6
    assert 0 < resumed < clean
    assert tree(tmp_path / "out") == tree(tmp_path / "clean")
    assert not [name for name in tree(tmp_path / "out") if name.startswith(".")]


def test_workers_end_with_their_session(raw):
    with Session(backend="process", workers=1) as session:
        session.count(Dataset.from_files(raw, on_error="skip").filter(col("id") > 1))
        pids = [w.process.pid for w in session._backend._workers]
        assert all(alive(pid) for pid in pids)
    assert not any(alive(pid) for pid in pids)


class Rows:
    """Progress that remembers how many rows each task had, in the order in which they ended."""

    def __init__(self):
        self.seen = []

    def start(self, work):
        pass

    def advance(self, *, items, **_):
        self.seen.append(items)

    def finish(self):
        pass


def test_the_heaviest_tasks_are_handed_out_first(tmp_path):
    for i, n in enumerate([1, 50, 10, 30]):
        (tmp_path / f"{i}.jsonl").write_text('{"a": 1}\n' * n)
    progress = Rows()
    with Session(backend="process", workers=1, progress=progress) as session:
        assert session.count(Dataset.from_files(tmp_path, shard_bytes=1)) == 91
    assert progress.seen == [50, 30, 10, 1]


def test_tasks_that_were_sent_ahead_to_a_worker_that_dies_are_done_by_others(tmp_path):
    dataset = Dataset.from_rows([{"n": i} for i in range(60)], num_shards=60, on_error="skip")
    with Session(backend="process", workers=2) as session:
        report = session.run(
            dataset.map(lambda row: row if row["n"] != 30 else os._exit(1)).write_jsonl(tmp_path / "out")
        )
    assert (report.counters["rows_out"], report.counters["rejected"]) == (59, 1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_dead_worker_is_noticed_though_a_child_that_it_forked_lives_on(tmp_path):
    def fork_and_die(row):
        import os
        import time

        if os.fork():
            os._exit(7)
        (tmp_path / f"child-{os.getpid()}").touch()
        time.sleep(600)

    with Session(backend="process", workers=1) as session, pytest.raises(WorkerDiedError, match="code 7"):
        session.count(Dataset.from_rows([{"a": 1}]).map(fork_and_die))
    for child in tmp_path.glob("child-*"):
        os.kill(int(child.name.partition("-")[2]), signal.SIGKILL)


def test_a_function_may_close_all_descriptors_and_the_run_ends(tmp_path):
    def close_all(row):
        import os

        os.closerange(3, 1000)
        return row

    with Session(backend="process", workers=1) as session, pytest.raises(ZephyrError):
        session.count(Dataset.from_rows([{"a": 1}]).map(close_all))
