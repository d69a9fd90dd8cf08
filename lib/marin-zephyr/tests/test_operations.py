"""Whatever the rows and however they are cut into shards, a plan gives what plain Python gives."""

import collections
import math
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr import Dataset, Session, agg, col, lit
from marin_zephyr.counters import count
from marin_zephyr.errors import BadRecordError, RejectRow, SchemaError, UserCodeError

quick = settings(max_examples=25)

KEYS = st.one_of(st.none(), st.integers(-3, 3), st.sampled_from([0.5, -0.0, 2.0, 1e300, float("nan")]))
ROWS = st.lists(
    st.fixed_dictionaries({"key": KEYS, "text": st.one_of(st.none(), st.text(max_size=5)), "n": st.integers(-9, 9)}),
    max_size=30,
)
SHARDS = st.integers(1, 5)


def rows_of(dataset: Dataset) -> list[dict]:
    with Session(backend="inline") as session:
        return list(session.rows(dataset))


def python_key(value: object) -> object:
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def same(ours: list[dict], theirs: list[dict]) -> bool:
    return [{k: python_key(v) for k, v in row.items()} for row in ours] == [
        {k: python_key(v) for k, v in row.items()} for row in theirs
    ]


@quick
@given(rows=ROWS, num_shards=SHARDS)
def test_row_functions_match_plain_python(rows, num_shards):
    dataset = (
        Dataset.from_rows(rows, num_shards=num_shards)
        .map(lambda row: {**row, "n": row["n"] * 2})
        .filter(lambda row: row["n"] % 3 != 0)
        .flat_map(lambda row: [row] * abs(row["n"] % 3))
    )
    doubled = [{**row, "n": row["n"] * 2} for row in rows]
    expected = [row for row in doubled if row["n"] % 3 != 0 for _ in range(abs(row["n"] % 3))]
    assert same(rows_of(dataset), expected)


def refusing(kind, divisor):
    """A row function that refuses the multiples of a number; as a filter it leaves out those one above."""

    def function(row):
        if row["n"] % divisor == 0:
            raise RejectRow("a multiple")
        return {"map": row, "filter": row["n"] % divisor != 1, "flat_map": [row, row]}[kind]

    return function


@quick
@given(steps=st.lists(st.tuples(st.sampled_from(["map", "filter", "flat_map"]), st.integers(2, 5)), max_size=5))
def test_every_row_of_a_chain_of_row_functions_is_accounted_for(steps):
    dataset = Dataset.from_rows([{"n": n} for n in range(1, 40)], on_error="skip")
    rows, expected = list(range(1, 40)), []
    for kind, divisor in steps:
        dataset = getattr(dataset, kind)(refusing(kind, divisor))
        passing = [n for n in rows if n % divisor]
        kept = [n for n in passing if kind != "filter" or n % divisor != 1]
        expected.append((len(rows), len(rows) - len(passing), len(passing) - len(kept)))
        rows = [n for n in kept for _ in range(2 if kind == "flat_map" else 1)]
    with Session(backend="inline") as session, tempfile.TemporaryDirectory() as out:
        report = session.run(dataset.write_jsonl(out)).stages[-1]
    found = [(counts["rows_in"], counts["rejected"], counts["filtered"]) for _, counts in report.operations[1:]]
    assert (found, report.rows_out) == (expected, len(rows))


@quick
@given(rows=ROWS, num_shards=SHARDS)
def test_expressions_match_plain_python(rows, num_shards):
    dataset = (
        Dataset.from_rows(rows, num_shards=num_shards)
        .filter(col("n") > 0)
        .with_columns(twice=col("n") * 2, one=lit(1))
        .select("n", "twice", "one")
    )
    expected = [{"n": row["n"], "twice": row["n"] * 2, "one": 1} for row in rows if row["n"] > 0]
    assert rows_of(dataset) == expected


