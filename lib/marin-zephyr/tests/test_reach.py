"""Which expressions may be evaluated batch by batch."""

from collections.abc import Iterator

import polars as pl
import pytest
from polars import col, element, lit

from marin_zephyr import Dataset
from marin_zephyr.errors import UsageError
from marin_zephyr.reach import across_rows

ROWWISE = {
    "literal": lit(1),
    "list literal": lit([1, 2]),
    "null": lit(None),
    "arithmetic": (col("n") + 1) * col("m") / 2,
    "comparison": (col("n") > 1) & ~col("b"),
    "alias": col("n").alias("x"),
    "keep name": (col("n") * 2).name.keep(),
    "suffix": col("n").name.suffix("_x"),
    "cast": col("n").cast(pl.Float64),
    "when": pl.when(col("n") > 1).then(col("a")).otherwise(0),
    "is_in list": col("n").is_in([1, 2]),
    "is_in series": col("n").is_in(pl.Series([1, 2])),
    "is_in imploded series": col("n").is_in(lit(pl.Series([1, 2])).implode()),
    "is_in column": col("n").is_in(col("l")),
    "is_between": col("n").is_between(1, col("m")),
    "clip": col("n").clip(0, 9),
    "replace": col("n").replace({1: 2}),
    "replace_strict": col("n").replace_strict({1: 2}, default=0),
    "fill_null": col("n").fill_null(0),
    "fill_null zero": col("n").fill_null(strategy="zero"),
    "fill_nan": col("n").fill_nan(None),
    "hash": col("n").hash(),
    "round": col("n").round(2),
    "horizontal": pl.sum_horizontal("a", "b") + pl.max_horizontal("a", "b") + pl.coalesce("a", "b"),
    "any_horizontal": pl.any_horizontal(col("a") > 1, col("b")),
    "fold": pl.fold(lit(0), lambda a, b: a + b, [col("a"), col("b")]),
    "struct": pl.struct("a", "b"),
    "struct field": col("s").struct.field("a"),
    "with_fields": col("s").struct.with_fields(pl.field("a") + 1),
    "unnest": col("s").struct.unnest(),
    "concat_str": pl.concat_str("a", "b"),
    "format": pl.format("{}-{}", "a", "b"),
    "strings": col("t").str.strip_chars().str.to_lowercase().str.len_chars(),
    "contains": col("t").str.contains("x") & col("t").str.contains_any(["a", "b"]),
    "split": col("t").str.split(" ").list.len(),
    "list mean": col("l").list.mean(),
    "list sort": col("l").list.sort().list.reverse().list.shift(1),
    "list eval": col("l").list.eval(element().rank()),
    "list agg": col("l").list.agg(element().sum()),
    "list filter": col("l").list.filter(element() > 1).list.unique(),
    "array eval": col("l").arr.eval(element().sum()),
    "date": pl.date(2020, col("n"), 1),
    "strptime": col("t").str.to_datetime("%Y-%m-%d", strict=False),
    "dt": col("d").dt.truncate("1d").dt.month(),
    "json": col("t").str.json_decode(pl.Struct({"a": pl.Int64})),
    "int_ranges": pl.int_ranges(0, col("n")),
    "all columns": pl.all() + 1,
    "selector": pl.selectors.numeric() * 2,
    "map_elements": col("n").map_elements(lambda n: n, return_dtype=pl.Int64),
    "map_batches elementwise": col("n").map_batches(lambda s: s, return_dtype=pl.Int64, is_elementwise=True),
    "a column called Agg": col("Agg") + col('{"Agg":1}'),
}

