"""Reports: the numbers of a run as a table and as JSON, stragglers and skew by name, and the limit on bad records."""

import json
import os
import signal
import threading
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr import Dataset, Session, agg
from marin_zephyr.counters import count
from marin_zephyr.errors import RejectRow, TooManyBadRecordsError, UsageError
from marin_zephyr.outputs import Counted
from marin_zephyr.planning import plan
from marin_zephyr.records import TaskRecord
from marin_zephyr.reporting.refusals import add_refused, merge_refused
from marin_zephyr.reporting.reports import RunReport, StageReport, summarize


@pytest.fixture
def session(tmp_path):
    with Session(backend="inline", work_dir=tmp_path / "work") as session:
        yield session


@pytest.fixture
def raw(tmp_path):
    """Three files: of ten rows each, the first with two bad lines, the third with one."""
    (tmp_path / "raw").mkdir()
    for name, bad in (("a", "bad\n\xff\n"), ("b", ""), ("c", "bad\n")):
        text = "".join(f'{{"file":"{name}","n":{i}}}\n' for i in range(10)) + bad
        (tmp_path / "raw" / f"{name}.jsonl").write_bytes(text.encode("latin-1"))
    return tmp_path / "raw"


def refuse_nine(row):
    count("seen")
    if row["n"] == 9:
        raise RejectRow("nine: too many")
    return row


def test_a_report_holds_bytes_refusals_by_kind_libraries_and_times(session, raw, tmp_path):
    dataset = Dataset.from_files(raw, on_error="quarantine", shard_bytes=1).map(refuse_nine)
    report = session.run(dataset.distinct(on="n").write_jsonl(tmp_path / "out"))
    told = json.loads(json.dumps(report.to_json()))
    keys, _, write = told["stages"]
    assert keys["bytes_in"] == sum(p.stat().st_size for p in raw.iterdir())
    assert write["bytes_out"] == sum(p.stat().st_size for p in report.files)
    assert keys["bytes_exchanged"] > 0
    assert (keys["rows_in"], keys["rejected"], keys["executed"]) == (33, 6, 3)
    assert {kind: entry["count"] for kind, entry in told["refused"].items()} == {
        "not JSON": 2,
        "not UTF-8": 1,
        "nine": 3,
    }
    assert told["refused"]["not UTF-8"]["example"].startswith("a.jsonl, line 12, byte offset 194: not UTF-8: byte 0xff")
    assert told["counters"]["seen"] == 30
    assert {"python", "polars", "marin-zephyr"} <= set(told["libraries"])
    assert told["began"].endswith("+00:00")
    assert keys["timings"]["slowest"]["input"].endswith(".jsonl")


def test_a_run_that_reuses_all_reports_the_same_and_no_times(session, raw, tmp_path):
    dataset = Dataset.from_files(raw, on_error="skip").distinct(on="n").write_jsonl(tmp_path / "out")
    first, again = session.run(dataset), session.run(dataset)
    assert again.refused == first.refused
    assert [s.lasting() for s in again.stages] == [s.lasting() for s in first.stages]
    assert [(s.executed, s.seconds, s.timings) for s in again.stages] == [(0, 0.0, {})] * 3
    assert [line.split()[-1] for line in str(again).splitlines()[1:4]] == ["reused"] * 3


def test_the_table_has_a_line_a_stage_of_at_most_80_columns_and_aligned(session, raw, tmp_path):
    dataset = Dataset.from_files(raw, on_error="skip", shard_bytes=1).distinct(on="n").write_jsonl(tmp_path / "out")
    head, *stages = str(session.run(dataset)).splitlines()[:4]
    assert head.split("  ")[0] == "stage"
    assert [line.split()[:4] for line in stages] == [
        ["0-distinct-keys", "3/3", "33", "30"],
        ["1-distinct-pick", "1/1", "30", "10"],
        ["2-write", "3/3", "30", "10"],
    ]
    assert all(len(line) == len(head) <= 80 for line in stages)


