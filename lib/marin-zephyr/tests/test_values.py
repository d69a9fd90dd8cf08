"""Python values on their way into columns: equal afterwards, or refused by the column's name."""

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import pathlib
import uuid
import zoneinfo

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr import Dataset, Session, agg, col
from marin_zephyr.errors import SchemaError
from marin_zephyr.frames import frame_from_rows

EAST = dt.timezone(dt.timedelta(hours=5, minutes=30))
MOMENT = dt.datetime(2020, 2, 3, 4, 5, 6, 7)


class Colour(enum.Enum):
    RED = 1


class Name(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 3


@dataclasses.dataclass
class Point:
    x: int


Pair = collections.namedtuple("Pair", "a b")

KEPT = {
    "numpy int": np.int32(-3),
    "numpy uint64": np.uint64(2**63),
    "numpy float32": np.float32(0.1),
    "numpy bool": np.bool_(True),
    "numpy str": np.str_("é"),
    "numpy bytes": np.bytes_(b"x\xff"),
    "bytes": b"\0\xff",
    "bytearray": bytearray(b"x"),
    "memoryview": memoryview(b"x"),
    "str enum": Name.RED,
    "int enum": Level.LOW,
    "decimal": decimal.Decimal("1.10"),
    "date": dt.date(1, 1, 1),
    "datetime": dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
    "utc": MOMENT.replace(tzinfo=dt.UTC),
    "fixed offset": MOMENT.replace(tzinfo=EAST),
    "zone": MOMENT.replace(tzinfo=zoneinfo.ZoneInfo("Europe/Paris")),
    "time": dt.time(1, 2, 3, 4),
    "duration": dt.timedelta(days=-3, microseconds=1),
    "ordered dict": collections.OrderedDict(b=1, a=2),
    "counter": collections.Counter("aab"),
    "empty dict": {},
    "empty list": [],
    "lists of dicts": [{"a": 1}, {"a": None}],
}
AS_LISTS = {
    "numpy array": (np.array([1.5, 2.0]), [1.5, 2.0]),
    "numpy strings": (np.array(["a", "b"]), ["a", "b"]),
    "array in a dict": ({"a": np.array([1])}, {"a": [1]}),
    "tuple": ((1, 2), [1, 2]),
    "named tuple": (Pair(1, 2), [1, 2]),
    "tuple of tuples": (((1,), ()), [[1], []]),
}
REFUSED = {
    "set": {"a", "b"},
    "frozenset": frozenset("a"),
    "set in a list": [{1}],
    "set in a dict": {"a": {1}},
    "set among lists": [[1], {2}],
    "enum": Colour.RED,
    "dataclass": Point(1),
    "complex": 1j,
    "fraction": fractions.Fraction(1, 2),
    "uuid": uuid.UUID(int=1),
    "uuid in a list": [uuid.UUID(int=1)],
    "path": pathlib.Path("x"),
    "object": object(),
    "function": len,
    "generator": (i for i in ()),
    "range": range(3),
    "deque": collections.deque([1]),
    "two dimensions": np.array([[1, 2], [3, 4]]),
    "numpy date": np.datetime64("2020-01-01"),
    "series": pl.Series([1]),
    "beyond 64 bits": 2**64,
    "beyond in a list": [-(2**63) - 1],
    "no number": decimal.Decimal("NaN"),
    "decimal of 50 places": decimal.Decimal("1E-50"),
    "decimal of 45 digits": decimal.Decimal(10) ** 45,
    "time with a zone": dt.time(1, tzinfo=dt.UTC),
    "endless duration": dt.timedelta.max,
    "int and str": [1, "a"],
    "str and bytes": ["a", b"a"],
    "bytes and str": [b"a", "a"],
    "bool and int": [True, 1],
    "float and bool": [0.0, False],
    "floats and bools of dicts": [{"a": 0.0}, {"a": False}],
    "moments with and without a zone": [MOMENT, MOMENT.replace(tzinfo=EAST)],
    "surrogate": "\ud800",
    "surrogate in a list": ["\udfff"],
}
KEYS = {
    "int": {1: 2},
    "mixed": {"a": 1, 2: 3},
    "none": {None: 1},
    "bytes": {b"a": 1},
    "in a list": [{1: 2}],
    "nul": {"a\0b": 1},
    "deep nul": [{"a": [{"\0": 1}]}],
    "surrogate": {"\ud800": 1},
}


@pytest.mark.parametrize("name", KEPT)
def test_a_value_comes_back_equal(name):
    (back,) = frame_from_rows([{"c": KEPT[name]}])["c"].to_list()
    assert back == KEPT[name]


@pytest.mark.parametrize("name", AS_LISTS)
def test_arrays_and_tuples_come_back_as_lists(name):
    value, expected = AS_LISTS[name]
    assert frame_from_rows([{"c": value}]).row(0) == (expected,)


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_is_refused_by_the_columns_name(name):
    with pytest.raises(SchemaError, match="column 'c'"):
        frame_from_rows([{"c": None}, {"c": REFUSED[name]}])


@pytest.mark.parametrize("name", KEYS)
def test_keys_that_are_no_names_are_refused(name):
    with pytest.raises(SchemaError, match="column"):
        frame_from_rows([{"c": KEYS[name]}])


@pytest.mark.parametrize("name", [1, None, b"a", "a\0", "\1key", "\ud800"])
def test_a_row_with_a_key_that_is_no_name_is_refused(name):
    with pytest.raises(SchemaError, match="rename it"):
        frame_from_rows([{"a": 1, name: 2}])


def test_columns_without_a_name_and_named_like_one_are_two():
    assert frame_from_rows([{"": 1, "column_0": 2}]).rows(named=True) == [{"": 1, "column_0": 2}]


LEAVES = st.one_of(st.integers(-(2**63), 2**63 - 1), st.text(), st.binary(), st.booleans(), st.floats(allow_nan=False))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3), max_leaves=6), max_size=4))
def test_any_values_come_back_equal_and_of_their_types_or_are_refused(values):
    try:
        frame = frame_from_rows([{"c": value} for value in values])
    except SchemaError:
        return
    back = frame["c"].to_list() if values else []
    assert back == values
    assert all(_alike(mine, given) for mine, given in zip(back, values, strict=True))