@quick
@given(rows=ROWS, num_shards=SHARDS, keep=st.sampled_from(["first", "last"]))
def test_distinct_keeps_the_first_or_last_row_of_a_key_in_order(rows, num_shards, keep):
    dataset = Dataset.from_rows(rows, num_shards=num_shards).distinct(on="key", keep=keep)
    seen: dict[object, int] = {}
    for i, row in enumerate(rows):
        if keep == "last" or python_key(row["key"]) not in seen:
            seen[python_key(row["key"])] = i
    assert same(rows_of(dataset), [rows[i] for i in sorted(seen.values())])


@quick
@given(rows=ROWS, num_shards=SHARDS)
def test_distinct_on_the_whole_row_drops_only_equal_rows(rows, num_shards):
    def whole(row: dict) -> tuple:
        return tuple(python_key(row[name]) for name in sorted(row))

    unique = {whole(row) for row in rows}
    got = rows_of(Dataset.from_rows(rows, num_shards=num_shards).distinct())
    assert len(got) == len(unique)
    assert {whole(row) for row in got} == unique


@quick
@given(rows=ROWS, num_shards=SHARDS)
def test_group_by_matches_plain_python(rows, num_shards):
    dataset = (
        Dataset.from_rows(rows, num_shards=num_shards)
        .group_by("key")
        .agg(
            rows=agg.count(),
            texts=agg.count("text"),
            total=agg.sum("n"),
            low=agg.min("n"),
            high=agg.max("n"),
            mean=agg.mean("n"),
            first=agg.first("text"),
            last=agg.last("text"),
        )
    )
    groups = collections.defaultdict(list)
    for row in rows:
        groups[python_key(row["key"])].append(row)
    expected = {}
    for key, members in groups.items():
        texts = [m["text"] for m in members if m["text"] is not None]
        ns = [m["n"] for m in members]
        expected[key] = {
            "rows": len(members),
            "texts": len(texts),
            "total": sum(ns),
            "low": min(ns),
            "high": max(ns),
            "mean": sum(ns) / len(ns),
            "first": texts[0] if texts else None,
            "last": texts[-1] if texts else None,
        }
    assert {python_key(row.pop("key")): row for row in rows_of(dataset)} == expected


def test_sum_of_nothing_but_nulls_is_null_and_a_count_is_zero():
    dataset = Dataset.from_rows([{"k": 1, "v": None}, {"k": 2, "v": 5}]).group_by("k")
    got = rows_of(dataset.agg(total=agg.sum("v"), n=agg.count("v")))
    assert got == [{"k": 1, "total": None, "n": 0}, {"k": 2, "total": 5, "n": 1}]


def test_a_sum_of_floats_is_taken_in_row_order():
    values = [1e16, 1.0, -1e16, 1.0, 3.0, 1e-3] * 700
    total = 0.0
    for value in values:
        total += value
    dataset = (
        Dataset.from_rows([{"k": 0, "v": v} for v in values]).group_by("k").agg(total=agg.sum("v"), mean=agg.mean("v"))
    )
    assert rows_of(dataset) == [{"k": 0, "total": total, "mean": total / len(values)}]


def test_a_shard_of_nothing_but_nulls_joins_any_type():
    rows = [{"k": 1, "v": None, "t": None}, {"k": 1, "v": 0.5, "t": "x"}]
    aggregates = {"total": agg.sum("v"), "mean": agg.mean("v"), "high": agg.max("t"), "first": agg.first("t")}
    dataset = Dataset.from_rows(rows, num_shards=2).group_by("k").agg(**aggregates)
    assert rows_of(dataset) == [{"k": 1, "total": 0.5, "mean": 0.5, "high": "x", "first": "x"}]