def stage_and_records(tmp_path, seconds, rows=None):
    files = [tmp_path / f"{i:02}.jsonl" for i in range(len(seconds))]
    for file in files:
        file.write_text('{"n":1}\n')
    dataset = Dataset.from_files(tmp_path, shard_bytes=1)
    (stage,) = plan(dataset, output=Counted(), work_dir=tmp_path / "work").stages
    counts = {"passed": 0, "filtered": 0, "rejected": 0, "consumed": 0, "produced": 0}
    records = [
        TaskRecord(
            index=i,
            files=(),
            operations=(("read", {**counts, "rows_in": n, "passed": n, "rows_out": n}),),
            counters={},
            absent={},
            rejects=0,
            seconds=s,
        )
        for i, (s, n) in enumerate(zip(seconds, rows or [1] * len(seconds), strict=True))
    ]
    return stage, records


def run_report(*stages: StageReport) -> RunReport:
    return RunReport(files=(), rejects=(), counters={}, stages=stages, executed=1, seconds=1.0)


def test_a_straggler_is_named_with_its_input(tmp_path):
    stage, records = stage_and_records(tmp_path, [1.0, 1.2, 9.0, 0.9])
    report = summarize(stage, records, ran=range(4), seconds=9)
    assert [(s["task"], s["seconds"]) for s in report.timings["stragglers"]] == [(2, 9.0)]
    (line,) = [line for line in str(run_report(report)).splitlines() if "slow" in line]
    assert line.endswith("02.jsonl")
    assert "9.0 s, 9 x the median" in line


def test_tasks_of_milliseconds_are_no_stragglers_and_tasks_of_an_earlier_run_have_no_times(tmp_path):
    stage, records = stage_and_records(tmp_path, [0.001, 0.4, 0.001, 99.0])
    report = summarize(stage, records, ran=[0, 1, 2], seconds=1)
    assert report.timings["stragglers"] == []
    assert report.timings["slowest"]["task"] == 1


def test_a_task_whose_worker_died_is_told_as_tried_again(tmp_path):
    flag = tmp_path / "died"

    def die_once(row):
        if not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return row

    with Session(workers=1) as session:
        report = session.run(Dataset.from_rows([{"n": 1}]).map(die_once).write_jsonl(tmp_path / "out"))
    assert report.stages[0].retried == 1
    assert "  0-write: 1 tasks were tried again: their workers died" in str(report).splitlines()


def test_the_skew_of_an_exchange_is_told(session, tmp_path):
    rows = [{"k": "hot"}] * 90 + [{"k": str(i)} for i in range(10)]
    report = session.run(Dataset.from_rows(rows).distinct(on="k").write_jsonl(tmp_path / "out"))
    pick = replace(report.stages[1], skew={"partitions": 4, "largest": 90, "mean": 25.0})
    keys = replace(report.stages[0], hot_keys=({"key": "'hot'", "rows": 90, "share": 0.9},))
    text = str(run_report(keys, pick))
    assert "1-distinct-pick: largest of 4 partitions: 90 rows, 3.6 x the mean" in text
    assert "0-distinct-keys: hot key 'hot': 90% of the rows exchanged" in text


def test_a_hot_key_is_summed_over_the_tasks_that_sent_it(tmp_path):
    stage, records = stage_and_records(tmp_path, [0.1, 0.1], rows=[60, 40])
    sent = (("0a", "'a'", 30), ("0b", "'b'", 4)), (("0a", "'a'", 20),)
    records = [replace(record, frequent=frequent) for record, frequent in zip(records, sent, strict=True)]
    report = summarize(stage, records, ran=[0, 1], seconds=1)
    assert report.hot_keys == ({"key": "'a'", "rows": 50, "share": 0.5},)


@settings(max_examples=50)
@given(st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 5)), max_size=5), max_size=4))
def test_refusals_merge_to_the_sums_with_the_first_example(tasks):
    totals = {}
    for number, task in enumerate(tasks):
        of_task = {}
        for i, (kind, n) in enumerate(task):
            add_refused(of_task, kind, num_records=n, example=f"{number}.{i}")
        merge_refused(totals, of_task)
    flat = [(kind, n, f"{number}.{i}") for number, task in enumerate(tasks) for i, (kind, n) in enumerate(task)]
    expected = {
        kind: {"count": sum(n for k, n, _ in flat if k == kind), "example": next(e for k, _, e in flat if k == kind)}
        for kind, _, _ in flat
    }
    assert totals == expected


def test_kinds_of_refusals_do_not_grow_without_bound():
    totals = {}
    for i in range(1000):
        add_refused(totals, f"kind {i}", num_records=1, example="x" * 1000)
    assert len(totals) == 51
    assert totals["other reasons"]["count"] == 950
    assert len(totals["kind 0"]["example"]) == 300


