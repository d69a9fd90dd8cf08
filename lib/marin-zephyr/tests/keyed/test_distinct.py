"""Distinct: against a dict of Python, for any rows, keys and shards."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr import Dataset, Session, planning
from marin_zephyr.keyed import distinct

NUMBERS = st.none() | st.integers(-2, 2) | st.sampled_from([-0.0, 1.0, 0.5, math.nan, math.inf])
ROWS = st.lists(
    st.fixed_dictionaries({}, optional={"n": NUMBERS, "t": st.none() | st.text("ab\0", max_size=1)}), max_size=14
)


@pytest.fixture(scope="module")
def session():
    with pytest.MonkeyPatch.context() as patch, Session(backend="inline") as session:
        patch.setattr(planning, "_PARTITION_BYTES", 1)
        patch.setattr(planning, "_MAX_PARTITIONS", 5)
        yield session


def key(row: dict, on: list[str]) -> tuple:
    """Equal in Python exactly for equal keys; nan is told by its name."""
    return tuple("nan" if isinstance(v := row.get(name), float) and math.isnan(v) else v for name in on)


@settings(max_examples=50)
@given(
    rows=ROWS,
    num_shards=st.integers(1, 4),
    on=st.sampled_from([None, ["n"], ["t", "n"]]),
    keep=st.sampled_from(["first", "last"]),
)
def test_one_row_of_each_key_stays_in_its_place(session, rows, num_shards, on, keep):
    rows = [{"n": None, **row, "at": at} for at, row in enumerate([{"n": 0, "t": "a"}, *rows])]
    if on is None:
        for row in rows:
            del row["at"]
    kept: dict[tuple, int] = {}
    for at, row in enumerate(rows):
        if keep == "last" or key(row, on or ["n", "t"]) not in kept:
            kept[key(row, on or ["n", "t"])] = at
    expected = [key(rows[at], ["n", "t", "at"]) for at in sorted(kept.values())]
    got = session.rows(Dataset.from_rows(rows, num_shards=num_shards).distinct(on=on, keep=keep))
    assert [key(row, ["n", "t", "at"]) for row in got] == expected


@pytest.mark.parametrize("keep", ["first", "last"])
@pytest.mark.parametrize("remembered", [8, 1 << 10])
def test_batches_of_a_shard_repeat_each_other_whether_that_is_remembered_or_not(session, monkeypatch, keep, remembered):
    rows = [{"k": i % 40, "at": i} for i in range(400)]
    monkeypatch.setattr(distinct, "_RECENT", remembered)
    dataset = Dataset.from_rows(rows, num_shards=2).map_batches(lambda b: b, batch_rows=10).distinct(on="k", keep=keep)
    expected = [*range(40)] if keep == "first" else [*range(360, 400)]
    assert [row["at"] for row in session.rows(dataset)] == expected


def test_repeats_within_a_shard_are_dropped_before_they_are_written(session, tmp_path):
    rows = [{"k": i % 5} for i in range(100)]
    report = session.run(Dataset.from_rows(rows, num_shards=2).distinct(on="k").write_jsonl(tmp_path / "out"))
    assert [(s.rows_in, s.rows_out) for s in report.stages] == [(100, 10), (10, 5), (10, 5)]
    assert report.counters["rows_in"] == report.counters["rows_out"] + report.counters["consumed"]


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(0, 30), max_size=6), max_size=6))
def test_no_digest_is_taken_for_seen_that_was_not(batches):
    seen: set[int] = set()
    recent = distinct._Recent(8)
    for batch in batches:
        digests = np.array([[n // 4, n % 4] for n in batch], dtype=np.uint64).reshape(-1, 2)
        found = recent.seen(digests)
        assert all(n in seen for n, known in zip(batch, found, strict=True) if known)
        recent.add(digests)
        assert not batch or recent.seen(digests)[-1]
        seen |= {*batch}


def test_rows_without_columns_are_equal(session):
    dataset = Dataset.from_rows([{}, {}, {}], num_shards=2).distinct()
    assert session.count(dataset) == 1
    assert session.count(Dataset.from_rows([{"a": None}, {}, {"b": None}]).distinct()) == 1
