"""Runs: what is committed, what is reused, what is refused, and that every row is accounted for."""

import base64
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from marin_zephyr import Dataset, Session, col
from marin_zephyr.durability import sole_writer
from marin_zephyr.errors import InputError, OutputBusyError, OutputError, SchemaError, UsageError


def write_lines(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def tree(path: Path) -> dict[str, str]:
    """Relative name -> sha256 of every file, hidden ones included."""
    files = [p for p in path.rglob("*") if p.is_file()]
    return {p.relative_to(path).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.fixture
def session(tmp_path):
    with Session(backend="inline", work_dir=tmp_path / "work") as session:
        yield session


@pytest.fixture
def corpus(tmp_path):
    for name in "abc":
        write_lines(tmp_path / "raw" / f"{name}.jsonl", [{"name": name, "n": i} for i in range(10)])
    return Dataset.from_files(tmp_path / "raw", shard_bytes=1)


def test_a_sink_holds_its_parts_and_a_manifest_and_nothing_else(session, corpus, tmp_path):
    report = session.run(corpus.filter(col("n") < 3).write_parquet(tmp_path / "out"))
    assert sorted(tree(tmp_path / "out")) == ["_manifest.json", *(f"part-0000{i}.parquet" for i in range(3))]
    assert [p.name for p in report.files] == [f"part-0000{i}.parquet" for i in range(3)]
    assert pq.read_table(report.files[1]).to_pylist() == [{"name": "b", "n": i} for i in range(3)]
    manifest = json.loads((tmp_path / "out" / "_manifest.json").read_text())
    assert [(f["name"], f["rows"]) for f in manifest["files"]] == [(p.name, 3) for p in report.files]


def test_rows_are_accounted_for(session, corpus, tmp_path):
    write_lines(tmp_path / "raw" / "d.jsonl", [{"name": "d", "n": 0}])
    with (tmp_path / "raw" / "d.jsonl").open("a") as f:
        f.write("broken\n")
    dataset = Dataset.from_files(tmp_path / "raw", on_error="quarantine").filter(col("n") < 5).distinct(on="n")
    report = session.run(dataset.reject(col("n") == 4, reason="four").write_jsonl(tmp_path / "out"))
    counted = {k: report.counters[k] for k in ("rows_in", "rows_out", "filtered", "rejected", "consumed", "produced")}
    assert counted == {"rows_in": 32, "rows_out": 4, "filtered": 15, "rejected": 2, "consumed": 11, "produced": 0}
    assert 32 == 4 + 15 + 2 + 11


def test_an_unchanged_rerun_executes_nothing_and_reports_the_same(session, corpus, tmp_path):
    dataset = corpus.distinct(on="n").map(lambda row: {**row, "m": row["n"] + 1}).write_parquet(tmp_path / "out")
    first, before = session.run(dataset), tree(tmp_path / "out")
    again = session.run(dataset)
    assert (first.executed, again.executed) == (3 + 1 + 3, 0)
    assert (again.files, again.counters, tree(tmp_path / "out")) == (first.files, first.counters, before)


def test_a_rerun_needs_no_work_directory(corpus, tmp_path):
    for expected in (3, 0):
        with Session(backend="inline") as session:
            assert session.run(corpus.write_parquet(tmp_path / "out")).executed == expected


def test_a_changed_function_runs_again_and_only_from_there(session, corpus, tmp_path):
    def run(k):
        return session.run(corpus.distinct(on="n").map(lambda row: {"n": row["n"] + k}).write_parquet(tmp_path / "out"))

    assert [run(1).executed, run(1).executed, run(2).executed] == [7, 0, 3]
    assert pq.read_table(tmp_path / "out" / "part-00000.parquet").to_pylist()[0] == {"n": 2}


def test_a_function_that_only_moved_within_its_file_does_not_run_again(session, corpus, tmp_path):
    def run(source):
        scope = {}
        exec(compile(source, "script.py", "exec"), scope)
        return session.run(corpus.map(scope["f"]).write_parquet(tmp_path / "out")).executed

    assert [run("f = lambda row: row"), run("# a comment\n\nf = lambda row: row")] == [3, 0]


def test_what_is_made_of_a_dataset_is_the_same_to_the_byte_wherever_and_whenever_that_was_written(session, tmp_path):
    for place in ("here", "there"):
        first, second = tmp_path / place / "first", tmp_path / place / "second"
        session.run(Dataset.from_rows([{"x": i % 7} for i in range(40)], num_shards=3).write_parquet(first))
        session.run(Dataset.from_files(first).distinct(on="x").write_parquet(second))
    for name in sorted(p.name for p in (tmp_path / "here" / "second").iterdir()):
        assert (tmp_path / "here/second" / name).read_bytes() == (tmp_path / "there/second" / name).read_bytes(), name


def test_a_part_that_someone_else_changed_in_place_is_seen(session, tmp_path):
    session.run(Dataset.from_rows([{"x": "old"}]).write_jsonl(tmp_path / "first"))
    copy = Dataset.from_files(tmp_path / "first").write_jsonl(tmp_path / "second")
    session.run(copy)
    part = tmp_path / "first" / "part-00000.jsonl"
    part.write_text(part.read_text().replace("old", "new"))
    session.run(copy)
    assert json.loads((tmp_path / "second" / "part-00000.jsonl").read_text()) == {"x": "new"}


def test_a_changed_input_runs_again(session, corpus, tmp_path):
    dataset = corpus.write_parquet(tmp_path / "out")
    session.run(dataset)
    write_lines(tmp_path / "raw" / "b.jsonl", [{"name": "b", "n": 99}])
    assert session.run(dataset).executed == 3
    assert pq.read_table(tmp_path / "out" / "part-00001.parquet").num_rows == 1


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_damaged_output_runs_again(session, corpus, tmp_path, damage):
    dataset = corpus.write_parquet(tmp_path / "out")
    session.run(dataset)
    before = tree(tmp_path / "out")
    part = tmp_path / "out" / "part-00001.parquet"
    part.unlink() if damage == "missing" else part.write_bytes(part.read_bytes()[:-1])
    assert session.run(dataset).executed > 0
    assert tree(tmp_path / "out") == before


def test_parts_of_an_earlier_run_with_more_shards_are_removed(session, corpus, tmp_path):
    session.run(corpus.write_parquet(tmp_path / "out"))
    (tmp_path / "out" / "notes.txt").write_text("mine")
    (tmp_path / "raw" / "c.jsonl").unlink()
    session.run(corpus.write_jsonl(tmp_path / "out"))
    assert sorted(tree(tmp_path / "out")) == ["_manifest.json", "notes.txt", "part-00000.jsonl", "part-00001.jsonl"]


def test_the_old_output_stays_whole_until_the_new_one_is(session, corpus, tmp_path):
    session.run(corpus.write_parquet(tmp_path / "out"))
    before = tree(tmp_path / "out")

    def late(row):
        if row["name"] == "c":
            raise ValueError("the last shard fails")
        return row

    with pytest.raises(Exception, match="the last shard fails"):
        session.run(corpus.map(late).write_parquet(tmp_path / "out"))
    assert {k: v for k, v in tree(tmp_path / "out").items() if not k.startswith(".staging-")} == before


def test_a_failed_run_goes_on_with_the_tasks_that_are_left(session, corpus, tmp_path):
    gate = tmp_path / "gate"

    def wait_for_gate(row):
        if row["name"] == "c" and not gate.exists():
            raise ValueError("not yet")
        return row

    dataset = corpus.map(wait_for_gate).write_parquet(tmp_path / "out")
    with pytest.raises(Exception, match="not yet"):
        session.run(dataset)
    gate.touch()
    assert session.run(dataset).executed == 1


def test_a_run_that_died_while_publishing_is_finished(session, corpus, tmp_path):
    """As a kill between two renames leaves it: some parts moved, some not, no manifest, the task records there."""
    session.run(corpus.write_parquet(tmp_path / "clean"))
    dataset = corpus.write_parquet(tmp_path / "out")
    with Session(backend="inline") as other:
        other._backend = _StopsAfterTasks()
        with pytest.raises(KeyboardInterrupt):
            other.run(dataset)
    (staging,) = (tmp_path / "out").glob(".staging-*")
    (staging / "part-00000.parquet").rename(tmp_path / "out" / "part-00000.parquet")
    assert session.run(dataset).executed == 0
    assert tree(tmp_path / "out") == tree(tmp_path / "clean")


class _StopsAfterTasks:
    """The inline backend, interrupted after the last task and before the commit."""

    num_retries = 0

    def run(self, spec, tasks):
        from marin_zephyr.backends.inline import InlineBackend

        yield from InlineBackend().run(spec, tasks)
        raise KeyboardInterrupt

    def close(self):
        pass


def test_a_dataset_that_a_kill_left_half_published_is_not_read(session, corpus, tmp_path):
    session.run(corpus.write_parquet(tmp_path / "out"))
    (tmp_path / "out" / "_manifest.json").rename(tmp_path / "out" / ".staging-0123")
    for inputs in (tmp_path / "out", f"{tmp_path}/out/*.parquet", [tmp_path / "out" / "part-00000.parquet"]):
        with pytest.raises(InputError, match=r"out: the run that wrote it did not finish"):
            session.count(Dataset.from_files(inputs))
    session.run(corpus.write_parquet(tmp_path / "out"))
    assert session.count(Dataset.from_files(tmp_path / "out")) == 30


def test_a_dataset_cannot_replace_what_it_is_read_from(session, corpus, tmp_path):
    session.run(corpus.write_parquet(tmp_path / "out"))
    before = tree(tmp_path / "out")
    for dataset in (Dataset.from_files(tmp_path / "out"), Dataset.from_files(tmp_path / "out").distinct(on="n")):
        with pytest.raises(UsageError, match="is read and written by one dataset"):
            session.run(dataset.write_parquet(tmp_path / "out"))
    assert tree(tmp_path / "out") == before


def test_a_record_that_a_power_cut_left_half_is_no_record(session, corpus, tmp_path):
    with Session(backend="inline") as other:
        other._backend = _StopsAfterTasks()
        with pytest.raises(KeyboardInterrupt):
            other.run(corpus.write_parquet(tmp_path / "out"))
    (record,) = (tmp_path / "out").glob(".staging-*/task-00001.json")
    record.write_bytes(record.read_bytes()[:20])
    assert session.run(corpus.write_parquet(tmp_path / "out")).executed == 1


def test_files_that_are_not_ours_are_not_overwritten(session, corpus, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part-00000.parquet").write_text("precious")
    with pytest.raises(OutputError, match=r"part-00000\.parquet, which zephyr did not write"):
        session.run(corpus.write_parquet(tmp_path / "out"))
    assert (tmp_path / "out" / "part-00000.parquet").read_text() == "precious"


def test_an_output_that_is_a_file_or_cannot_be_made_is_named(session, corpus, tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(OutputError, match="is a file"):
        session.run(corpus.write_parquet(tmp_path / "out"))
    with pytest.raises(OutputError, match="out/below"):
        session.run(corpus.write_parquet(tmp_path / "out" / "below"))


def test_a_full_disk_is_an_error_that_names_the_output_and_shows_nothing(tmp_path):
    code = f"""
import os, resource, signal
from marin_zephyr import Dataset, Session
from marin_zephyr.errors import OutputError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
rows = [{{"t": os.urandom(50).hex()}} for _ in range(3000)]
for sink in (Dataset.from_rows(rows).write_parquet, Dataset.from_rows(rows).write_jsonl):
    try:
        Session(backend="inline").run(sink({str(tmp_path / "out")!r}))
    except OutputError as e:
        print(e)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.startswith(f"{tmp_path / 'out'}: cannot write") for line in out] == [True, True]
    assert not list((tmp_path / "out").glob("part-*"))


@pytest.mark.parametrize("plan", ["the same", "another"])
def test_a_second_writer_is_refused(session, corpus, tmp_path, plan):
    """Also one with another plan: both would publish into one directory."""
    dataset = corpus.write_parquet(tmp_path / "out")
    other = dataset if plan == "the same" else corpus.filter(col("n") > 1).write_parquet(tmp_path / "out")

    def run_other(row):
        with Session(backend="inline") as second, pytest.raises(OutputBusyError, match="another run is writing"):
            second.run(other)
        return row

    if plan == "the same":
        with sole_writer(tmp_path / "out"):
            run_other({})
    else:
        session.run(corpus.map(run_other).write_parquet(tmp_path / "out"))
    assert session.run(dataset).executed == 3


def test_parts_get_one_schema_whichever_shard_knows_it(session, tmp_path):
    shards = [[], [{"n": 1}], [{"n": 0.5, "late": "x"}], [{"n": None}]]
    for i, rows in enumerate(shards):
        write_lines(tmp_path / "raw" / f"{i}.jsonl", rows or [{"drop": True}])
    dataset = Dataset.from_files(tmp_path / "raw", shard_bytes=1).filter(lambda row: "drop" not in row)
    report = session.run(dataset.write_parquet(tmp_path / "out"))
    tables = [pq.read_table(path) for path in report.files]
    assert len({str(t.schema) for t in tables}) == 1
    assert [t.to_pylist() for t in tables] == [
        [],
        [{"n": 1.0, "late": None}],
        [{"n": 0.5, "late": "x"}],
        [{"n": None, "late": None}],
    ]


def test_shards_whose_types_do_not_unify_are_an_error_and_nothing_is_visible(session, tmp_path):
    write_lines(tmp_path / "raw" / "0.jsonl", [{"n": 1}])
    write_lines(tmp_path / "raw" / "1.jsonl", [{"n": "x"}])
    with pytest.raises(SchemaError, match=r"column 'n' is int64 in one place and .*string"):
        session.run(Dataset.from_files(tmp_path / "raw", shard_bytes=1).write_parquet(tmp_path / "out"))
    assert not [name for name in tree(tmp_path / "out") if not name.startswith(".staging-")]


def test_rejects_of_every_stage_are_kept_with_their_reason(session, tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.jsonl").write_bytes(b'{"n":1}\nbad\n{"n":2}\n')
    dataset = Dataset.from_files(tmp_path / "raw", on_error="quarantine", with_source=True).distinct(on="n")
    report = session.run(dataset.reject(col("n") == 2, reason="two").write_jsonl(tmp_path / "out"))
    entries = [json.loads(line) for path in report.rejects for line in path.read_text().splitlines()]
    assert [(e["file"], e["line"]) for e in entries] == [("a.jsonl", 2), ("a.jsonl", 3)]
    assert base64.b64decode(entries[0]["raw"]) == b"bad"
    assert entries[1]["reason"] == "two"
    assert entries[1]["row"]["n"] == 2
    assert (
        session.run(dataset.reject(col("n") == 2, reason="two").write_jsonl(tmp_path / "out")).rejects == report.rejects
    )


def test_rejects_of_an_earlier_stage_are_those_of_this_run(session, tmp_path):
    for bad in ("first", "the second"):
        (tmp_path / "a.jsonl").write_text(f'{{"n":1}}\n{bad}\n')
        dataset = Dataset.from_files(tmp_path / "a.jsonl", on_error="quarantine").distinct(on="n")
        report = session.run(dataset.write_jsonl(tmp_path / "out"))
        (entry,) = [json.loads(line) for path in report.rejects for line in path.read_text().splitlines()]
        assert base64.b64decode(entry["raw"]) == bad.encode()
    assert session.run(dataset.write_jsonl(tmp_path / "out")).executed == 0


@pytest.mark.parametrize("compression", [None, "gz", "zst"])
def test_json_lines_round_trip(session, tmp_path, compression):
    rows = [{"t": "é\u2028\n", "n": 1, "f": 0.1, "l": [1, None], "d": {"x": None, "y": "z"}, "z": None}] * 3
    session.run(Dataset.from_rows(rows).write_jsonl(tmp_path / "out", compression=compression))
    assert list(session.rows(Dataset.from_files(tmp_path / "out"))) == rows


def test_json_has_no_word_for_nan(session, tmp_path):
    with pytest.raises(SchemaError, match="column 'x' holds NaN"):
        session.run(Dataset.from_rows([{"x": float("nan")}]).write_jsonl(tmp_path / "out"))


def test_a_dataset_feeds_several_others(session, tmp_path):
    rows = Dataset.from_rows([{"n": i} for i in range(4)])
    assert session.count(rows.filter(col("n") > 1)) == 2
    assert session.count(rows) == 4


def test_a_dataset_of_no_rows_gives_an_empty_readable_part(session, tmp_path):
    report = session.run(Dataset.from_rows([]).write_parquet(tmp_path / "out"))
    assert pq.read_table(report.files[0]).num_rows == 0


def test_misuse_is_refused_with_the_fix(session, tmp_path):
    rows = Dataset.from_rows([{"n": 1}])
    sink = rows.write_jsonl(tmp_path / "out")
    with pytest.raises(UsageError, match="ends in no write"):
        session.run(rows)
    with pytest.raises(UsageError, match="take the one from before the write"):
        session.count(sink)
    with pytest.raises(UsageError, match="after a write"):
        sink.map(lambda row: row)
    with pytest.raises(UsageError, match="backend='threads'"):
        Session(backend="threads")
    with pytest.raises(InputError, match="nowhere"):
        session.count(Dataset.from_files(tmp_path / "nowhere"))


def test_explain_names_stages_and_operations(session, corpus, tmp_path):
    text = session.explain(corpus.filter(col("n") > 1).distinct(on="n").write_parquet(tmp_path / "out"))
    assert [line.split(":")[0] for line in text.splitlines() if not line.startswith(" ")] == [
        "0-distinct-keys",
        "1-distinct-pick",
        "2-write",
    ]
    assert "rows where" in text


def test_the_directory_of_the_inputs_is_no_output_directory(session, tmp_path):
    (tmp_path / "raw.jsonl").write_text('{"n": 1}\n')
    with pytest.raises(UsageError, match="is read and written by one dataset"):
        session.run(Dataset.from_files(str(tmp_path / "*.jsonl")).write_parquet(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["raw.jsonl"]
