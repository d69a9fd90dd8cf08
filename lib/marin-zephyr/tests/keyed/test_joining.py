"""Joins: names, types, hot keys, and the same bytes in whatever way they are computed."""

import hashlib
from pathlib import Path

import polars as pl
import pytest

from marin_zephyr import Dataset, Session, agg, planning
from marin_zephyr.backends import inline
from marin_zephyr.errors import SchemaError, UsageError
from marin_zephyr.keyed import joining, matching

BOTH = pytest.mark.parametrize("small", [False, True])


def files_of(path: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(path.glob("part-*"))}


@BOTH
def test_groups_that_are_joined_lose_no_key(small, run):
    rows = [{"k": f"key {i * 7 % 667:03d}", "i": i} for i in range(2001)]
    source = Dataset.from_rows(rows, num_shards=4)
    counts, first = source.group_by("k").agg(n=agg.count()), source.group_by("k").agg(first=agg.min("i"))
    got = run(counts.join(first.sort("k", descending=True), on="k"), many=True, small=small)
    assert len(got) == 667
    assert {row["k"]: (row["n"], row["first"]) for row in got} == {rows[i]["k"]: (3, i) for i in range(667)}


@BOTH
def test_a_number_equals_a_number_of_another_type_and_key_columns_may_differ_in_name(small, run):
    left = Dataset.from_rows([{"id": 1, "x": "a"}, {"id": 2, "x": "b"}])
    right = Dataset.from_rows([{"key": 1.0, "y": "c"}, {"key": 2.5, "y": "d"}])
    got = run(left.join(right, left_on="id", right_on="key", how="left"), small=small)
    assert got == [{"id": 1, "x": "a", "y": "c"}, {"id": 2, "x": "b", "y": None}]
    full = run(left.join(right, left_on="id", right_on="key", how="full"), small=small)
    assert [row["id"] for row in full] == [1.0, 2.0, 2.5]


@BOTH
def test_keys_of_kinds_that_are_never_equal_are_an_error_that_names_both(small, run):
    # One row a side, so that no partition sees both.
    for number in range(4):
        left, right = Dataset.from_rows([{"id": number}] * 3, num_shards=3), Dataset.from_rows([{"key": "1"}] * 3)
        with pytest.raises(SchemaError, match=r"'id' of the left is int64, 'key' of the right is .*string"):
            run(left.join(right, left_on="id", right_on="key"), small=small, many=True)


@BOTH
def test_a_side_of_nothing_but_keys_multiplies_rows(small, run):
    left = Dataset.from_rows([{"k": 1, "x": "a"}, {"k": 2, "x": "b"}, {"k": 1, "x": "c"}])
    right = Dataset.from_rows([{"k": 1}, {"k": 3}, {"k": 1}])
    for how, expected in [("inner", "aacc"), ("left", "aaccb" if not small else "aabcc")]:
        assert "".join(row["x"] for row in run(left.join(right, on="k", how=how), small=small)) == expected


def test_integers_that_a_float_key_column_cannot_hold_are_an_error(run):
    left, right = Dataset.from_rows([{"k": 2**53 + 1}]), Dataset.from_rows([{"k": 0.5}])
    with pytest.raises(SchemaError, match="'k' cannot become double without loss"):
        run(left.join(right, on="k", how="full"))
    assert run(left.join(right, on="k", how="left")) == [{"k": 2**53 + 1}]


@BOTH
def test_clashing_names_get_the_suffix_and_a_second_clash_is_an_error(small, run):
    left, right = Dataset.from_rows([{"k": 1, "x": 1, "x_right": 2}]), Dataset.from_rows([{"k": 1, "x": 3}])
    with pytest.raises(SchemaError, match="'x' is in both, and there is a 'x_right' already"):
        run(left.join(right, on="k"), small=small)
    assert run(left.join(right, on="k", suffix="2"), small=small) == [{"k": 1, "x": 1, "x_right": 2, "x2": 3}]


def test_a_column_that_only_some_rows_of_the_left_have_never_changes_its_name_silently(run):
    left, right = Dataset.from_rows([{"k": 1}, {"k": 1, "x": 1}], num_shards=2), Dataset.from_rows([{"k": 1, "x": 3}])
    for batches in (left, left.map_batches(lambda frame: frame, batch_rows=1)):
        with pytest.raises(SchemaError, match="column 'x' of the right is in some batches of the left"):
            run(batches.join(right, on="k"), small=True)
    both = [{"k": 1, "x": None, "x_right": 3}, {"k": 1, "x": 1, "x_right": 3}]
    assert run(left.join(right, on="k"), small=False) == both
    assert run(left.select("k", "x").join(right, on="k"), small=True) == both


