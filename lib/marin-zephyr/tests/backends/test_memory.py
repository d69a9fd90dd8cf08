"""How much memory a run may use, how much a process holds, and what happens to tasks that hold too much: for real."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr import Dataset, Session
from marin_zephyr.backends import memory
from marin_zephyr.backends.memory import Gauge, default_budget, parse_memory
from marin_zephyr.errors import MemoryLimitError, UsageError, WorkerDiedError

MIB = 1 << 20
SMALL = "420MiB"


def tree(path: Path) -> dict[str, str]:
    files = [p for p in path.rglob("*") if p.is_file()]
    return {p.relative_to(path).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@given(
    number=st.integers(1, 10**6),
    unit=st.sampled_from([("KiB", 1 << 10), ("MB", 10**6), ("G", 10**9), ("gib", 1 << 30)]),
)
@settings(max_examples=30)
def test_an_amount_with_a_unit_is_so_many_bytes(number, unit):
    assert parse_memory(f"{number}{unit[0]}") == parse_memory(f" {number} {unit[0]} ") == number * unit[1]
    assert parse_memory(number) == parse_memory(str(number)) == number


@pytest.mark.parametrize("value", ["", "much", "4 gallons", "-1GiB", 0, -5, True, 1.5, "GiB"])
def test_what_is_no_amount_is_refused_with_examples(value):
    with pytest.raises(UsageError, match=r"memory=.*is no amount of memory; write \"4GiB\""):
        parse_memory(value)


def test_a_budget_that_cannot_hold_one_worker_is_refused():
    with pytest.raises(UsageError, match=r"memory=200 MiB is too little: a driver and one worker need 240 MiB"):
        Session(workers=4, memory="200MiB")


def test_a_budget_has_as_many_workers_as_it_holds(caplog):
    pids = Dataset.from_rows([{"n": i} for i in range(8)], num_shards=8).map(lambda row: {"pid": os.getpid()})
    with Session(workers=4, memory="300MiB") as session:
        assert len({row["pid"] for row in session.rows(pids)}) == 1
    assert "1 of workers=4: memory=300 MiB holds no more, each needs 176 MiB" in caplog.text


def test_the_limit_of_a_control_group_counts_for_those_below_it(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path)
    own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    root = tmp_path / ("memory" if any("memory" in c.split(",") for _, c, _ in own) else "")
    name = "memory.limit_in_bytes" if root != tmp_path else "memory.max"
    root.mkdir(exist_ok=True)
    (root / name).write_text("max\n")
    free = default_budget()
    (root / name).write_text(f"{1000 * MIB}\n")
    assert default_budget() == 800 * MIB < free


def test_a_gauge_sees_what_a_process_holds_from_outside():
    script = "data = b'x' * (200 << 20); print(len(data), flush=True); input()"
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    gauge = Gauge(process.pid)
    assert process.stdout is not None
    process.stdout.readline()
    held = gauge.read()
    process.communicate(b"\n")
    assert 200 * MIB <= held < 260 * MIB
    assert gauge.read() == 0
    gauge.close()


def harm(row):
    """Harms its process in the way that the row's ``bad`` says."""
    if row["bad"] == "memory":
        held = [b"x" * (50 * MIB) for _ in range(8)]
        return {**row, "n": len(held)}
    if row["bad"] == "segfault":
        import ctypes

        ctypes.string_at(0)
    if row["bad"] == "exit":
        os._exit(3)
    return {**row, "n": -1}


ENDINGS = {
    "memory": (8, MemoryLimitError, r"passed the memory ceiling of \d+ MiB"),
    "segfault": (9, WorkerDiedError, "was killed by SIGSEGV"),
    "exit": (30, WorkerDiedError, "exited with code 3"),
}


