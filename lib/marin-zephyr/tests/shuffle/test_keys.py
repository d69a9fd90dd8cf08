"""Keys: their order and equality as encoded bytes, their digests and partitions."""

import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from marin_zephyr.errors import SchemaError
from marin_zephyr.frames import frame_from_rows
from marin_zephyr.shuffle.keys import encode, key_digests, partitions

INTEGERS = {pl.Int8: (7, -1), pl.Int16: (15, -1), pl.Int32: (31, -1), pl.Int64: (63, -1), pl.UInt8: (8, 0)}
INTEGERS |= {pl.UInt16: (16, 0), pl.UInt32: (32, 0), pl.UInt64: (64, 0), pl.Int128: (127, -1)}
EDGES = [0, 1, -1, 2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1, 2**54 + 2]
TEXT = st.text(st.characters(codec="utf-8") | st.sampled_from("\0\1\2a\U0010ffff"), max_size=4)
FAR = timezone(timedelta(hours=5))


def integers(dtype) -> st.SearchStrategy:
    bits, sign = INTEGERS[dtype]
    low, high = sign * 2**bits, 2**bits - 1
    return st.integers(low, high) | st.sampled_from([e for e in EDGES if low <= e <= high])


def order_key(value: object) -> tuple:
    """Declared order and equality, spelled a second time: compares in Python as keys do."""
    match value:
        case None:
            return (0,)
        case bool():
            return (1, value)
        case float() if math.isnan(value):
            return (2, 2)
        case float() if math.isinf(value):
            return (2, 1 if value > 0 else -1)
        case int() | float() | Decimal():
            return (2, 0, Fraction(value))
        case str():
            return (3, [ord(c) for c in value])
        case bytes():
            return (4, value)
        case datetime():
            return (6, value) if value.tzinfo is None else (7, value.astimezone(UTC))
        case date():
            return (5, value)
        case time():
            return (8, value)
        case timedelta():
            return (9, value)
        case list() | tuple():
            return (10, [order_key(v) for v in value])
        case dict():
            return (11, [([*k], order_key(v)) for k, v in sorted(value.items()) if v is not None])
    raise AssertionError(value)


def columns_of(values: st.SearchStrategy, dtype: pl.DataType) -> st.SearchStrategy:
    return st.tuples(st.just(dtype), st.lists(st.none() | values, max_size=6))


SCALARS = [
    *((integers(dtype), dtype()) for dtype in INTEGERS),
    (st.floats(width=64) | st.sampled_from(EDGES).map(float) | st.sampled_from([-0.0, 0.1, 0.5]), pl.Float64()),
    (st.floats(width=32), pl.Float32()),
    (st.decimals(-(10**9), 10**9, places=3) | st.sampled_from([Decimal("0.1"), Decimal("0.5")]), pl.Decimal(38, 3)),
    (st.decimals(-9, 9, places=30) | st.sampled_from([Decimal("0.1"), Decimal(1)]), pl.Decimal(38, 30)),
    (st.integers(-(10**37), 10**37).map(Decimal), pl.Decimal(38, 0)),
    (st.booleans(), pl.Boolean()),
    (TEXT, pl.String()),
    (TEXT, pl.Categorical()),
    (st.binary(max_size=4) | st.sampled_from([b"\0", b"\1", b"\0\1", b"\xff"]), pl.Binary()),
    (st.dates(), pl.Date()),
    (st.datetimes(), pl.Datetime("us")),
    (st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1)), pl.Datetime("ns")),
    (st.datetimes(timezones=st.sampled_from([UTC, FAR])).map(lambda t: t.astimezone(UTC)), pl.Datetime("us", "UTC")),
    (st.times(), pl.Time()),
    (st.timedeltas(timedelta(-9999), timedelta(9999)), pl.Duration("us")),
]
COLUMNS = st.one_of(
    st.tuples(st.just(pl.Null()), st.lists(st.none(), max_size=3)),
    *(columns_of(values, dtype) for values, dtype in SCALARS),
    *(columns_of(st.lists(st.none() | values, max_size=3), pl.List(dtype)) for values, dtype in SCALARS),
    columns_of(
        st.fixed_dictionaries({"b": st.none() | integers(pl.Int64), "a": st.none() | TEXT}),
        pl.Struct({"b": pl.Int64, "a": pl.String}),
    ),
    columns_of(st.fixed_dictionaries({"b": st.none() | st.floats()}), pl.Struct({"b": pl.Float64})),
    columns_of(st.lists(st.lists(TEXT, max_size=2), max_size=2), pl.List(pl.List(pl.String))),
    columns_of(st.lists(st.integers(0, 2), min_size=2, max_size=2), pl.Array(pl.Int64, 2)),
)


