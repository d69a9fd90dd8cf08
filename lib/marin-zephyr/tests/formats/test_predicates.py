"""Predicates in readers: the rows that come are those of reading all and filtering; what is ruled out is not read."""

import datetime
import math
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr import col
from marin_zephyr.errors import SchemaError
from marin_zephyr.formats import reader
from marin_zephyr.formats.files import InputFile
from marin_zephyr.formats.predicates import Bounds, may_hold
from marin_zephyr.formats.rejects import Desk
from marin_zephyr.nodes import ReadOptions


def input_file(path: Path, format: str) -> InputFile:
    size = path.stat().st_size
    return InputFile(url=str(path), name=path.name, format=format, compression=None, size=size, version="")


def read(path: Path, format: str = "parquet", policy: str = "raise", **options) -> tuple[list[dict], Desk]:
    desk = Desk(policy, path.parent / "rejects.jsonl")
    frames = list(reader(format)(input_file(path, format), ReadOptions(**options), desk))
    desk.close()
    return [row for frame in frames for row in frame.to_dicts()], desk


DAY = datetime.date(2020, 1, 1)
VALUES = {
    "i": st.sampled_from([-(2**63), -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 1]),
    "f": st.sampled_from([-math.inf, -1.0, -0.0, 0.0, 0.1, 1.0, 2.0**53, math.inf, math.nan]),
    "f32": st.sampled_from([-1.0, 0.0, 0.1, 1.0, math.nan]),
    "s": st.sampled_from(["", "a", "b", "é", "\U0001f600", "z" * 5]),
    "b": st.booleans(),
    "d": st.integers(0, 3).map(lambda n: DAY + datetime.timedelta(days=n)),
}
TYPES = {
    "i": pa.int64(),
    "f": pa.float64(),
    "f32": pa.float32(),
    "s": pa.large_string(),
    "b": pa.bool_(),
    "d": pa.date32(),
}


def comparison(name: str):
    value = VALUES[name] | (VALUES["f"] if name == "i" else VALUES["i"] if name == "f" else st.nothing())
    column = pl.col(name)
    return st.one_of(
        st.tuples(value, st.integers(0, 5)).map(
            lambda vk: [
                column < vk[0],
                column <= vk[0],
                column > vk[0],
                column >= vk[0],
                column == vk[0],
                column != vk[0],
            ][vk[1]]
        ),
        VALUES[name].map(lambda v: pl.lit(v) < column),
        VALUES[name].map(lambda v: pl.lit(v) >= column),
        VALUES[name].map(lambda v: pl.lit(v) == column),
        st.lists(VALUES[name] | st.none(), min_size=1, max_size=3).map(lambda v: column.is_in(v)),
        st.sampled_from([column.is_null(), column.is_not_null()]),
    )


COMPARISONS = st.one_of(*map(comparison, VALUES))
PREDICATES = st.recursive(
    COMPARISONS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda ab: ab[0] & ab[1]),
        st.tuples(inner, inner).map(lambda ab: ab[0] | ab[1]),
        inner.map(lambda a: ~a),
    ),
    max_leaves=4,
)
ROWS = st.lists(st.fixed_dictionaries({name: v | st.none() for name, v in VALUES.items()}), max_size=12)


def same(rows: list[dict]) -> str:
    return repr(rows)  # NaN, too, is equal to itself


@pytest.mark.filterwarnings("ignore:Comparisons with None", "ignore:.*is_in.*:DeprecationWarning")
@settings(max_examples=50)
@given(rows=ROWS, predicate=PREDICATES, size=st.integers(1, 4), ordered=st.sampled_from([*VALUES]))
def test_the_rows_are_those_of_reading_all_and_filtering(tmp_path_factory, rows, predicate, size, ordered):
    rows = sorted(rows, key=lambda row: (row[ordered] is None, str(row[ordered])))  # so that bounds are narrow
    path = tmp_path_factory.mktemp("pushdown") / "a.parquet"
    table = pa.Table.from_pylist(rows, schema=pa.schema(TYPES))
    pq.write_table(table, path, row_group_size=size)
    expected = (
        pl.DataFrame(pl.from_arrow(table)).with_columns(source_row=pl.int_range(1, pl.len() + 1)).filter(predicate)
    )
    got, desk = read(path, predicate=predicate, with_source=True)
    assert same([{k: row[k] for k in [*VALUES, "source_row"]} for row in got]) == same(expected.to_dicts())
    assert desk.num_filtered == len(rows) - len(got)
    narrow, _ = read(path, predicate=predicate, columns=("s",))
    assert narrow == expected.select("s").to_dicts()


@pytest.fixture
def groups(tmp_path):
    """Ten row groups of a hundred rows; nulls in the third, and all of them in the fourth."""
    columns = {
        "n": [None if 300 <= i < 400 or i == 250 else i for i in range(1000)],
        "f": [float("nan") if i % 100 == 7 else float(i) for i in range(1000)],
        "t": [f"{i:04d}" for i in range(1000)],
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=100)
    return tmp_path / "a.parquet"


