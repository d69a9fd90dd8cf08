"""Positional operations under every sink and before all keyed work; and whose rules for bad records hold after them."""

import json
from itertools import groupby
from pathlib import Path

import polars as pl
import pytest

from marin_zephyr import Dataset, Session, agg, col
from marin_zephyr.errors import TooManyBadRecordsError, UsageError

ROWS = [{"n": (i * 7) % 10, "t": f"text {i}"} for i in range(40)]
OPERATIONS = {
    "take": lambda rows: rows.take(13),
    "take all": lambda rows: rows.take(99),
    "take none": lambda rows: rows.take(0),
    "sample": lambda rows: rows.sample(0.5, seed=3),
    "repartition": lambda rows: rows.repartition(3),
    "repartition to more than rows": lambda rows: rows.repartition(50),
    "union": lambda rows: rows.union(rows.filter(col("n") > 4)),
    "chain": lambda rows: rows.repartition(2).take(20).sample(0.9, seed=1).repartition(3).take(9),
}
READERS = {
    "parquet": lambda path: pl.read_parquet(path).to_dicts(),
    "arrow": lambda path: pl.read_ipc(path).to_dicts(),
    "jsonl": lambda path: [json.loads(line) for line in path.read_text().splitlines()],
}


@pytest.fixture(scope="module")
def session():
    with Session(backend="inline") as opened:
        yield opened


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("format", READERS)
def test_every_sink_holds_the_rows_of_every_operation(session, tmp_path, operation, format) -> None:
    dataset = OPERATIONS[operation](Dataset.from_rows(ROWS, num_shards=4))
    expected = list(session.rows(dataset))
    report = session.run(getattr(dataset, f"write_{format}")(tmp_path / "out"))
    assert [row for file in report.files for row in READERS[format](file)] == expected
    assert report.counters["rows_out"] == session.count(dataset) == len(expected)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_keyed_work_takes_the_rows_of_every_operation(session, operation) -> None:
    dataset = OPERATIONS[operation](Dataset.from_rows(ROWS, num_shards=4))
    rows = list(session.rows(dataset))
    grouped = {row["n"]: row["num"] for row in session.rows(dataset.group_by("n").agg(num=agg.count()))}
    ordered = sorted(rows, key=lambda row: row["n"])
    assert grouped == {n: len(list(same)) for n, same in groupby(ordered, key=lambda row: row["n"])}
    assert list(session.rows(dataset.sort("n"))) == ordered
    firsts = {row["n"]: row for row in reversed(rows)}
    assert list(session.rows(dataset.distinct(on="n"))) == [row for row in rows if firsts[row["n"]] is row]
    named = Dataset.from_rows([{"n": n, "name": f"number {n}"} for n in range(5)])
    joined = list(session.rows(dataset.join(named, on="n")))
    assert joined == [{**row, "name": f"number {row['n']}"} for row in rows if row["n"] < 5]


def test_another_number_of_shards_is_another_result(session, tmp_path) -> None:
    rows = Dataset.from_rows(ROWS, num_shards=4)
    for n in (3, 50, 2):
        assert list(session.rows(rows.repartition(n))) == ROWS
        assert len(session.run(rows.repartition(n).write_jsonl(tmp_path / "out")).files) == n


def dirty(path: Path, num_bad: int, **options) -> Dataset:
    path.write_text('{"n":1}\n' + "bad\n" * num_bad)
    return Dataset.from_files(path, **options)


def test_a_union_has_one_limit_of_bad_records_that_all_who_set_one_agree_on(session, tmp_path) -> None:
    limited = dirty(tmp_path / "a.jsonl", 3, on_error="skip", max_bad=3)
    other = dirty(tmp_path / "b.jsonl", 1, on_error="skip", max_bad=1)
    unlimited = Dataset.from_rows([{"n": 2}], on_error="skip")
    with pytest.raises(UsageError, match="union: max_bad is 1 in one dataset and 3 in another; give all the same"):
        session.count(limited.union(other))
    assert session.count(unlimited.union(limited)) == 2
    strict = dirty(tmp_path / "c.jsonl", 4, on_error="skip", max_bad=3)
    with pytest.raises(TooManyBadRecordsError):
        session.count(unlimited.union(strict))


@pytest.mark.parametrize("small", [True, False])
def test_a_join_refuses_each_sides_records_by_that_sides_rule(session, tmp_path, monkeypatch, small) -> None:
    monkeypatch.setattr("marin_zephyr.keyed.joining._SMALL_BYTES", 1 << 20 if small else -1)
    left = dirty(tmp_path / "a.jsonl", 5, on_error="quarantine")
    right = dirty(tmp_path / "b.jsonl", 3, on_error="skip", max_bad=3)
    report = session.run(left.join(right, on="n").write_jsonl(tmp_path / "out"))
    assert report.counters["rejected"] == 8
    (kept,) = report.rejects
    assert len(kept.read_text().splitlines()) == 5
    strict = dirty(tmp_path / "c.jsonl", 4, on_error="skip", max_bad=3)
    with pytest.raises(TooManyBadRecordsError):
        session.count(left.join(strict, on="n"))
    refusing = left.join(right, on="n").reject(col("n") == 1, reason="one")
    assert session.run(refusing.write_jsonl(tmp_path / "out")).counters["rejected"] == 9
    assert json.loads((tmp_path / "out" / "part-00000.jsonl").read_text() or "[]") == []