ACROSS = {
    "mean": col("n").mean(),
    "mean within": (col("n") - col("n").mean()) / 2,
    "sum in a name": (col("n") / col("n").sum()).name.keep(),
    "sum under a cast": col("n").sum().cast(pl.Float64).alias("x"),
    "sum in a condition": pl.when(col("n") > col("n").max()).then(1),
    "sum in a function": pl.max_horizontal("a", col("b").max()),
    "sum in is_in": col("n").is_in(col("m").implode()),
    "sum of all": pl.all().sum(),
    "cum_sum of all": pl.all().cum_sum(),
    "sum of a list's lengths": col("l").list.len().sum(),
    "sum after list eval": col("l").list.eval(element() + 1).list.first().mean(),
    "len": pl.len(),
    "len within": col("n") + pl.len(),
    "shift": col("n").shift(),
    "cum_sum": col("n").cum_sum(),
    "over": col("n").sum().over("g"),
    "rolling": col("n").sum().rolling("d", period="1d"),
    "is_duplicated": col("n").is_duplicated(),
    "unique": col("n").unique(),
    "rank": col("n").rank(),
    "sort": col("n").sort(),
    "sort_by": col("n").sort_by("m"),
    "head": col("n").head(3),
    "filter": col("n").filter(col("n") > 1),
    "first of it": col("n").first(),
    "explode": col("l").explode(),
    "fill_null forward": col("n").fill_null(strategy="forward"),
    "fill_null mean": col("n").fill_null(strategy="mean"),
    "any": col("b").any(),
    "join of strings": col("t").str.join(","),
    "correlation": pl.corr("a", "b"),
    "rolling_mean": col("n").rolling_mean(3),
    "ewm_mean": col("n").ewm_mean(alpha=0.5),
    "shuffle": col("n").shuffle(),
    "sample": col("n").sample(2),
    "cumulative_eval": col("n").cumulative_eval(element().sum()),
    "append": col("n").append(col("m")),
    "range": pl.int_range(pl.len()),
    "series": lit(pl.Series([1, 2, 3])),
    "map_batches": col("n").map_batches(lambda s: s - s.mean(), return_dtype=pl.Float64),
    "strptime that guesses": col("t").str.to_datetime(),
}


@pytest.mark.parametrize("name", ROWWISE)
def test_an_expression_of_one_row_is_taken(name):
    assert across_rows(ROWWISE[name]) is None


@pytest.mark.parametrize("name", ACROSS)
def test_an_expression_across_rows_is_told(name):
    assert across_rows(ACROSS[name]) is not None


def test_each_operation_refuses_with_the_alternative():
    rows = Dataset.from_rows([{"n": 1}])
    for refused in (
        lambda: rows.filter(col("n") > col("n").mean()),
        lambda: rows.reject(col("n").is_duplicated(), reason="twice"),
        lambda: rows.select("n", col("n").cum_sum().alias("sum")),
        lambda: rows.with_columns(total=col("n").sum().over("n")),
    ):
        with pytest.raises(UsageError, match="group_by"):
            refused()
    with pytest.raises(UsageError, match=r'with_columns: col\("n"\).mean\(\).*: Mean looks at other rows'):
        rows.with_columns(mean=col("n").mean())
    with pytest.raises(UsageError, match="pass format="):
        rows.with_columns(col("n").str.to_date())


def test_a_large_literal_costs_little():
    expr = col("n").is_in(list(range(100_000)))
    assert across_rows(expr) is None
    assert across_rows(expr & (col("n") > col("n").sum())) is not None


def methods() -> Iterator[tuple[str, pl.Expr]]:
    """Every method of a column that some simple arguments satisfy, once."""
    arguments = [(), (col("b"),), (lit(1),), (1,), ("b",), (2, 3), ("b", "1d"), ([1],), (1.0, 2), ("%Y",), (pl.Int64,)]
    for space in ("", "str", "list", "arr", "dt", "bin", "cat", "struct"):
        owner = getattr(col("a"), space) if space else col("a")
        for name in dir(owner):
            if name.startswith("_") or name in (
                "meta",
                "name",
                "ext",
                "pipe",
                "pipe_with_dtype",
                "unnest",
                "deserialize",
            ):
                continue
            for given in arguments:
                try:
                    made = getattr(owner, name)(*given)
                except Exception:
                    continue
                if isinstance(made, pl.Expr):
                    yield f"{space}.{name}", made
                    break


@pytest.mark.filterwarnings("ignore")
def test_polars_agrees_on_every_method_it_can_judge():
    judged, differing = 0, {}
    for name, expr in methods():
        try:
            separable = expr.meta.is_row_separable() and expr.meta.is_length_preserving()
        except Exception:
            continue
        judged += 1
        if separable != (across_rows(expr) is None):
            differing[name] = separable
    assert judged > 250
    # With a format a date is parsed alike in every row; Polars keeps it whole for the formats that it guesses.
    assert {n: s for n, s in differing.items() if not n.startswith("str.to_")} == {}