def _alike(mine, given):
    """Of the same types, but that an integer beside floats is one."""
    if isinstance(given, list):
        return all(map(_alike, mine, given))
    return type(mine) is type(given) or (type(mine), type(given)) == (float, int)


BAD_NAMES = ("a\0b", "\1key")


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize(
    "way", ["map", "flat_map", "select", "with_columns", "polars", "arrow", "window", "map_shards"]
)
def test_an_operation_that_makes_such_a_name_is_refused(name, way):
    rows = Dataset.from_rows([{"n": 1}])
    made = {
        "map": lambda: rows.map(lambda row: {name: 1}),
        "flat_map": lambda: rows.flat_map(lambda row: [{name: 1}]),
        "select": lambda: rows.select(col("n").alias(name)),
        "with_columns": lambda: rows.with_columns(col("n").alias(name)),
        "polars": lambda: rows.map_batches(lambda frame: frame.rename({"n": name})),
        "arrow": lambda: rows.map_batches(lambda table: pa.table({"s": [{name: 1}]}), batch_format="arrow"),
        "window": lambda: rows.window(2, lambda rows: [{name: 1}]),
        "map_shards": lambda: rows.map_shards(lambda rows: [{name: 1} for _ in rows]),
    }[way]()
    with Session(backend="inline") as session, pytest.raises(SchemaError, match="rename it"):
        list(session.rows(made))