def frame(*columns: tuple[pl.DataType, list]) -> pl.DataFrame:
    return pl.DataFrame([pl.Series(f"k{i}", values, dtype, strict=False) for i, (dtype, values) in enumerate(columns)])


@settings(max_examples=50)
@given(columns=st.lists(COLUMNS, min_size=1, max_size=4))
@example([(pl.Int64(), EDGES[:8]), (pl.UInt64(), [2**64 - 1, 2**53 + 1]), (pl.Float64(), list(map(float, EDGES)))])
@example(
    [(pl.Decimal(38, 3), [Decimal("0.1"), Decimal("0.5"), Decimal(1)]), (pl.Float64(), [0.1, 0.5, 1.0, 0.0, -0.0])]
)
@example(
    [
        (pl.Float64(), [math.nan, -math.nan, math.inf, -math.inf, 0.0, 5e-324]),
        (pl.Int8(), [0, -1]),
        (pl.Boolean(), [True]),
    ]
)
@example([(pl.Decimal(38, 37), [Decimal(f"1.{last:037}") for last in range(4)]), (pl.Float64(), [1.0])])
def test_codes_and_digests_are_those_of_the_declared_order_whatever_the_types_of_the_columns(columns):
    found = []
    for dtype, values in columns:
        rows = frame((dtype, values))
        codes, digests = encode(rows, ["k0"]), key_digests(rows, ["k0"])
        assert (codes.dtype, codes.null_count(), len(codes)) == (pl.Binary, 0, len(values))
        found += zip(rows.get_column("k0").to_list(), codes, map(bytes, digests), strict=True)
    for i, (a, code_a, digest_a) in enumerate(found):
        for b, code_b, digest_b in found[i:]:
            x, y = order_key(a), order_key(b)
            assert (code_a == code_b, code_a < code_b) == (x == y, x < y)
            assert (digest_a == digest_b) == (x == y)


@settings(max_examples=50)
@given(
    data=st.data(),
    kinds=st.lists(st.sampled_from(SCALARS), min_size=1, max_size=3),
    num_rows=st.integers(0, 6),
)
def test_several_columns_order_as_asked_each(data, kinds, num_rows):
    columns = [
        (dtype, data.draw(st.lists(st.none() | values, min_size=num_rows, max_size=num_rows)))
        for values, dtype in kinds
    ]
    rows = frame(*columns)
    flags = st.lists(st.booleans(), min_size=len(kinds), max_size=len(kinds))
    descending, nulls_last = data.draw(flags), data.draw(flags)
    codes = encode(rows, rows.columns, descending=descending, nulls_last=nulls_last).to_list()
    digests = [bytes(d) for d in key_digests(rows, rows.columns)]

    def comes_first(a: tuple, b: tuple) -> int:
        """-1, 0 or 1 as the first column that differs says."""
        for x, y, down, last in zip(a, b, descending, nulls_last, strict=True):
            if (x is None) != (y is None):
                return -1 if (x is None) != last else 1
            if order_key(x) != order_key(y):
                return -1 if (order_key(x) < order_key(y)) != down else 1
        return 0

    keys = rows.rows()
    for i, a in enumerate(keys):
        for j, b in enumerate(keys):
            assert (codes[i] > codes[j]) - (codes[i] < codes[j]) == comes_first(a, b)
            assert (digests[i] == digests[j]) == (comes_first(a, b) == 0)