@quick
@given(rows=st.lists(st.integers(), max_size=40).map(lambda ns: [{"n": n % 1000} for n in ns]), size=st.integers(1, 7))
def test_batches_of_a_fixed_size_are_never_resized(rows, size):
    heights = []

    def note(frame):
        heights.append(frame.height)
        return frame

    dataset = Dataset.from_rows(rows).map_batches(note, batch_rows=size)
    assert rows_of(dataset) == rows
    assert heights == [size] * (len(rows) // size) + ([len(rows) % size] if len(rows) % size else [])


def test_a_batch_function_may_take_arrow_and_yield_several_frames():
    dataset = Dataset.from_rows([{"n": 1}, {"n": 2}]).map_batches(lambda t: (t, t), batch_format="arrow")
    assert rows_of(dataset) == [{"n": 1}, {"n": 2}] * 2


def test_a_null_is_not_true_in_a_filter():
    assert rows_of(Dataset.from_rows([{"n": None}, {"n": 1}]).filter(col("n") != 2)) == [{"n": 1}]


def test_a_column_that_only_some_shards_have_is_null_elsewhere():
    rows = [{"a": 1}, {"a": 2, "b": "x"}]
    dataset = Dataset.from_rows(rows, num_shards=2).with_columns(size=col("b").str.len_bytes())
    assert [row["size"] for row in rows_of(dataset)] == [None, 1]


def test_a_column_that_no_row_has_is_an_error_that_names_it():
    with pytest.raises(SchemaError, match="column 'lagn'"):
        rows_of(Dataset.from_rows([{"lang": "en"}], num_shards=1).filter(col("lagn") == "en"))


def test_a_refused_row_is_an_error_unless_asked_otherwise():
    def refuse(row):
        if row["n"] == 2:
            raise RejectRow("two is too many")
        return row

    rows = [{"n": 1}, {"n": 2}, {"n": 3}]
    with pytest.raises(BadRecordError, match="two is too many"):
        rows_of(Dataset.from_rows(rows).map(refuse))
    assert rows_of(Dataset.from_rows(rows, on_error="skip").map(refuse)) == [{"n": 1}, {"n": 3}]
    assert rows_of(Dataset.from_rows(rows, on_error="skip").reject(col("n") == 2, reason="two")) == [{"n": 1}, {"n": 3}]


def test_an_error_of_a_row_function_names_the_function_and_the_row():
    def explode(row):
        return {"x": 1 / row["n"]}

    with pytest.raises(UserCodeError, match=r"map\(explode\).*'n': 0.*ZeroDivisionError"):
        rows_of(Dataset.from_rows([{"n": 1}, {"n": 0}]).map(explode))


def test_a_row_function_that_gives_no_row_is_an_error():
    with pytest.raises(UserCodeError, match="returned int; return a dict"):
        rows_of(Dataset.from_rows([{"n": 1}]).map(lambda row: row["n"]))


@pytest.mark.parametrize("values", [[1, "x"], [True, 1], ["a", b"b"], [1, [2]], [2**53 + 1, 0.5], [2**64]])
def test_values_that_share_no_type_are_an_error_that_names_the_column(values):
    with pytest.raises(SchemaError, match="column 'v'"):
        rows_of(Dataset.from_rows([{"v": v} for v in values]).map(lambda row: row))


def test_counters_of_the_callers_functions_are_summed_over_shards(tmp_path):
    def note(row):
        count("seen")
        return row

    dataset = Dataset.from_rows([{"n": i} for i in range(10)], num_shards=3).map(note).write_jsonl(tmp_path / "out")
    with Session(backend="inline") as session:
        assert session.run(dataset).counters["seen"] == 10


def test_rows_without_a_column_stay_as_many_as_they_are(tmp_path):
    (tmp_path / "empty.jsonl").write_text("{}\n{}\n")
    dataset = Dataset.from_files(tmp_path / "empty.jsonl")
    assert rows_of(dataset.filter(lambda row: True)) == [{}, {}]
    assert rows_of(dataset.map(lambda row: {**row, "n": 1})) == [{"n": 1}, {"n": 1}]