@pytest.fixture
def raw(tmp_path):
    """Three files of 30 rows; in the second one three are poison, each in its way."""
    directory = tmp_path / "raw"
    directory.mkdir()
    for i in range(3):
        kinds = {7: "memory", 8: "segfault", 29: "exit"} if i == 1 else {}
        rows = [{"id": i * 30 + j, "bad": kinds.get(j, ""), "text": "w" * j} for j in range(30)]
        (directory / f"{i}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return directory


@pytest.fixture(scope="module")
def pool():
    with Session(workers=2, memory=SMALL) as session:
        yield session


@pytest.mark.parametrize("kind", ENDINGS)
def test_a_poisoned_row_is_named(pool, raw, kind):
    line, error, how = ENDINGS[kind]
    dataset = Dataset.from_files(raw / "1.jsonl", with_source=True).filter(lambda row: row["bad"] in ("", kind))
    at = rf"on row \d+, 1.jsonl, row {line}, offset \d+"
    fix = r'on_error="quarantine" to set such rows aside'
    with pytest.raises(error, match=rf"task 0 of 0-count .*its worker {how} in map\(harm.*{at}.*{fix}"):
        pool.count(dataset.map(harm))


def test_poisoned_rows_are_set_aside_and_all_others_are_as_if_they_had_been_filtered(pool, raw, tmp_path):
    base = Dataset.from_files(raw, with_source=True, shard_bytes=1, on_error="quarantine")
    keep = base.filter(lambda row: row["id"] % 10 != 5)
    report = pool.run(keep.map(harm).write_parquet(tmp_path / "out"))
    clean = keep.filter(lambda row: not row["bad"]).map(harm).write_parquet(tmp_path / "clean")
    with Session(backend="inline") as inline:
        inline.run(clean)
    parts = [{k: v for k, v in tree(tmp_path / d).items() if k.startswith("part-")} for d in ("out", "clean")]
    assert parts[0] == parts[1]
    assert len(parts[0]) == 3
    assert (report.counters["rejected"], report.counters["rows_out"]) == (3, 90 - 9 - 3)
    entries = [json.loads(line) for p in report.rejects for line in p.read_text().splitlines()]
    assert [(e["file"], e["line"], e["row"]["bad"]) for e in entries] == [
        ("1.jsonl", 8, "memory"),
        ("1.jsonl", 9, "segfault"),
        ("1.jsonl", 30, "exit"),
    ]
    assert [e["reason"].partition(": ")[0] for e in entries] == [
        "exceeded the memory ceiling",
        *["killed the worker"] * 2,
    ]
    assert [e["reason"].partition(": ")[2] for e in entries[1:]] == ["SIGSEGV", "exit code 3"]


def test_a_poisoned_row_is_counted_under_skip(pool, raw):
    base = Dataset.from_files(raw / "1.jsonl", on_error="skip").filter(lambda row: row["bad"] in ("", "exit"))
    assert pool.count(base.map(harm)) == 27


def test_a_batch_function_that_takes_too_much_is_named_and_its_batch_is_not_cut(pool, raw):
    def double(frame: pl.DataFrame) -> pl.DataFrame:
        held = [b"x" * (50 * MIB) for _ in range(8 if "memory" in frame["bad"] else 0)]
        return frame.with_columns(n=len(held))

    dataset = Dataset.from_files(raw / "1.jsonl", on_error="skip").map_batches(double)
    at = r"in map_batches\(.*double.*\) on a batch of 30 rows, [\d.e-]+ MiB .*memory="
    with pytest.raises(MemoryLimitError, match=at):
        pool.count(dataset)


def test_memory_that_fills_up_row_by_row_is_not_blamed_on_the_row_at_work(pool, raw):
    held = []

    def hoard(row):
        held.append(b"x" * (15 * MIB))
        return row

    dataset = Dataset.from_files(raw / "0.jsonl", on_error="skip").map(hoard)
    # The ceiling may be passed within a call or between two.
    at = r"in (gathering the rows of )?map\(.*it held [123]\d\d MiB before"
    with pytest.raises(MemoryLimitError, match=at):
        pool.count(dataset)


def test_a_task_that_exceeds_its_share_but_not_the_whole_is_done_all_the_same(raw, tmp_path):
    def need(row):
        held = b"x" * (200 * MIB if row["bad"] == "memory" else 1)
        return {**row, "n": len(held)}

    dataset = Dataset.from_files(raw, shard_bytes=1).map(need)
    with Session(workers=3, memory="600MiB") as session:
        session.run(dataset.write_parquet(tmp_path / "out"))
    with Session(backend="inline") as inline:
        inline.run(dataset.write_parquet(tmp_path / "clean"))
    assert tree(tmp_path / "out") == tree(tmp_path / "clean")
