"""Operations on where rows stand give what plain Python gives, however the rows are cut into shards."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from itertools import batched, pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr import Dataset, Session, agg, col
from marin_zephyr.counters import count
from marin_zephyr.errors import BadRecordError, RejectRow, SchemaError, UsageError, UserCodeError
from marin_zephyr.positional.sampling import uniform

quick = settings(max_examples=25)

type Rows = list[dict]

LISTS = st.one_of(st.none(), st.lists(st.integers(0, 9), max_size=3))
ROWS = st.lists(st.fixed_dictionaries({"n": st.integers(-9, 9), "list": LISTS}), max_size=25)
SHARDS = st.integers(1, 5)


def rows_of(dataset: Dataset) -> Rows:
    with Session(backend="inline") as session:
        return list(session.rows(dataset))


def cut(rows: Rows, num_shards: int) -> list[Rows]:
    bounds = [len(rows) * i // num_shards for i in range(num_shards + 1)]
    return [rows[begin:end] for begin, end in pairwise(bounds)]


def odd(rows: Rows) -> Rows:
    return [row for row in rows if row["n"] % 2]


def seen(frame: pl.DataFrame) -> pl.DataFrame:
    count("batches")
    return frame


def tree(path: Path) -> dict[str, str]:
    files = [p for p in path.rglob("*") if p.is_file()]
    return {p.relative_to(path).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@quick
@given(rows=ROWS, num_shards=SHARDS, n=st.integers(0, 30))
def test_take_gives_the_first_rows(rows: Rows, num_shards: int, n: int) -> None:
    dataset = Dataset.from_rows(rows, num_shards=num_shards)
    assert rows_of(dataset.take(n)) == rows[:n]
    assert rows_of(dataset.filter(col("n") % 2 == 1).take(n)) == [r for r in rows if r["n"] % 2 == 1][:n]


def test_take_stops_reading_where_it_has_enough(tmp_path: Path) -> None:
    frame = pl.DataFrame({"n": range(200_000)})
    dataset = Dataset.from_arrow(frame).map_batches(seen).take(5)
    with Session(backend="inline") as session:
        report = session.run(dataset.write_parquet(tmp_path / "out"))
    assert report.counters["batches"] == 1
    assert report.counters["rows_out"] == 5
    assert report.counters["rows_in"] == report.counters["filtered"] + 5 < 200_000


@pytest.mark.parametrize("n", [1, 70_000])
def test_rows_that_a_take_leaves_to_no_row_function_are_accounted_for(n: int, tmp_path: Path) -> None:
    seen: list[int] = []
    rows = Dataset.from_rows([{"n": i} for i in range(1000)]).map(lambda row: seen.append(row["n"]) or row)
    many = rows.filter(lambda row: row["n"] % 2 == 0).flat_map(lambda row: [row] * 1000).map(lambda row: row)
    with Session(backend="inline") as session:
        report = session.run(many.take(n).write_jsonl(tmp_path))
    assert report.counters["rows_out"] == n
    assert len(seen) < 1000
    mapped = report.stages[-1].operations[1][1]
    assert (mapped["rows_in"], mapped["filtered"]) == (1000, 1000 - len(seen))


def test_take_counts_the_bad_records_that_it_came_upon(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('bad\n{"n": 1}\n{"n": 2}\n{"n": 3}\n')
    dataset = Dataset.from_files(tmp_path / "a.jsonl", on_error="quarantine").take(1)
    with Session(backend="inline") as session:
        report = session.run(dataset.write_jsonl(tmp_path / "out"))
    assert (report.counters["rows_in"], report.counters["rejected"], report.counters["rows_out"]) == (4, 1, 1)
    assert len(report.rejects) == 1


@quick
@given(rows=ROWS, num_shards=SHARDS, n=st.integers(1, 7))
def test_repartition_cuts_the_same_rows_evenly(rows: Rows, num_shards: int, n: int) -> None:
    dataset = Dataset.from_rows(rows, num_shards=num_shards).repartition(n)
    assert rows_of(dataset) == rows
    sizes = rows_of(dataset.map_shards(lambda shard: [{"size": sum(1 for _ in shard)}]))
    assert [row["size"] for row in sizes] == [len(part) for part in cut(rows, n)]


def test_repartition_after_a_repartition_writes_so_many_parts(tmp_path: Path) -> None:
    dataset = Dataset.from_rows([{"n": i} for i in range(10)], num_shards=3).repartition(7).repartition(2)
    with Session(backend="inline") as session:
        files = session.run(dataset.write_parquet(tmp_path / "out")).files
    assert [pl.read_parquet(file).get_column("n").to_list() for file in files] == [[*range(5)], [*range(5, 10)]]


@quick
@given(parts=st.lists(st.tuples(ROWS, SHARDS), min_size=2, max_size=4), same=st.booleans())
def test_union_is_one_after_the_other(parts: list[tuple[Rows, int]], same: bool) -> None:
    datasets = [Dataset.from_rows(rows, num_shards=num_shards) for rows, num_shards in parts]
    expected = [row for rows, _ in parts for row in rows]
    if same:
        assert rows_of(datasets[0].union(*datasets[1:])) == expected
        return
    first = datasets[0].filter(lambda row: row["n"] % 2)
    rest = [row for rows, _ in parts[1:] for row in rows]
    assert rows_of(first.union(*datasets[1:]).map(dict)) == odd(parts[0][0]) + rest


def test_operations_that_all_have_in_common_cost_a_union_no_stage(tmp_path: Path) -> None:
    one, two = Dataset.from_rows([{"n": 1}, {"n": 2}]), Dataset.from_rows([{"n": 3}])
    even = col("n") % 2 == 0
    with Session(backend="inline") as session:
        report = session.run(one.filter(even).union(two.filter(even)).write_jsonl(tmp_path / "a"))
        assert [stage.name for stage in report.stages] == ["0-write"]
        report = session.run(one.filter(even).union(two).write_jsonl(tmp_path / "b"))
        assert [stage.name for stage in report.stages] == ["0-union-rows", "1-write"]
        assert (report.counters["rows_in"], report.counters["filtered"], report.counters["rows_out"]) == (3, 1, 2)


def test_a_dataset_joined_to_itself_is_computed_once(tmp_path: Path) -> None:
    twice = Dataset.from_rows([{"n": 1}, {"n": 1}, {"n": 2}]).distinct(on="n")
    with Session(backend="inline") as session:
        report = session.run(twice.union(twice.filter(col("n") == 2)).write_jsonl(tmp_path / "out"))
    assert [stage.name for stage in report.stages] == ["0-distinct-keys", "1-distinct-pick", "2-union-rows", "3-write"]
    assert [[json.loads(line)["n"] for line in path.open()] for path in report.files] == [[1, 2], [2]]


def test_files_that_are_read_in_different_ways_are_read_so_after_a_union(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    (tmp_path / "b.jsonl").write_text('{"n": 2}\n')
    plain = Dataset.from_files(tmp_path / "a.jsonl")
    both = plain.union(Dataset.from_files(tmp_path / "b.jsonl", with_source=True))
    assert rows_of(both.select("n", "source")) == [{"n": 1, "source": None}, {"n": 2, "source": "b.jsonl"}]


def test_a_union_of_different_policies_on_bad_records_is_refused() -> None:
    skipping = Dataset.from_rows([{"n": 1}], on_error="skip")
    with pytest.raises(UsageError, match="union: on_error is raise in one dataset and skip in another; give all"):
        rows_of(skipping.union(Dataset.from_rows([{"n": 2}])))


def splitmix(value: int) -> int:
    """The published reference, on Python's integers."""
    z = (value + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


@quick
@given(rows=ROWS, num_shards=SHARDS, fraction=st.floats(0, 1), seed=st.integers(-(2**70), 2**70))
def test_sample_decides_by_seed_shard_and_position(rows: Rows, num_shards: int, fraction: float, seed: int) -> None:
    expected = []
    for shard, part in enumerate(cut(rows, num_shards)):
        for position, row in enumerate(part):
            word = splitmix((splitmix(splitmix(seed % 2**64) + shard) + position) % 2**64)
            if (word >> 11) / 2**53 < fraction:
                expected.append(row)
    assert rows_of(Dataset.from_rows(rows, num_shards=num_shards).sample(fraction, seed=seed)) == expected


def test_a_sample_has_its_share_whatever_the_batches_and_differs_by_seed_and_shard() -> None:
    frame = pl.DataFrame({"n": range(150_000)})
    kept = [row["n"] for row in rows_of(Dataset.from_arrow(frame).sample(0.25, seed=7))]
    assert kept == np.flatnonzero(uniform(7, 0, np.arange(150_000, dtype=np.uint64)) < 0.25).tolist()
    positions = np.arange(100_000, dtype=np.uint64)
    streams = [uniform(seed, shard, positions) for seed in (0, 1) for shard in (0, 1)]
    assert all(abs(stream.mean() - 0.5) < 0.005 for stream in streams)
    correlations = np.corrcoef(streams) - np.eye(4)
    assert np.abs(correlations).max() < 0.02


@quick
@given(rows=ROWS, num_shards=SHARDS)
def test_explode_makes_a_row_of_each_member_and_keeps_rows_without_one(rows: Rows, num_shards: int) -> None:
    expected = [{"n": row["n"], "list": member} for row in rows for member in row["list"] or [None]]
    assert rows_of(Dataset.from_rows(rows, num_shards=num_shards).explode("list")) == expected


def test_explode_of_long_lists_makes_batches_of_the_usual_size() -> None:
    def sizes(frame: pl.DataFrame) -> pl.DataFrame:
        return pl.DataFrame({"size": [frame.height]})

    frame = pl.DataFrame({"n": [1, 2, 3], "list": [[*range(70_000)], [1], [*range(65_535)]]})
    made = rows_of(Dataset.from_arrow(frame).explode("list").map_batches(sizes))
    assert [row["size"] for row in made] == [65_536, 70_000 - 65_536, 65_536]
    assert rows_of(Dataset.from_arrow(frame).explode("list").group_by("n").agg(s=agg.sum("list"))) == [
        {"n": n, "s": sum(members)} for n, members in frame.iter_rows()
    ]


def test_explode_of_what_is_no_list_or_not_there_is_an_error() -> None:
    with pytest.raises(SchemaError, match=r"explode\(n\): column 'n' is Int64, not a list"):
        rows_of(Dataset.from_rows([{"n": 1}]).explode("n"))
    with pytest.raises(SchemaError, match="no row of the input has a column 'm'"):
        rows_of(Dataset.from_rows([{"n": 1}]).explode("m"))


def summary(rows: Iterable[dict]) -> Iterator[dict]:
    values = [row["n"] for row in rows]
    for value in values[:2]:
        yield {"first": value, "sum": sum(values)}


@quick
@given(rows=ROWS, num_shards=SHARDS, size=st.integers(1, 7))
def test_windows_are_consecutive_rows_of_one_shard(rows: Rows, num_shards: int, size: int) -> None:
    shards = cut(rows, num_shards)
    expected = [row for part in shards for window in batched(part, size) for row in summary(window)]
    assert rows_of(Dataset.from_rows(rows, num_shards=num_shards).window(size, summary)) == expected


@quick
@given(rows=ROWS, num_shards=SHARDS)
def test_map_shards_is_called_once_a_shard(rows: Rows, num_shards: int) -> None:
    def sized(part: Iterator[dict]) -> Iterator[dict]:
        values = list(part)
        return iter([{"size": len(values)}, *({"size": -row["n"]} for row in values)])

    expected = [made for part in cut(rows, num_shards) for made in sized(iter(part))]
    assert rows_of(Dataset.from_rows(rows, num_shards=num_shards).map_shards(sized)) == expected


def test_windows_do_not_end_with_batches() -> None:
    frame = pl.DataFrame({"n": range(70_000)})
    made = rows_of(Dataset.from_arrow(frame).window(999, lambda rows: [{"size": len(rows)}]))
    assert [row["size"] for row in made] == [999] * 70 + [70_000 - 999 * 70]


def test_a_window_that_is_refused_is_refused_row_by_row(tmp_path: Path) -> None:
    def refuse(rows: Rows) -> Rows:
        if rows[0]["n"] == 2:
            raise RejectRow("begins with 2")
        return [{"first": rows[0]["n"]}]

    rows = [{"n": i} for i in range(5)]
    dataset = Dataset.from_rows(rows, on_error="quarantine").window(2, refuse)
    with Session(backend="inline") as session:
        report = session.run(dataset.write_jsonl(tmp_path / "out"))
    wanted = {"rows_in": 5, "rejected": 2, "consumed": 3, "produced": 2, "rows_out": 2}
    assert {name: report.counters[name] for name in wanted} == wanted
    assert report.rejects[0].read_text().count("begins with 2") == 2
    with pytest.raises(BadRecordError, match=r"window\(2, .*refused a row of \{'n': 2\}: begins with 2"):
        rows_of(Dataset.from_rows(rows).window(2, refuse))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda d: d.window(2, lambda rows: [{"n": 1 // rows[0]["n"]}]),
            r"window.*2 rows from \{'n': 0\}: ZeroDivision",
        ),
        (lambda d: d.window(2, lambda rows: [1]), r"window.*returned int; return a dict"),
        (
            lambda d: d.map_shards(lambda rows: ({"n": 1 // r["n"]} for r in rows)),
            r"on shard 0 at the row of \{'n': 0\}: ",
        ),
        (
            lambda d: d.map_shards(lambda rows: 1 // 0),
            r"map_shards.*on shard 0 before its first row: ZeroDivisionError",
        ),
        (lambda d: d.map_shards(lambda rows: [None]), r"map_shards.*returned NoneType; return a dict"),
    ],
)
def test_a_function_that_fails_is_named_with_the_place(make, said: str) -> None:
    with pytest.raises(UserCodeError, match=said):
        rows_of(make(Dataset.from_rows([{"n": 0}, {"n": 1}])))


def test_rows_that_map_shards_does_not_ask_for_are_not_read(tmp_path: Path) -> None:
    frame = pl.DataFrame({"n": range(200_000)})
    dataset = Dataset.from_arrow(frame).map_batches(seen).map_shards(lambda rows: [next(rows)])
    with Session(backend="inline") as session:
        counters = session.run(dataset.write_jsonl(tmp_path / "out")).counters
    assert (counters["rows_out"], counters["batches"]) == (1, 1)


def test_outputs_are_byte_identical_on_worker_processes(tmp_path: Path) -> None:
    rows = [{"n": i, "list": [i] * (i % 4)} for i in range(300)]
    base = Dataset.from_rows(rows, num_shards=5).filter(col("n") % 7 != 3)
    plans = {
        "take": base.take(100),
        "repartition": base.repartition(4).sample(0.5, seed=3),
        "union": base.explode("list").union(base.window(10, summary), base.map_shards(summary)),
    }
    with Session(backend="inline") as inline, Session(backend="process", workers=2) as pool:
        for name, plan in plans.items():
            inline.run(plan.write_parquet(tmp_path / "inline" / name))
            pool.run(plan.write_parquet(tmp_path / "process" / name))
    assert tree(tmp_path / "inline") == tree(tmp_path / "process")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda d: d.take(-1), "take: n=-1"),
        (lambda d: d.repartition(0), "repartition: n=0"),
        (lambda d: d.sample(1.5, seed=0), "sample: fraction=1.5"),
        (lambda d: d.sample(float("nan"), seed=0), "sample: fraction=nan"),
        (lambda d: d.window(0, list), "window: size=0"),
        (lambda d: d.window(2, None), "window: None is not callable"),
        (lambda d: d.map_shards("f"), "map_shards: 'f' is not callable"),
        (lambda d: d.union(), "union: name at least one"),
        (lambda d: d.union(d.write_jsonl("x")), "union after a write to x"),
    ],
)
def test_arguments_that_cannot_work_are_refused_where_they_are_given(make, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make(Dataset.from_rows([{"n": 1}]))
