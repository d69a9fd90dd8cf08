"""Reasons and explanations: what changed since an earlier run, what is done, and what a plan would do."""

import json
import logging

import pytest

from marin_zephyr import Dataset, Session, agg, col


@pytest.fixture
def again(caplog):
    """What the log says of stages that run again: stage -> reasons."""
    caplog.set_level(logging.INFO, logger="marin_zephyr")

    def told():
        lines = [r.getMessage() for r in caplog.records if ": runs again: " in r.getMessage()]
        caplog.clear()
        return dict(line.split(": runs again: ") for line in lines)

    return told


@pytest.fixture
def raw(tmp_path):
    (tmp_path / "raw").mkdir()
    for name in "abc":
        (tmp_path / "raw" / f"{name}.jsonl").write_text('{"n":1}\n{"n":2}\n')
    return tmp_path / "raw"


def run(tmp_path, dataset, *, work_dir=None):
    with Session(backend="inline", work_dir=work_dir) as session:
        return session.run(dataset.write_jsonl(tmp_path / "out"))


def test_the_first_run_has_no_reason_and_an_unchanged_one_none_either(again, raw, tmp_path):
    for _ in range(2):
        run(tmp_path, Dataset.from_files(raw))
    assert again() == {}


def test_files_that_are_new_gone_or_changed_are_named(again, raw, tmp_path):
    run(tmp_path, Dataset.from_files(raw))
    (raw / "a.jsonl").unlink()
    (raw / "b.jsonl").write_text('{"n":1}\n')
    (raw / "d.jsonl").write_text('{"n":1}\n')
    run(tmp_path, Dataset.from_files(raw))
    assert again() == {"write": "new: d.jsonl; gone: a.jsonl; changed: b.jsonl"}


def test_many_files_are_counted(again, raw, tmp_path):
    run(tmp_path, Dataset.from_files(raw))
    for i in range(9):
        (raw / f"d{i}.jsonl").write_text('{"n":1}\n')
    run(tmp_path, Dataset.from_files(raw))
    assert again() == {"write": "new: d0.jsonl, d1.jsonl, d2.jsonl and 6 more"}


@pytest.mark.parametrize(
    ("before", "now", "reason"),
    [
        (lambda d: d.filter(col("n") > 1), lambda d: d.filter(col("n") > 2), ' -> filter([(col("n")) > (dyn int: 2)])'),
        (lambda d: d, lambda d: d.filter(col("n") > 2), 'filter([(col("n")) > (dyn int: 2)]) is new'),
        (lambda d: d.select("n").filter(col("n") > 2), lambda d: d.filter(col("n") > 2), 'select(col("n")) is gone'),
    ],
)
def test_operations_are_compared_one_by_one(again, raw, tmp_path, before, now, reason):
    run(tmp_path, before(Dataset.from_files(raw)))
    run(tmp_path, now(Dataset.from_files(raw)))
    (told,) = again().values()
    assert told.endswith(reason)


def test_a_function_of_the_same_name_and_other_code_is_named(again, raw, tmp_path):
    for k in (1, 2):

        def clean(row, k=k):
            return {"n": row["n"] + k}

        run(tmp_path, Dataset.from_files(raw).map(clean))
    assert again() == {"write": "map(clean) is another function now, or reaches other code"}


def test_parameters_are_named(again, raw, tmp_path):
    run(tmp_path, Dataset.from_files(raw))
    run(tmp_path, Dataset.from_files(raw, on_error="skip", with_source=True, shard_bytes=1))
    assert again() == {"write": "with_source: False -> True; on_error: raise -> skip"}
    run(tmp_path, Dataset.from_files(raw, on_error="skip", with_source=True))
    assert again() == {"write": "cut into 1 tasks, not 3"}
    with Session(backend="inline") as session:
        zipped = Dataset.from_files(raw, on_error="skip", with_source=True).write_jsonl(
            tmp_path / "out", compression="gz"
        )
        session.run(zipped)
    assert again() == {"write": "compression: None -> gz"}


def test_a_library_is_named_with_both_versions(again, raw, tmp_path, monkeypatch):
    from marin_zephyr import fingerprints

    versions = fingerprints.library_versions()
    run(tmp_path, Dataset.from_files(raw))
    for module in ("planning", "reporting.reasons", "fingerprints"):
        monkeypatch.setattr(f"marin_zephyr.{module}.library_versions", lambda: {**versions, "polars": "99.0"})
    run(tmp_path, Dataset.from_files(raw))
    assert again() == {"write": f"polars {versions['polars']} -> 99.0"}