@settings(max_examples=50)
@given(a=COLUMNS, b=COLUMNS)
@example(a=(pl.Decimal(38, 3), [Decimal("0.1")]), b=(pl.Float64(), [math.nextafter(0.1, 0)]))
def test_no_code_is_a_prefix_of_another(a, b):
    codes = sorted({*encode(frame(a), ["k0"]), *encode(frame(b), ["k0"])})
    assert not any(later.startswith(earlier) for earlier, later in pairwise(codes))


def test_nanoseconds_count_and_units_do_not():
    moments = pl.Series("k", [0, 1, 1_000_000], pl.Int64).cast(pl.Datetime("ns"))
    codes = encode(moments.to_frame(), ["k"]).to_list()
    assert codes == sorted(set(codes))
    nested = pl.DataFrame({"k": [moments[:1], moments[1:2]]})
    assert len({*encode(nested, ["k"])}) == 2
    assert encode(pl.DataFrame({"k": moments[2:].cast(pl.Datetime("ms"))}), ["k"])[0] == codes[2]


def test_a_slice_of_a_frame_has_the_codes_of_its_rows():
    rows = pl.DataFrame({"a": ["x", None, "y\0", "z"], "b": [[1], [], None, [2, 3]], "c": [{"d": i} for i in range(4)]})
    for name in rows.columns:
        assert encode(rows[1:], [name]).to_list() == encode(rows, [name]).to_list()[1:]


@settings(max_examples=50)
@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.none() | st.integers(0, 1) | st.just(1.0)), max_size=4))
def test_whole_rows_are_equal_when_their_members_that_are_not_null_are(rows):
    digests = [
        key_digests(pl.DataFrame([row] if row else None, height=None if row else 1), None)[0].tolist() for row in rows
    ]
    held = [{k: v for k, v in row.items() if v is not None} for row in rows]
    for i, a in enumerate(held):
        for j, b in enumerate(held):
            assert (digests[i] == digests[j]) == (a == b)


def digest(value: object) -> list[int]:
    return key_digests(frame_from_rows([{"key": value}]), ["key"])[0].tolist()


@pytest.mark.parametrize(("a", "b"), [(1, 1.0), (0.0, -0.0), ((1, 2), [1, 2]), ({"x": 1, "y": None}, {"x": 1.0})])
def test_keys_that_are_declared_equal(a, b):
    assert digest(a) == digest(b)


@pytest.mark.parametrize(
    ("a", "b"), [(1, True), ("1", 1), ("a", b"a"), (None, ""), (None, 0), ([None], []), (["ab"], ["a", "b"])]
)
def test_keys_that_are_declared_different(a, b):
    assert digest(a) != digest(b)


def test_the_partition_function_never_changes():
    # Stage fingerprints carry its version; if this fails, raise PARTITION_FUNCTION.
    rows = pl.DataFrame({"k": ["", "a", "marin"], "n": [0, 1, -1], "x": [0.0, 0.5, None], "d": [[1], [], None]})
    found = {name: partitions(key_digests(rows, [name]), 97).tolist() for name in rows.columns}
    assert found == {"d": [57, 1, 2], "k": [51, 16, 10], "n": [74, 6, 24], "x": [74, 77, 2]}
    assert partitions(key_digests(rows, ["k", "n"]), 97).tolist() == [72, 34, 73]
    assert partitions(key_digests(rows, None), 97).tolist() == [8, 75, 19]


def test_small_integers_spread_evenly_over_partitions():
    counts = pl.Series(partitions(key_digests(pl.DataFrame({"n": range(64_000)}), ["n"]), 64)).value_counts()["count"]
    assert counts.is_between(850, 1150).all()  # 1000 expected, five standard deviations are 157


def test_a_column_without_an_order_is_refused():
    rows = pl.DataFrame({"k": pl.Series([object()], dtype=pl.Object)})
    with pytest.raises(SchemaError, match="type Object"):
        encode(rows, ["k"])
