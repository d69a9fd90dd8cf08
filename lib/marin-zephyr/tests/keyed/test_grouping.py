"""Aggregates: types, limits, and what a hot key costs."""

from datetime import date
from decimal import Decimal

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr import Dataset, Session, agg, col
from marin_zephyr.errors import SchemaError

FAR = 2**63 - 1


def typed(values: list, dtype: pl.DataType | type[pl.DataType], *, num_shards: int = 1) -> Dataset:
    """Rows of one key, with the values in a column ``v`` of a type."""
    rows = [{"k": 0, "i": i} for i in range(len(values))]
    column = pl.Series("v", values, dtype=dtype)
    cast = lambda frame: frame.with_columns(column.gather(frame.get_column("i")))  # noqa: E731
    return Dataset.from_rows(rows, num_shards=num_shards).map_batches(cast)


@pytest.mark.parametrize("num_shards", [1, 3])
def test_an_integer_sum_is_exact_or_an_error_wherever_it_is_cut(num_shards, run):
    def total(values):
        return run(typed(values, pl.Int64, num_shards=num_shards).group_by("k").agg(v=agg.sum("v")))[0]["v"]

    assert total([FAR, 1, -5]) == FAR - 4
    assert total([-FAR, -1, 0]) == -FAR - 1
    with pytest.raises(SchemaError, match="sum of 'v' is beyond 64 bits"):
        total([FAR, 1, 0])


@pytest.mark.parametrize(
    ("dtype", "values", "total"),
    [
        (pl.Int8, [100] * 100, 10_000),
        (pl.Int32, [2**31 - 1] * 4, 4 * (2**31 - 1)),
        (pl.UInt64, [2**62, 1], 2**62 + 1),
        (pl.Boolean, [True, False, None, True], 2),
        (pl.Float32, [0.5, None, 0.25], 0.75),
        (pl.Decimal(10, 2), [Decimal("0.10"), Decimal("0.20")], Decimal("0.30")),
    ],
)
def test_sums_of_narrow_types_do_not_wrap(dtype, values, total, run):
    for num_shards in (1, 2):
        got = run(typed(values, dtype, num_shards=num_shards).group_by("k").agg(v=agg.sum("v"), m=agg.mean("v")))
        assert got[0]["v"] == total
        assert got[0]["m"] == pytest.approx(float(total) / len([v for v in values if v is not None]))


def test_every_type_has_least_and_first_values(run):
    for dtype, values in [(pl.Date, [date(2024, 1, 2), date(2023, 1, 1)]), (pl.Binary, [b"b", b"a"])]:
        aggregates = {"low": agg.min("v"), "high": agg.max("v"), "first": agg.first("v"), "all": agg.collect("v")}
        got = run(typed(values, dtype, num_shards=2).group_by("k").agg(**aggregates))
        assert got == [{"k": 0, "low": values[1], "high": values[0], "first": values[0], "all": values}]


@pytest.mark.parametrize(("kind", "value"), [("sum", "a"), ("mean", "a"), ("min", [1]), ("max", {"a": 1})])
def test_an_aggregate_that_a_type_does_not_have_is_an_error(kind, value, run):
    with pytest.raises(SchemaError, match=f"column 'v' is of type .* has no {kind}"):
        run(Dataset.from_rows([{"k": 0, "v": value}]).group_by("k").agg(x=getattr(agg, kind)("v")))


def test_integers_and_decimals_in_different_batches_are_an_error_and_no_panic(run):
    halves = [pl.Series("v", [1, 2]), pl.Series("v", ["0.50", "1.50"]).cast(pl.Decimal(10, 2))]
    rows = Dataset.from_rows([{"k": 0, "half": i} for i in (0, 0, 1, 1)], num_shards=2)
    mixed = rows.map_batches(lambda frame: frame.with_columns(halves[frame["half"][0]]))
    with pytest.raises(SchemaError, match=r"'total' is decimal128\(38, 0\) in one place and decimal128\(38, 2\)"):
        run(mixed.group_by("k").agg(total=agg.sum("v")))


def test_nested_keys_and_several_key_columns(run):
    rows = [{"a": [i % 2], "b": {"x": i % 3}, "n": i} for i in range(12)]
    got = run(Dataset.from_rows(rows, num_shards=3).group_by("a", "b").agg(n=agg.sum("n")))
    assert got == [
        {"a": [a], "b": {"x": b}, "n": sum(i for i in range(12) if (i % 2, i % 3) == (a, b))}
        for a in range(2)
        for b in range(3)
    ]


@settings(max_examples=20, derandomize=True)
@given(num=st.one_of(st.integers(0, 60), st.sampled_from([2047, 2048, 2100])), num_shards=st.integers(1, 3))
def test_distinct_values_are_counted_exactly_while_few(num, num_shards, run):
    rows = [{"k": 0, "v": f"v{i}"} for i in range(num)] * 2 + [{"k": 0, "v": None}]
    got = run(Dataset.from_rows(rows, num_shards=num_shards).group_by("k").agg(n=agg.approx_distinct("v")))[0]["n"]
    assert got == num if num < 2048 else abs(got - num) < 0.12 * num


def test_many_distinct_values_are_estimated_within_five_standard_errors_and_independent_of_shards(run):
    rows = Dataset.from_rows([{"k": 0}], num_shards=1).map_batches(
        lambda _: pl.DataFrame({"k": 0, "v": pl.int_range(200_000, eager=True) % 60_000})
    )
    twice = rows.with_columns(v=col("v") * 1.0)
    got = run(rows.group_by("k").agg(n=agg.approx_distinct("v")))
    assert abs(got[0]["n"] - 60_000) < 5 * 0.0221 * 60_000
    assert run(twice.group_by("k").agg(n=agg.approx_distinct("v"))) == got


def test_a_key_with_most_of_the_rows_sends_one_row_a_shard(tmp_path):
    rows = [{"k": "hot" if i % 10 else f"cold{i}", "n": 1} for i in range(2000)]
    groups = Dataset.from_rows(rows, num_shards=4).group_by("k").agg(n=agg.sum("n"))
    with Session(backend="inline") as session:
        report = session.run(groups.write_parquet(tmp_path / "out"))
    assert report.stages[0].rows_out == 4 + 200
    assert report.stages[0].hot_keys == ()
    assert pl.read_parquet(tmp_path / "out/*.parquet").filter(col("k") == "hot")["n"].to_list() == [1800]
