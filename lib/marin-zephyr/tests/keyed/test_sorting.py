"""Sort: against Python's sorted(), and the same to the byte whatever the memory, the workers or a crash."""

import hashlib
import signal
import subprocess
import sys
from datetime import date
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr import Dataset, Session, batching, col, planning
from marin_zephyr.backends import inline
from marin_zephyr.errors import SchemaError, UsageError
from marin_zephyr.keyed import sorting
from marin_zephyr.shuffle import merging, runs

NUMBERS = st.none() | st.integers(-3, 3) | st.sampled_from([0.5, -0.0, float("inf"), 2.0**53])
KEYS = st.tuples(NUMBERS, st.none() | st.text("ab\0", max_size=2), st.none() | st.booleans())
SHARDS = st.integers(1, 4)


def set_ranges(patch: pytest.MonkeyPatch, number: int) -> None:
    """So many partitions, however few the rows."""
    patch.setattr(planning, "_PARTITION_BYTES", 1)
    patch.setattr(planning, "_MAX_PARTITIONS", number)


@pytest.fixture
def many_ranges(monkeypatch):
    """More partitions than shards."""
    set_ranges(monkeypatch, 10)


def set_no_memory(patch: pytest.MonkeyPatch) -> None:
    """A run a frame, blocks of a row, merges of two."""
    patch.setattr(runs, "BLOCK_BYTES", 1)
    patch.setattr(merging, "BLOCK_BYTES", 1)
    patch.setattr(inline, "merge_memory", lambda _: 1)


@pytest.fixture(scope="module")
def session():
    with pytest.MonkeyPatch.context() as patch, Session(backend="inline") as session:
        set_ranges(patch, 6)
        yield session


def order(row: dict, by: list[str], descending: list[bool], nulls_last: bool) -> list[tuple]:
    """What Python sorts by; every value here can be negated or has its code points negated."""
    keys = []
    for name, down in zip(by, descending, strict=True):
        value = row[name]
        if value is None:
            keys.append((1 if nulls_last else -1, 0))
        elif isinstance(value, str):
            # The end of a string is below every character.
            keys.append((0, [(-1 if down else 1) * (ord(c) + 1) for c in value] + [0]))
        else:
            keys.append((0, -value if down else value))
    return keys


@settings(max_examples=40)
@given(
    keys=st.lists(KEYS, max_size=12),
    num_shards=SHARDS,
    by=st.permutations(["n", "t", "b"]).map(lambda p: p[:2]),
    descending=st.tuples(st.booleans(), st.booleans()),
    nulls_last=st.booleans(),
)
def test_a_sort_is_what_python_sorts(session, keys, num_shards, by, descending, nulls_last):
    rows = [{"n": n, "t": t, "b": b, "at": at} for at, (n, t, b) in enumerate(keys)]
    dataset = Dataset.from_rows(rows, num_shards=num_shards).sort(by, descending=descending, nulls_last=nulls_last)
    expected = sorted(rows, key=lambda row: order(row, by, descending, nulls_last))
    assert [row["at"] for row in session.rows(dataset)] == [row["at"] for row in expected]


def digests(out: Path) -> list[str]:
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(out.glob("part-*"))]


ROWS = [{"k": i * 7919 % 50 if i % 3 else 17, "at": i, "x": i if i < 150 else i + 0.5} for i in range(300)]


def sorted_dataset(out: Path) -> Dataset:
    dataset = Dataset.from_rows(ROWS, num_shards=8).sort("k", descending=True)
    return dataset.map_batches(lambda batch: batch.with_columns(height=batch.height)).write_parquet(out)


def test_part_files_are_the_same_to_the_byte_whatever_the_backend_and_the_memory(tmp_path, monkeypatch):
    set_ranges(monkeypatch, 8)
    with Session(backend="process", workers=2) as session:
        report = session.run(sorted_dataset(tmp_path / "two"))
    with Session(backend="inline") as session:
        session.run(sorted_dataset(tmp_path / "one"))
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    assert len(report.files) == 8

    monkeypatch.setattr(batching, "BATCH_ROWS", 7)
    for name in ("much", "little"):
        with Session(backend="inline", work_dir=tmp_path / name / "work") as session:
            session.run(sorted_dataset(tmp_path / name / "out"))
        set_no_memory(monkeypatch)
    assert digests(tmp_path / "much" / "out") == digests(tmp_path / "little" / "out") != digests(tmp_path / "one")
    assert not list(tmp_path.rglob("merge-*"))

    table = pq.read_table(tmp_path / "one").to_pylist()
    assert [row["at"] for row in table] == [row["at"] for row in sorted(ROWS, key=lambda row: -row["k"])]
    assert {type(row["x"]) for row in table} == {float}


def test_a_hot_key_lies_in_one_part(many_ranges, tmp_path):
    with Session(backend="inline") as session:
        report = session.run(sorted_dataset(tmp_path / "out"))
    holding = [path for path in report.files if 17 in pq.read_table(path)["k"].to_pylist()]
    assert len(holding) == 1
    assert sum(f["rows"] > 0 for f in report.stages[-1].files) > 3


def test_ranges_hold_about_equal_numbers_of_rows_though_few_are_sampled(many_ranges, monkeypatch, tmp_path):
    monkeypatch.setattr(sorting, "_SAMPLED", 2000)
    rows = [{"k": i % 1000, "at": i} for i in range(10_000)]
    with Session(backend="inline") as session:
        report = session.run(Dataset.from_rows(rows, num_shards=10).sort(["k", "at"]).write_parquet(tmp_path / "out"))
    sizes = [pq.read_metadata(path).num_rows for path in report.files]
    assert sum(sizes) == 10_000
    assert all(800 < size < 1200 for size in sizes)


