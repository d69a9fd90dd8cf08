"""What readers leave out changes no row, no reject and no count."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr import Dataset, Session, agg, col, planning
from marin_zephyr.errors import BadRecordError, SchemaError

DIRT = (b"dirt", b"{", b'{"t":"caf\xe9"}', b'{"n":1}{"n":2}', b"[1]", b"")
VALUES = {
    "n": st.none() | st.integers(-2, 2),
    "x": st.none() | st.sampled_from([-1.5, 0.5, 2.5]),
    "t": st.none() | st.sampled_from(["", "a", "ab", "2", "é"]),
    "l": st.none() | st.lists(st.integers(0, 2), max_size=2),
}
TYPES = pa.schema({"n": pa.int64(), "x": pa.float64(), "t": pa.string(), "l": pa.list_(pa.int64())})
FILTERS = {
    "compared": lambda d: d.filter(col("n") > 0),
    "of two columns": lambda d: d.filter((col("x") < 1) | (col("t") == "a")),
    "of nulls": lambda d: d.filter(col("t").is_not_null()),
    "of values": lambda d: d.filter(col("n").is_in([0, 1])),
    "computed": lambda d: d.filter(col("t").str.len_chars() > 0),
    "fallible": lambda d: d.filter(col("t") == "2").filter(col("t").cast(pl.Int64) > 1).filter(col("n") < 2),
    "misspelt": lambda d: d.filter((col("n") > 5) & (col("mm") == 0)),
    "by a function": lambda d: d.filter(lambda row: (row.get("n") or 0) < 2),
}
OTHERS = {
    "made": lambda d: d.with_columns(n=col("n") * 2, y=col("x") + 1),
    "chosen": lambda d: d.select("t", "n", "x", m=col("n") - 1),
    "literal": lambda d: d.with_columns(pl.lit(1).alias("one")),
    "all": lambda d: d.select(pl.all()),
    "sampled": lambda d: d.sample(0.5, seed=3),
    "mapped": lambda d: d.map(lambda row: {**row, "n": (row.get("n") or 0) + 1}),
    "rejected": lambda d: d.reject(col("n") == 1, reason="one"),
}
ENDS = {
    "nothing": lambda d: d,
    "grouped": lambda d: d.group_by("n").agg(rows=agg.count(), x=agg.sum("x")),
    "distinct": lambda d: d.distinct(on=["n", "t"]),
    "sorted": lambda d: d.sort("n").select("n"),
    "taken": lambda d: d.take(3),
}


@st.composite
def lines(draw: Any) -> bytes:
    """A file of JSON lines, some of them damaged."""
    objects = st.fixed_dictionaries({}, optional=VALUES).map(lambda row: json.dumps(row, ensure_ascii=False).encode())
    return b"\n".join(draw(st.lists(objects | st.sampled_from(DIRT), max_size=8)))


@st.composite
def tables(draw: Any) -> pa.Table | None:
    """A table with some of the columns; None is a file that is none."""
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, unique=True) | st.none())
    if names is None:
        return None
    rows = draw(st.lists(st.fixed_dictionaries({name: VALUES[name] for name in names}), max_size=8))
    return pa.Table.from_pylist(rows, schema=pa.schema([TYPES.field(name) for name in names]))


PLANS = st.tuples(
    st.lists(st.sampled_from(sorted(FILTERS)), max_size=2).map(lambda names: [FILTERS[name] for name in names]),
    st.lists(st.sampled_from([*FILTERS, *OTHERS]), max_size=2).map(
        lambda names: [{**FILTERS, **OTHERS}[name] for name in names]
    ),
    st.sampled_from(sorted(ENDS)).map(lambda name: [ENDS[name]]),
).map(lambda parts: [step for part in parts for step in part])


def put(files: list[bytes | pa.Table | None], directory: Path) -> Path:
    directory.mkdir()
    for i, file in enumerate(files):
        if isinstance(file, bytes):
            (directory / f"{i}.jsonl").write_bytes(file)
        elif file is None:
            (directory / f"{i}.parquet").write_bytes(b"PAR1 and nothing more")
        else:
            pq.write_table(file, directory / f"{i}.parquet", row_group_size=2)
    return directory


def outcome(dataset: Dataset, how: str, out: Path, *, pushed: bool) -> Any:
    """Rows, rejects and counts; or the kind of error."""
    with pytest.MonkeyPatch.context() as patch, Session(backend="inline") as session:
        if not pushed:
            patch.setattr(planning, "push_down", lambda inputs, ops, output: (inputs, ops))
        try:
            if how == "count":
                return session.count(dataset)
            if how == "rows":
                return [repr(row) for row in session.rows(dataset)]
            report = session.run(dataset.write_jsonl(out))
        except SchemaError as e:
            return f"SchemaError: {'no row of the input has a column' in str(e)}"
    rows = [json.loads(line) for path in report.files for line in path.open(encoding="utf-8")]
    # Lines that are passed on as they stand do not spell out that a column of others is null.
    told = [{name: value for name, value in row.items() if value is not None} for row in rows]
    return told, [path.read_text() for path in report.rejects], report.counters


def check(dataset: Dataset, how: str, base: Path) -> None:
    whole, pushed = (outcome(dataset, how, base / f"out{pushed}", pushed=pushed) for pushed in (False, True))
    assert pushed == whole


@pytest.mark.filterwarnings("ignore:Comparisons with None")
@settings(max_examples=40)
@given(
    files=st.lists(lines(), min_size=1, max_size=3) | st.lists(tables(), min_size=1, max_size=3),
    plan=PLANS,
    how=st.sampled_from(["rows", "count", "jsonl"]),
    options=st.fixed_dictionaries(
        {
            "on_error": st.sampled_from(["skip", "quarantine"]),
            "with_source": st.booleans(),
            "columns": st.sampled_from([None, None, ["n", "t", "gone"]]),
        }
    ),
)
def test_rows_rejects_and_counts_are_those_of_reading_everything(files, plan, how, options, tmp_path_factory):
    base = tmp_path_factory.mktemp("pushdown")
    dataset = Dataset.from_files(put([b'{"n":null}\n', *files], base / "raw"), shard_bytes=1, **options)
    for step in plan:
        dataset = step(dataset)
    check(dataset, how, base)


def test_columns_of_rows_that_statistics_leave_out_are_known_to_later_operations(tmp_path):
    both = pa.table({"n": pa.array([None], pa.int64()), "t": pa.array([None], pa.string())})
    dataset = Dataset.from_files(put([b'{"n":null}\n', both], tmp_path / "raw"), shard_bytes=1)
    dataset = dataset.filter(col("t") == "2").filter(col("t").cast(pl.Int64) > 1)
    for how in ("rows", "count", "jsonl"):
        check(dataset, how, tmp_path / how)


@pytest.fixture
def raw(tmp_path):
    texts = [b'{"n": 1, "t": "a", "u": 1}\n {"n":2.50,"t":"\\u00e9","u":"x"} \r\n', b'bad\n{"n":3}\n\n{"t":"b","n":4}']
    return put(texts, tmp_path / "raw")


@pytest.fixture
def session():
    with Session(backend="inline") as session:
        yield session


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
@pytest.mark.parametrize("step", ["filter", "group", "distinct", "select"])
def test_a_misspelt_column_is_an_error_though_a_reader_looks_for_it(session, tmp_path, format, step):
    table = pa.table({"n": [1, 2, 3], "t": ["a", "b", "c"]})
    text = b"".join(b'{"n":%d,"t":"a"}\n' % i for i in range(3))
    source = Dataset.from_files(put([text if format == "jsonl" else table] * 2, tmp_path / "raw"), shard_bytes=1)
    misspelt = {
        "filter": source.filter(col("m") > 1),
        "group": source.group_by("m").agg(rows=agg.count()),
        "distinct": source.distinct(on="m"),
        "select": source.filter(col("n") > 1).select("m"),
    }[step]
    with pytest.raises(SchemaError, match="no row of the input has a column 'm'"):
        session.count(misspelt)


@pytest.mark.parametrize("ahead", [True, False], ids=["ruled out before", "ruled out after"])
def test_a_column_of_rows_that_statistics_rule_out_is_not_misspelt(session, tmp_path, ahead):
    tables = [pa.table({"n": [1, 2]}), pa.table({"t": ["a"]})]
    source = Dataset.from_files(put(tables if ahead else tables[::-1], tmp_path / "raw"), shard_bytes=1)
    assert session.count(source.filter(col("n") > 5)) == 0
    with pytest.raises(SchemaError, match="no row of the input has a column 'm'"):
        session.count(source.filter((col("n") > 5) & (col("m") == 1)))


def test_row_groups_that_a_chain_of_filters_rules_out_are_not_decoded(session, tmp_path, monkeypatch):
    from marin_zephyr.formats import parquet

    rows = put([pa.table({"n": list(range(20)), "t": ["a", "b"] * 10})], tmp_path / "raw")
    seen = []
    monkeypatch.setattr(parquet, "to_frame", lambda table: seen.append(table.num_rows) or pl.from_arrow(table))
    dataset = Dataset.from_files(rows).filter(col("t") < "z").filter(col("n") >= 17)
    assert [row["n"] for row in session.rows(dataset)] == [17, 18, 19]
    assert sum(seen) == 4  # two groups of two rows


def test_functions_that_filter_lines_see_their_columns_and_no_other(session, tmp_path):
    text = [b'{"n": 1, "t": "a"}', b' {"t":"\\u00e9","n":2} ', b'{"n":3, "t":null}', b'{"n":4.50,"t":"x"}']
    raw = put([b"\r\n".join(text) + b"\n\n"], tmp_path / "raw")
    seen = []

    def keep(row):
        seen.append(sorted(row))
        return row["n"] != 3

    filtered = Dataset.from_files(raw).filter(col("n") > 1).filter(keep).sample(1.0, seed=0)
    report = session.run(filtered.write_jsonl(tmp_path / "out"))
    assert seen == [["n", "t"]] * 3
    assert report.files[0].read_bytes() == text[1] + b"\n" + text[3] + b"\n"


def test_a_value_is_looked_at_only_where_its_column_is(session, tmp_path):
    """An integer of more than 64 bits cannot be kept; a column that nothing reads need not be."""
    raw = put([b'{"n":1,"u":1}\n{"n":2,"u":123456789012345678901234567890}\n{"n":3,"u":"x"}\n'], tmp_path / "raw")
    source = Dataset.from_files(raw)
    assert session.count(source.filter(col("n") > 1)) == 2
    assert [row["n"] for row in session.rows(source.select("n"))] == [1, 2, 3]
    with pytest.raises(BadRecordError, match="line 2, byte offset 14: an integer beyond 64 bits"):
        session.count(source.filter(lambda row: row["n"] > 1))


def test_where_rows_came_from_is_told_of_those_that_a_filter_leaves(session, raw):
    source = Dataset.from_files(raw, on_error="skip", with_source=True, columns=["n"])
    got = list(session.rows(source.filter(col("n") > 2).select("source", "source_row", "source_offset", "n")))
    places = [tuple(row.values()) for row in got]
    assert places == [("0.jsonl", 2, 27, 2.5), ("1.jsonl", 2, 4, 3), ("1.jsonl", 4, 13, 4)]


def test_a_union_of_files_read_in_different_ways_filters_each(tmp_path):
    first = put([b'{"n":1,"t":"a"}\n{"n":2,"t":"b"}\nbad\n'], tmp_path / "a")
    second = put([pa.table({"n": [2, 3], "t": ["c", "d"]})], tmp_path / "b")
    a = Dataset.from_files(first, on_error="quarantine", with_source=True)
    b = Dataset.from_files(second, on_error="quarantine", columns=["n"])
    for how in ("rows", "count", "jsonl"):
        check(a.union(b).filter(col("n") > 1), how, tmp_path / how)
    with Session(backend="inline") as session:
        rows = list(session.rows(a.union(b).filter(col("n") > 1)))
    assert [(row["n"], row.get("t"), row.get("source")) for row in rows] == [
        (2, "b", "0.jsonl"),
        (2, None, None),
        (3, None, None),
    ]