@pytest.mark.parametrize("on_error", ["skip", "quarantine"])
@pytest.mark.parametrize(("max_bad", "fails"), [(2, True), (3, False), (0.05, True), (0.1, False), (1.0, True)])
def test_more_bad_records_than_allowed_fail_the_run_and_publish_nothing(
    session, raw, tmp_path, on_error, max_bad, fails
):
    dataset = Dataset.from_files(raw, on_error=on_error, max_bad=max_bad, shard_bytes=1).write_jsonl(tmp_path / "out")
    if not fails:
        assert session.run(dataset).counters["rejected"] == 3
        return
    for _ in range(2):  # and again, when the tasks are done
        with pytest.raises(TooManyBadRecordsError) as caught:
            session.run(dataset)
        assert f"more than max_bad={int(max_bad) if max_bad >= 1 else max_bad} allows" in str(caught.value)
        assert "1 x not UTF-8, as in a.jsonl, line 12, byte offset 194: not UTF-8: byte 0xff" in str(caught.value)
        assert not list((tmp_path / "out").glob("[!.]*"))


def test_a_number_of_bad_records_is_checked_as_tasks_finish(session, raw, tmp_path):
    seen = []

    def note(row):
        seen.append(row["file"])
        return row

    dataset = Dataset.from_files(raw, on_error="skip", max_bad=1, shard_bytes=1).map(note)
    with pytest.raises(TooManyBadRecordsError, match="2 records were refused"):
        session.run(dataset.write_jsonl(tmp_path / "out"))
    assert set(seen) == {"a"}


def test_too_many_bad_records_end_the_tasks_that_still_run(raw, tmp_path):
    """The second worker waits for ever over its first row, and its first waits until it does."""
    pipe, note = tmp_path / "pipe", tmp_path / "pid"
    os.mkfifo(pipe)

    def wait(row):
        if row["file"] == "a" and row["n"] == 0:
            pipe.read_text()
        elif row["file"] == "b":
            note.write_text(str(os.getpid()))
            pipe.write_text("it waits")
            threading.Event().wait()
        return row

    dataset = Dataset.from_files(raw, on_error="skip", max_bad=1, shard_bytes=1).map(wait)
    with Session(workers=2) as session:
        with pytest.raises(TooManyBadRecordsError):
            session.run(dataset.write_jsonl(tmp_path / "out"))
        with pytest.raises(ProcessLookupError):
            os.kill(int(note.read_text()), 0)


def test_rows_that_operations_refuse_count_too_also_in_later_stages(session, raw, tmp_path):
    dataset = Dataset.from_files(raw, on_error="skip", max_bad=5, shard_bytes=1)
    with pytest.raises(TooManyBadRecordsError, match="0-write: 6 records"):
        session.run(dataset.map(refuse_nine).write_jsonl(tmp_path / "a"))
    grouped = dataset.group_by("file").agg(n=agg.max("n"))
    assert session.run(grouped.map(lambda row: row).write_jsonl(tmp_path / "b")).counters["rejected"] == 3

    def refuse(row):
        raise RejectRow("all")

    with pytest.raises(TooManyBadRecordsError, match="1-write: 3 of 3"):
        session.run(
            Dataset.from_files(raw, on_error="skip", max_bad=0.9, shard_bytes=1)
            .group_by("file")
            .agg(n=agg.max("n"))
            .map(refuse)
            .write_jsonl(tmp_path / "c")
        )


def test_a_lower_limit_holds_for_what_is_committed_too(session, raw, tmp_path):
    session.run(Dataset.from_files(raw, on_error="skip").write_jsonl(tmp_path / "out"))
    with pytest.raises(TooManyBadRecordsError):
        session.run(Dataset.from_files(raw, on_error="skip", max_bad=2).write_jsonl(tmp_path / "out"))
    allowed = Dataset.from_files(raw, on_error="skip", max_bad=3).write_jsonl(tmp_path / "out")
    assert session.run(allowed).executed == 0  # the limit changes no byte


@pytest.mark.parametrize(("max_bad", "on_error"), [(-1, "skip"), (1.5, "skip"), (10, "raise")])
def test_a_limit_that_means_nothing_is_refused(max_bad, on_error):
    with pytest.raises(UsageError, match=f"max_bad={max_bad}"):
        Dataset.from_files("a.jsonl", on_error=on_error, max_bad=max_bad)