READ = {
    "less": (col("n") < 150, [0, 1]),
    "turned": (pl.lit(150) > col("n"), [0, 1]),
    "between": ((col("n") >= 450) & (col("n") < 500), [4]),
    "either": ((col("n") < 50) | (col("t") > "0899"), [0, 9]),
    "equal": (col("t") == "0777", [7]),
    "among": (col("n").is_in([5, 905]), [0, 9]),
    "null": (col("n").is_null(), [2, 3]),
    "not null": (col("n").is_not_null(), [0, 1, 2, 4, 5, 6, 7, 8, 9]),
    "NaN is not less": (col("f") < 100.0, [0]),
    "NaN is greater": (col("f") > 950.0, range(10)),
    "one side unknown": ((col("t").str.len_bytes() == 4) & (col("n") > 850), [8, 9]),
    "not understood": (~(col("n") > 150), range(10)),
    "a column that is absent": (col("gone") > 1, range(10)),
    "another row": (col("n") > col("n").max() - 1, range(10)),
}


@pytest.mark.parametrize("kind", READ)
def test_row_groups_that_are_ruled_out_are_not_read(groups, kind, monkeypatch):
    predicate, needed = READ[kind]
    asked = []
    iterate = pq.ParquetFile.iter_batches

    def noting(self, *args, row_groups, **kwargs):
        asked.extend(row_groups)
        return iterate(self, *args, row_groups=row_groups, **kwargs)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", noting)
    rows, desk = read(groups, predicate=predicate)
    assert asked == list(needed)
    assert len(rows) + desk.num_filtered == 1000
    everything = pl.read_parquet(groups).with_columns(gone=pl.lit(None))
    assert len(rows) == everything.filter(predicate).height


def test_damage_where_nothing_is_read_is_not_met_and_elsewhere_costs_the_rows_left(groups):
    meta = pq.ParquetFile(groups).metadata
    data = bytearray(groups.read_bytes())
    for i in range(3):
        start = meta.row_group(5).column(i).dictionary_page_offset or meta.row_group(5).column(i).data_page_offset
        data[start : start + 40] = b"\xff" * 40
    groups.write_bytes(data)
    rows, _ = read(groups, predicate=col("n") < 150)
    assert [row["n"] for row in rows] == list(range(150))
    rows, desk = read(groups, policy="skip", predicate=(col("n") >= 520) & (col("n") < 650))
    assert (len(rows), desk.num_filtered, desk.num_records) == (0, 800, 200)


def bounds(low, high, *, num_nulls: int = 0) -> dict[str, Bounds]:
    nulls, rows = np.array([num_nulls]), np.array([2])
    known = np.array([low is not None])
    series = [pl.Series([end], dtype=pl.Float64) for end in (low, high)]
    return {"f": Bounds(low=series[0], high=series[1], is_known=known, num_nulls=nulls, num_rows=rows)}


@pytest.mark.parametrize(
    ("predicate", "low", "high", "expected"),
    [
        (col("f") > 2.0, 0.0, 1.0, True),  # NaN may be among the rows
        (col("f") < 0.0, 0.0, 1.0, False),
        (col("f") == 0.5, 0.0, 1.0, True),
        (col("f") == 2.0, 0.0, 1.0, False),
        (col("f") == float("nan"), 0.0, 1.0, True),
        (col("f").is_in([2.0, float("nan")]), 0.0, 1.0, True),
        (col("f").is_in([2.0, -1.0]), 0.0, 1.0, False),
        (col("f").is_in([i + 2.0 for i in range(99)]), 0.0, 1.0, False),
        (col("f").is_in([i - 50.5 for i in range(99)]), 0.0, 0.1, True),  # of many only the ends are looked at
        (col("f") < 0.0, None, None, True),
        (col("f") < pl.lit(pl.Series([5.0, -1.0])), 0.0, 1.0, True),  # no single value
    ],
)
def test_bounds_rule_out_no_more_than_they_know(predicate, low, high, expected):
    assert may_hold(predicate, bounds(low, high), 1).tolist() == [expected]


CONTENTS = {
    "csv": b"t,n\na,1\nb,2\na,3\n",
    "text": b"a\nb\na\n",
    "arrow": None,
}


@pytest.mark.parametrize("format", CONTENTS)
@pytest.mark.parametrize("with_source", [False, True])
def test_every_reader_leaves_out_what_the_predicate_is_not_true_of(tmp_path, format, with_source):
    path, name = tmp_path / "a", "text" if format == "text" else "t"
    if format == "arrow":
        table = pa.table({"t": ["a", "b", "a"]})
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    else:
        path.write_bytes(CONTENTS[format])
    rows, desk = read(path, format, predicate=col(name) == "a", columns=("gone",), with_source=with_source)
    assert ([row["gone"] for row in rows], desk.num_filtered) == ([None, None], 1)
    assert all(
        list(row) == ["gone", *(("source", "source_row", "source_offset") if with_source else ())] for row in rows
    )
    if with_source:
        rows, _ = read(path, format, predicate=col("source_row") > 2, with_source=True)
        assert [row[name] for row in rows] == ["a"] if format != "csv" else ["b", "a"]


def test_a_predicate_that_does_not_fit_the_column_is_an_error_that_names_the_file(groups):
    with pytest.raises(SchemaError, match=r"a\.parquet: filter:"):
        read(groups, predicate=col("t") + 1 > 2)
