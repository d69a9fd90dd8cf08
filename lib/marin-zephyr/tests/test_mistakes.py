"""Mistakes of the caller are typed errors, and values that Arrow would change on the way are refused."""

import datetime as dt
import os
import shutil
import subprocess
import sys

import polars as pl
import pytest

from marin_zephyr import Dataset, Session, col
from marin_zephyr.errors import InputError, SchemaError, UsageError, UserCodeError, ZephyrError
from marin_zephyr.shuffle.keys import KEY

ZONED, NAIVE = dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.datetime(2020, 1, 1)


@pytest.fixture
def session(tmp_path):
    with Session(backend="inline", work_dir=tmp_path / "work") as session:
        yield session


def rows(*values):
    return Dataset.from_rows([{"a": value} for value in values])


@pytest.mark.parametrize(
    "build",
    [
        lambda: Dataset.from_files(None),
        lambda: Dataset.from_files([1]),
        lambda: Dataset.from_files(""),
        lambda: Dataset.from_rows([1]),
        lambda: Dataset.from_rows("abc"),
        lambda: rows(1).take(1.5),
        lambda: rows(1).repartition(1.5),
        lambda: rows(1).group_by(1),
        lambda: rows(1).group_by(["a"]),
        lambda: rows(1).group_by("a", "a"),
        lambda: rows(1).group_by("a").agg(n=col("a").sum()),
        lambda: rows(1).join(rows(1), on="a", suffix=""),
        lambda: rows(1).write_jsonl(None),
        lambda: rows(1).write_jsonl(""),
        lambda: rows(1).write_jsonl("a\0b"),
        lambda: Session(backend="inline").run(3),
    ],
)
def test_a_wrong_argument_is_a_usage_error_where_it_is_given(build):
    with pytest.raises(UsageError):
        build()


@pytest.mark.parametrize(
    "values",
    [
        [[1.5, True]],
        [["a", b"a"]],
        [{"b": "x"}, {"b": b"x"}],
        [[{"b": 1.5}], [{"b": True}]],
        [[dt.date(2020, 1, 1), NAIVE]],
        [ZONED, NAIVE],
        [[NAIVE], [ZONED]],
    ],
)
def test_kinds_that_do_not_unify_are_refused_however_deep_they_lie(session, values):
    with pytest.raises(SchemaError, match="column 'a"):
        list(session.rows(rows(*range(len(values))).map(lambda row: {"a": values[row["a"]]})))


@pytest.mark.parametrize("key", [1, None, "a\0b", "\ud800"])
def test_a_key_that_names_no_column_is_refused(session, key):
    with pytest.raises(SchemaError, match="name"):
        list(session.rows(rows(1).map(lambda row: {key: 1})))


def test_a_column_of_the_engines_own_name_is_refused_rather_than_lost(session):
    with pytest.raises(SchemaError, match="rename"):
        list(session.rows(rows(2, 1).map(lambda row: {**row, KEY: "mine"}).sort("a")))


def raising(frame):
    yield frame
    raise KeyError("half-way")


@pytest.mark.parametrize("fn", [lambda frame: None, lambda frame: frame.lazy(), raising, lambda frame: sys.exit(3)])
def test_map_batches_that_gives_no_frames_is_an_error_of_the_function(session, fn):
    with pytest.raises(UserCodeError, match="map_batches"):
        session.count(rows(1).map_batches(fn))


@pytest.mark.parametrize("backend", ["inline", "process"])
def test_a_function_that_exits_is_an_error_of_the_function_in_every_backend(backend):
    def leave(row):
        sys.exit(3)

    with Session(backend=backend, workers=1) as session, pytest.raises(UserCodeError, match="SystemExit"):
        session.count(rows(1).map(leave))


def test_reject_wants_a_boolean(session):
    with pytest.raises(SchemaError, match="Boolean"):
        session.count(rows("x").reject(col("a"), reason="?"))


def test_an_output_that_no_file_system_takes_is_an_error_that_names_it(session, tmp_path):
    with pytest.raises(ZephyrError, match="xxx"):
        session.run(rows(1).write_jsonl(tmp_path / ("x" * 300)))