CRASHING = """
import os, signal, sys
from marin_zephyr import Dataset, Session, planning
from marin_zephyr.shuffle import merging, runs
from marin_zephyr.backends import inline
planning._PARTITION_BYTES = runs.BLOCK_BYTES = merging.BLOCK_BYTES = 1
planning._MAX_PARTITIONS = 10
inline.merge_memory = lambda _: 1
flag, out, work = sys.argv[1:]
rows = [{"k": i * 7919 % 50, "at": i} for i in range(200)]

def fatal(batch):
    if os.path.exists(flag) and batch["k"].max() > 40:
        os.unlink(flag)
        os.kill(os.getpid(), signal.SIGKILL)
    return batch

with Session(backend="inline", work_dir=work) as session:
    print(session.run(Dataset.from_rows(rows, num_shards=5).sort("k").map_batches(fatal).write_parquet(out)).executed)
"""


def test_a_crash_in_the_middle_leaves_the_result_of_a_clean_run_and_nothing_else(many_ranges, tmp_path):
    flag, out = tmp_path / "flag", tmp_path / "out"
    flag.touch()

    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", CRASHING, str(flag), str(out), str(tmp_path / "work")]
        return subprocess.run(command, capture_output=True, text=True)

    assert run().returncode == -signal.SIGKILL
    again = run()
    assert again.returncode == 0, again.stderr
    assert 0 < int(again.stdout) < 5
    rows = [{"k": i * 7919 % 50, "at": i} for i in range(200)]
    with Session(backend="inline") as session:
        session.run(Dataset.from_rows(rows, num_shards=5).sort("k").write_parquet(tmp_path / "clean"))
    assert digests(out) == digests(tmp_path / "clean")
    assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in (tmp_path / "clean").iterdir())
    assert not list(tmp_path.rglob("merge-*"))


def test_keys_of_several_types_sort_and_columns_settle_on_one(session, tmp_path):
    for name, line in (("a", '{"k": 2, "x": 1}'), ("b", '{"k": 1.5, "x": null}'), ("c", '{"k": null, "y": "z"}')):
        (tmp_path / f"{name}.jsonl").write_text(line + "\n")
    dataset = Dataset.from_files(tmp_path / "*.jsonl", shard_bytes=1).sort("k")
    rows = list(session.rows(dataset))
    assert rows == [{"k": None, "x": None, "y": "z"}, {"k": 1.5, "x": None, "y": None}, {"k": 2.0, "x": 1, "y": None}]
    assert type(rows[2]["k"]) is float


def test_structs_of_different_members_settle_on_all_of_them(session):
    members = [{"a": 1}, {"b": "x"}, None, {"a": None, "c": [{"d": 1}]}, {"c": [{"e": 1.5}]}]
    rows = [{"k": -i, "m": m} for i, m in enumerate(members)]
    for num_shards in (1, 5):
        got = list(session.rows(Dataset.from_rows(rows, num_shards=num_shards).sort("k")))
        assert got[1]["m"] == {"a": None, "b": None, "c": [{"d": 1, "e": None}]}
        assert [row["m"] for row in got[2:]] == [None, {"a": None, "b": "x", "c": None}, {"a": 1, "b": None, "c": None}]


def test_columns_that_do_not_unify_are_an_error_that_names_them(session):
    rows = [{"k": 1}, {"k": "a"}]
    with pytest.raises(SchemaError, match="column 'k' is int64 in one place and large_string in another"):
        list(session.rows(Dataset.from_rows(rows, num_shards=2).sort("k")))


def test_dates_and_lists_sort(session):
    days = (date(2020, 1, 2), date(1960, 1, 1))
    rows = [{"d": day, "l": members} for day in days for members in ([2], [1, 5], [])]
    by_list = [row["l"] for row in session.rows(Dataset.from_rows(rows).sort(["l", "d"]))]
    assert by_list == [[], [], [1, 5], [1, 5], [2], [2]]
    assert [row["d"].year for row in session.rows(Dataset.from_rows(rows).sort("d"))] == [1960] * 3 + [2020] * 3


def test_a_sort_of_nothing_is_nothing_and_of_an_absent_column_an_error(session):
    assert list(session.rows(Dataset.from_rows([], num_shards=3).sort("k"))) == []
    assert list(session.rows(Dataset.from_rows([{"k": 1}], num_shards=3).filter(col("k") > 1).sort("k"))) == []
    with pytest.raises(SchemaError, match="no row of the input has a column 'nope'"):
        session.count(Dataset.from_rows([{"k": 1}]).sort("nope"))


def test_what_follows_a_sort_sees_its_order(session):
    rows = [{"k": k, "at": at} for at, k in enumerate([3, 1, 2, 1, 3, 2])]
    dataset = Dataset.from_rows(rows, num_shards=3).sort("k", descending=True).distinct(on="k", keep="last")
    assert list(session.rows(dataset)) == [{"k": 3, "at": 4}, {"k": 2, "at": 5}, {"k": 1, "at": 3}]


@pytest.mark.parametrize(
    ("by", "descending", "message"), [([], False, "by is empty"), (["a"], [True, False], "2 entries for 1 columns")]
)
def test_wrong_arguments_are_refused_at_once(by, descending, message):
    with pytest.raises(UsageError, match=message):
        Dataset.from_rows([]).sort(by, descending=descending)