def test_a_lost_part_is_named_and_stages_that_were_not_kept_say_so(again, raw, tmp_path):
    dataset = Dataset.from_files(raw).distinct(on="n")
    run(tmp_path, dataset)
    (tmp_path / "out" / "part-00000.jsonl").unlink()
    run(tmp_path, dataset)
    told = again()
    assert told["3/3 write"] == f"part-00000.jsonl is gone from {tmp_path / 'out'}"
    assert told["1/3 distinct-keys"] == "what it had committed was not kept: pass work_dir"


def test_stages_behind_a_changed_one_say_so(again, raw, tmp_path):
    for n in (1, 0):
        run(tmp_path, Dataset.from_files(raw).filter(col("n") > n).group_by("n").agg(k=agg.count()))
    told = again()
    assert list(told) == ["1/2 group-partial", "2/2 write"]
    assert told["2/2 write"] == "the stage that it reads from changed"


def test_another_dataset_in_the_work_directory_is_no_reason(again, raw, tmp_path):
    with Session(backend="inline", work_dir=tmp_path / "work") as session:
        session.count(Dataset.from_files(raw).distinct(on="n"))
        session.count(Dataset.from_rows([{"x": 1}]).map(lambda row: row).distinct(on="x"))
        assert again() == {}
        session.count(Dataset.from_files(raw).filter(col("n") > 1).distinct(on="n"))
        assert list(again()) == ["1/3 distinct-keys"]


def test_an_explanation_tells_what_is_read_done_exchanged_and_written(raw, tmp_path):
    dataset = (
        Dataset.from_files(raw, on_error="skip", max_bad=7, shard_bytes=1).filter(lambda row: True).distinct(on="n")
    )
    with Session(backend="inline") as session:
        told = session.explanation(dataset.write_parquet(tmp_path / "out")).to_json()
        text = session.explain(dataset.write_parquet(tmp_path / "out"))
    keys, pick, write = told["stages"]
    assert (keys["reads"]["files"], keys["reads"]["formats"], keys["reads"]["max_bad"]) == (3, ["jsonl"], 7)
    assert keys["reads"]["bytes"] == sum(p.stat().st_size for p in raw.iterdir())
    assert (keys["output"]["kind"], keys["output"]["partitions"]) == ("KeptWithKeys", 1)
    assert "strategy" in keys["output"]
    assert pick["operations"] == ("distinct(keep=first)",)
    assert (write["output"]["format"], write["output"]["compression"]) == ("parquet", "zstd")
    assert {s["state"] for s in told["stages"]} == {"needed"}
    assert max(map(len, text.replace(str(tmp_path), "").splitlines())) <= 80
    assert json.loads(json.dumps(told)) is not None


def test_an_explanation_tells_what_is_done_and_why_the_rest_is_not(raw, tmp_path):
    def states(dataset):
        with Session(backend="inline", work_dir=tmp_path / "work") as session:
            stages = session.explanation(dataset.write_jsonl(tmp_path / "out")).stages
        return [(s.state, s.reasons) for s in stages]

    dataset = Dataset.from_files(raw).distinct(on="n")
    run(tmp_path, dataset, work_dir=tmp_path / "work")
    assert states(dataset) == [("not needed", ()), ("not needed", ()), ("done", ())]
    changed = dataset.select("n")
    assert states(changed) == [("done", ()), ("done", ()), ("needed", ('select(col("n")) is new',))]
    (raw / "b.jsonl").write_text('{"n":7}\n')
    assert states(dataset)[0] == ("needed", ("changed: b.jsonl",))


def test_an_unfinished_stage_tells_how_many_tasks_are_left(raw, tmp_path):
    def fails_on_the_last(row):
        if row["n"] == 99:
            raise ValueError("not yet")
        return row

    (raw / "d.jsonl").write_text('{"n":99}\n')
    dataset = Dataset.from_files(raw, shard_bytes=1).map(fails_on_the_last).write_jsonl(tmp_path / "out")
    with Session(backend="inline") as session:
        with pytest.raises(Exception, match="not yet"):
            session.run(dataset)
        assert "will run the 1 tasks that are left; 3 are done" in session.explain(dataset)


def test_an_exchange_that_is_committed_tells_its_measured_size(raw, tmp_path):
    dataset = Dataset.from_files(raw).distinct(on="n")
    with Session(backend="inline", work_dir=tmp_path / "work") as session:
        report = session.run(dataset.write_jsonl(tmp_path / "out"))
        told = session.explanation(dataset.write_jsonl(tmp_path / "out")).to_json()
    assert told["stages"][0]["output"]["bytes"] == report.stages[0].bytes_exchanged