@pytest.mark.parametrize("name", BAD_NAMES)
def test_an_operation_is_refused_such_a_name_when_the_plan_is_made(name):
    rows = Dataset.from_rows([{"n": 1}])
    for planned in (
        lambda: rows.group_by(name).agg(num=agg.count()),
        lambda: rows.group_by("n").agg(**{name: agg.count()}),
        lambda: rows.group_by("n").reduce(lambda key, rows: next(rows), order_by=name),
        lambda: rows.sort(["n", name]),
        lambda: rows.distinct(on=name),
        lambda: rows.join(rows, left_on="n", right_on=name),
        lambda: rows.join(rows, on="n", suffix=name),
        lambda: rows.explode(name),
        lambda: rows.filter(col(name) > 1),
        lambda: rows.select(name),
    ):
        with pytest.raises(SchemaError, match="rename it"):
            planned()


@pytest.mark.parametrize("name", BAD_NAMES)
def test_inputs_with_such_a_name_are_refused(name, tmp_path):
    with pytest.raises(SchemaError, match="rename it"):
        Dataset.from_arrow(pa.table({name: [1]}))
    with pytest.raises(SchemaError, match="rename it"):
        Dataset.from_arrow(pa.table({"s": [[{name: 2}]]}))
    pq.write_table(pa.table({name: [1], "n": [1]}), tmp_path / "a.parquet")
    with Session(backend="inline") as session:
        with pytest.raises(SchemaError, match="rename it"):
            list(session.rows(Dataset.from_files(tmp_path / "a.parquet")))
        assert list(session.rows(Dataset.from_files(tmp_path / "a.parquet", columns=["n"]))) == [{"n": 1}]
        with pytest.raises(SchemaError, match="rename it"):
            list(session.rows(Dataset.from_rows([{name: 1}])))


def test_a_csv_header_with_a_nul_is_a_bad_record(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"a,b\0\n1,2\n")
    with Session(backend="inline") as session:
        dataset = Dataset.from_files(tmp_path / "a.csv", on_error="skip")
        assert list(session.rows(dataset)) == []


def test_lines_passed_on_as_they_stand_are_no_column_anywhere(tmp_path):
    """Filters between JSON lines carry the raw lines in a column whose name Arrow refuses."""
    (tmp_path / "a.jsonl").write_text('{"n": 1, "t": "x"}\n{"n":2}\n{"n":  3}\n')
    kept = Dataset.from_files(tmp_path / "a.jsonl").filter(col("n") > 1).filter(lambda row: set(row) <= {"n", "t"})
    with Session(backend="inline") as session:
        session.run(kept.sample(1.0, seed=1).write_jsonl(tmp_path / "out"))
        assert (tmp_path / "out" / "part-00000.jsonl").read_text() == '{"n":2}\n{"n":  3}\n'
        assert session.count(kept) == 2
        assert [row["n"] for row in session.rows(kept)] == [2, 3]
        grouped = kept.group_by("n").agg(num=agg.count()).sort("n")
        assert list(session.rows(grouped)) == [{"n": 2, "num": 1}, {"n": 3, "num": 1}]
        for way in (kept.take(1), kept.repartition(1), kept.union(kept), kept.distinct(on="n")):
            session.run(way.write_jsonl(tmp_path / "out"))
        assert (tmp_path / "out" / "part-00000.jsonl").read_text().count("\n") == 2


def test_rows_of_as_many_but_other_keys_are_not_taken_for_alike():
    assert frame_from_rows([{"a": 1, "b": 2}, {"b": 3, "c": 4}]).rows(named=True) == [
        {"a": 1, "b": 2, "c": None},
        {"a": None, "b": 3, "c": 4},
    ]


def test_a_row_that_makes_up_values_is_asked_for_none():
    made = collections.defaultdict(int, b=1)
    assert frame_from_rows([{"a": 1}, made]).rows(named=True) == [{"a": 1, "b": None}, {"a": None, "b": 1}]
    assert dict(made) == {"b": 1}