def test_the_output_lies_where_the_run_began_even_if_a_function_moves(session, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    report = session.run(rows(1, 2).map(lambda row: (os.chdir(tmp_path / "elsewhere"), row)[1]).write_jsonl("out"))
    assert report.files == (tmp_path / "out" / "part-00000.jsonl",)


@pytest.mark.parametrize("change", ["grown", "rewritten", "removed"])
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_an_input_that_changes_under_the_run_is_an_error(session, tmp_path, change, policy):
    first, second = tmp_path / "in" / "a.jsonl", tmp_path / "in" / "b.jsonl"
    first.parent.mkdir()
    for path in (first, second):
        path.write_text('{"x":1}\n')

    def disturb(row):
        if change == "removed":
            second.unlink(missing_ok=True)
        else:
            second.write_text('{"x":2}\n' * (2 if change == "grown" else 1))
            os.utime(second, ns=(1, 1))
        return row

    dataset = Dataset.from_files(tmp_path / "in", shard_bytes=1, on_error=policy).map(disturb)
    with pytest.raises(InputError, match=r"b\.jsonl"):
        session.run(dataset.write_jsonl(tmp_path / "out"))
    assert not list((tmp_path / "out").glob("part-*"))


def test_a_link_that_leads_back_up_gives_no_file_twice(session, tmp_path):
    below = tmp_path / "data" / "below"
    below.mkdir(parents=True)
    (below / "a.jsonl").write_text('{"x":1}\n')
    (below / "up").symlink_to(tmp_path / "data")
    assert session.count(Dataset.from_files(f"{tmp_path}/data/**/*.jsonl")) == 1


def test_arrow_parts_do_not_tell_how_their_rows_came_together(session, tmp_path):
    values = [None if i % 3 == 0 else f"text {i}" for i in range(50)]

    def in_pieces(frame):
        longer = pl.concat([frame, frame.reverse()])
        yield from (longer[i : i + 7].filter(pl.lit(True)) if i + 7 <= 50 else longer[i:50] for i in range(0, 50, 7))

    for name, dataset in (("whole", rows(*values)), ("pieces", rows(*values).map_batches(in_pieces))):
        session.run(dataset.write_arrow(tmp_path / name, compression="none"))
    whole, pieces = ((tmp_path / name / "part-00000.arrow").read_bytes() for name in ("whole", "pieces"))
    assert whole == pieces


@pytest.mark.parametrize("format", ["jsonl", "arrow"])
def test_a_sort_leaves_the_same_manifest_whatever_memory_it_had(tmp_path, monkeypatch, format):
    from marin_zephyr.backends import inline

    dataset = Dataset.from_rows([{"k": i * 37 % 101, "s": None if i % 5 else "x" * (i % 9)} for i in range(400)])
    made = []
    for memory in (1, 1 << 30):
        monkeypatch.setattr(inline, "merge_memory", lambda _, memory=memory: memory)
        out = tmp_path / "out"
        with Session(backend="inline", work_dir=tmp_path / str(memory)) as session:
            ordered = dataset.sort("k").filter(col("k") > 3)
            session.run(ordered.write_arrow(out) if format == "arrow" else ordered.write_jsonl(out))
        made.append({path.name: path.read_bytes() for path in out.iterdir()})
        shutil.rmtree(out)
    assert made[0] == made[1]


FULL = """
import gc, os, resource, sys
from marin_zephyr import Dataset, Session
from marin_zephyr.errors import OutputError

resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
dataset = Dataset.from_rows([{"text": os.urandom(50).hex()} for _ in range(5_000)], num_shards=2)
with Session(backend="inline", work_dir=sys.argv[1]) as session:
    for compression in (None, "gz", "zst") * 2:
        try:
            session.run(dataset.write_jsonl(sys.argv[1] + "/out", compression=compression))
        except OutputError as e:
            print(e)
        gc.collect()
"""


def test_a_file_system_that_takes_no_more_is_an_error_each_time_and_crashes_nothing(tmp_path):
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("cannot write") == 6