@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti"])
def test_a_key_hot_on_both_sides_is_joined_in_little_memory(how, run, monkeypatch):
    spooled = []
    with_spool = matching._with_spool

    def watched(pieces, spool, **arguments):
        spooled.append(spool.is_null)
        return with_spool(pieces, spool, **arguments)

    monkeypatch.setattr(matching, "_with_spool", watched)
    left = [{"k": k, "i": i} for i, k in enumerate([1, None] + [2] * 20 + [3])]
    right = [{"k": k, "j": j} for j, k in enumerate([2] * 300 + [None] * 300 + [4])]
    dataset = Dataset.from_rows(left, num_shards=3).map_batches(lambda frame: frame, batch_rows=5)
    other = Dataset.from_rows(right, num_shards=3).map_batches(lambda frame: frame, batch_rows=5)
    got = run(dataset.join(other, on="k", how=how), memory=4000)
    assert spooled == ([True, False] if how in ("right", "full") else [False])
    assert got == run(dataset.join(other, on="k", how=how))
    pairs = 0 if how in ("semi", "anti") else 20 * 300
    alone = {"left": 3, "right": 301, "full": 304, "semi": 20, "anti": 3}.get(how, 0)
    assert len(got) == pairs + alone


def test_files_are_the_same_whatever_the_backend_and_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(joining, "_SMALL_BYTES", -1)
    monkeypatch.setattr(planning, "_PARTITION_BYTES", 2000)
    monkeypatch.setattr(planning, "_MAX_PARTITIONS", 4)
    rows = [{"k": i * i % 97, "x": i / 7, "t": "w" * (i % 5)} for i in range(600)]
    source = Dataset.from_rows(rows, num_shards=4)

    def total(key, members):
        return {"k": key, "x": sum(row["x"] for row in members)}

    plans = {
        "groups": source.group_by("k").agg(x=agg.mean("x"), all=agg.collect("t"), n=agg.approx_distinct("t")),
        "reduced": source.group_by("k").reduce(total, order_by=["t", "x"]),
        "joined": source.join(source.filter(lambda row: row["x"] > 40), on="k", how="left"),
    }
    with Session(workers=2) as session:
        for name, dataset in plans.items():
            session.run(dataset.write_parquet(tmp_path / "process" / name))
    for name, dataset in plans.items():
        for memory in (2000, 1 << 30):
            monkeypatch.setattr(inline, "merge_memory", lambda _, memory=memory: memory)
            with Session(backend="inline") as session:
                session.run(dataset.write_parquet(tmp_path / str(memory) / name))
            assert files_of(tmp_path / "process" / name) == files_of(tmp_path / str(memory) / name)
        assert len(files_of(tmp_path / "process" / name)) == 4


@BOTH
def test_rows_of_both_sides_are_accounted_for_and_an_unchanged_rerun_does_nothing(small, tmp_path, monkeypatch):
    monkeypatch.setattr(joining, "_SMALL_BYTES", 1 << 20 if small else -1)
    left = Dataset.from_rows([{"k": i % 5, "i": i} for i in range(20)], num_shards=2)
    right = Dataset.from_rows([{"k": i, "j": i} for i in range(3)])
    dataset = left.join(right, on="k").write_parquet(tmp_path / "out")
    with Session(backend="inline", work_dir=tmp_path / "work") as session:
        counters = session.run(dataset).counters
        assert counters == {"rows_in": 23, "rows_out": 12, "consumed": 23, "produced": 12, "filtered": 0, "rejected": 0}
    # Where a small side lies does not count.
    with Session(backend="inline", work_dir=tmp_path / "elsewhere") as session:
        assert session.run(dataset).executed == 0
    assert pl.read_parquet(tmp_path / "out/*.parquet").columns == ["k", "i", "j"]
    leftovers = [p.name for p in (tmp_path / "work").rglob("*") if p.name.startswith(("left-", "right-", "spool-"))]
    assert leftovers == []


def test_arguments_are_checked_where_they_are_given():
    left = Dataset.from_rows([{"k": 1}])
    for arguments, message in [
        ({}, "give on="),
        ({"on": "k", "left_on": "k"}, "give on="),
        ({"left_on": "k"}, "same number"),
        ({"left_on": ["k", "l"], "right_on": ["k"]}, "same number"),
        ({"on": ["k", "k"]}, "twice"),
        ({"on": "k", "how": "outer"}, "how='outer' is not one of inner, left"),
    ]:
        with pytest.raises(UsageError, match=message):
            left.join(left, **arguments)
    with pytest.raises(UsageError, match="must be a Dataset"):
        left.join([{"k": 1}], on="k")
