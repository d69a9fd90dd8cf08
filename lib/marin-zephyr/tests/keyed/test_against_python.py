"""Whatever the rows, the shards, the partitions and the memory: keyed work gives what naive Python gives."""

import math
from collections.abc import Callable, Iterable
from itertools import groupby, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr import Dataset, agg, col

quick = settings(max_examples=25, derandomize=True)

KEYS = {
    "numbers": st.one_of(st.none(), st.integers(-3, 3), st.sampled_from([0.5, -0.0, 2.0, 1e300, math.inf, math.nan])),
    "strings": st.one_of(st.none(), st.sampled_from(["", "a", "b", "ab", "a\0", "é", "\U0001f600", "\uffff"])),
    "bytes": st.one_of(st.none(), st.sampled_from([b"", b"\0", b"a", b"a\0", b"\xff"])),
    "booleans": st.one_of(st.none(), st.booleans()),
    "lists": st.one_of(st.none(), st.lists(st.integers(0, 1), max_size=2)),
}
NUMBERS = st.one_of(st.none(), st.integers(-9, 9), st.integers(-20, 20).map(lambda n: n / 4), st.just(math.nan))
TEXTS = st.one_of(st.none(), st.sampled_from(["", "x", "y", "é"]))
KINDS = st.sampled_from(sorted(KEYS))
WAYS = st.fixed_dictionaries({"memory": st.sampled_from([1, 3000, 1 << 30]), "many": st.booleans()})


@st.composite
def tables(draw: Callable, kind: str, fields: dict) -> list[dict]:
    """Rows with a key ``k`` of one kind and the fields, any of which a row but the first may lack."""
    rows = draw(st.lists(st.fixed_dictionaries({}, optional={"k": KEYS[kind], **fields}), max_size=20))
    return [{**dict.fromkeys(["k", *fields]), **row} if i == 0 else row for i, row in enumerate(rows)]


def source(rows: list[dict], num_shards: int) -> Dataset:
    """The rows in batches of three."""
    return Dataset.from_rows(rows, num_shards=num_shards).map_batches(lambda frame: frame, batch_rows=3)


def ordered(value: Any) -> tuple:
    """Sorts as keys of one kind do, and is equal where they are."""
    if value is None:
        return (0,)
    if isinstance(value, float) and math.isnan(value):
        return (2,)
    return (1, tuple(value) if isinstance(value, list) else value)


def groups(rows: list[dict]) -> Iterable[tuple[Any, list[dict]]]:
    """The rows of each key, in canonical order."""
    for _, members in groupby(sorted(rows, key=lambda row: ordered(row.get("k"))), lambda row: ordered(row.get("k"))):
        listed = list(members)
        yield listed[0].get("k"), listed


def plain(value: Any) -> Any:
    """NaN made equal to itself."""
    if isinstance(value, list):
        return [plain(v) for v in value]
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def check(got: list[dict], expected: list[dict], way: dict) -> None:
    """Equal rows; in order, too, where there is one partition (a key's rows always are)."""
    columns = list(dict.fromkeys(name for row in expected for name in row))
    if way["many"]:
        got = sorted(got, key=lambda row: ordered(row["k"]))
    assert [[plain(row.get(c)) for c in columns] for row in got] == [
        [plain(row.get(c)) for c in columns] for row in expected
    ]


def aggregated(key: Any, rows: list[dict]) -> dict:
    """All aggregates of ``x`` and ``t``, spelled a second time."""
    xs, ts = [row.get("x") for row in rows], [row.get("t") for row in rows]
    held, texts = [x for x in xs if x is not None], [t for t in ts if t is not None]
    solid = [x for x in held if not math.isnan(x)] or held
    return {
        "k": key,
        "rows": len(rows),
        "xs": len(held),
        "sum": sum(held) if held else None,
        "mean": sum(held) / len(held) if held else None,
        "min": min(solid, default=None),
        "max": max(solid, default=None),
        "low": min(texts, default=None),
        "first": held[0] if held else None,
        "last": texts[-1] if texts else None,
        "all": xs,
        "different": len({plain(x) for x in held}),
    }


AGGREGATES = {
    "rows": agg.count(),
    "xs": agg.count("x"),
    "sum": agg.sum("x"),
    "mean": agg.mean("x"),
    "min": agg.min("x"),
    "max": agg.max("x"),
    "low": agg.min("t"),
    "first": agg.first("x"),
    "last": agg.last("t"),
    "all": agg.collect("x"),
    "different": agg.approx_distinct("x"),
}


@quick
@given(data=st.data(), kind=KINDS, num_shards=st.integers(1, 4), way=WAYS, gathered=st.sampled_from([2, 500_000]))
def test_aggregates(data, kind, num_shards, way, gathered, run):
    rows = data.draw(tables(kind, {"x": NUMBERS, "t": TEXTS}))
    got = run(source(rows, num_shards).group_by("k").agg(**AGGREGATES), gathered=gathered, **way)
    check(got, [aggregated(key, members) for key, members in groups(rows)], way)


def listed(key: Any, rows: Iterable[dict]) -> dict:
    return {"k": key, "rows": [row["i"] for row in rows]}


@quick
@given(data=st.data(), kind=KINDS, num_shards=st.integers(1, 4), way=WAYS, order=st.sampled_from(["", "x", "-x", "tx"]))
def test_reducers(data, kind, num_shards, way, order, run):
    rows = [{**row, "i": i} for i, row in enumerate(data.draw(tables(kind, {"x": NUMBERS, "t": TEXTS})))]
    arguments, key = {
        "": ({}, lambda row: 0),
        "x": ({"order_by": "x"}, lambda row: ordered(row.get("x"))),
        "-x": ({"order_by": ["x"], "descending": True}, lambda row: [-n for n in ordered(row.get("x"))]),
        "tx": ({"order_by": ["t", "x"]}, lambda row: (ordered(row.get("t")), ordered(row.get("x")))),
    }[order]
    got = run(source(rows, num_shards).group_by("k").reduce(listed, **arguments), **way)
    if order == "-x":  # nulls stay first
        key = lambda row: (ordered(row.get("x")) != (0,), [-n for n in ordered(row.get("x"))])  # noqa: E731
    check(got, [listed(k, sorted(members, key=key)) for k, members in groups(rows)], way)


def joined(left: list[dict], right: list[dict], how: str) -> list[dict]:
    """A join by nested loops, in canonical order."""
    suffix = "_right" if left else ""
    others = {ordered(key): members for key, members in groups(right)}
    mine = {ordered(key): members for key, members in groups(left)}

    def beside(a: dict, b: dict) -> dict:
        key = a["k"] if a.get("k") is not None else b.get("k")
        return {"k": key, "i": a.get("i"), "t": a.get("t"), f"t{suffix}": b.get("t"), "j": b.get("j")}

    made = []
    for key in sorted({*mine, *others}):
        a, b = mine.get(key, []), others.get(key, [])
        if key != (0,) and a and b:
            if how == "semi":
                made += a
            elif how != "anti":
                made += [beside(x, y) for x, y in product(a, b)]
            continue
        if how in ("right", "full"):
            made += [beside({}, y) | ({} if suffix else {"t": y.get("t")}) for y in b]
        if how in ("left", "full", "anti"):
            made += a if how == "anti" else [beside(x, {}) for x in a]
    return made


@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti"])
@settings(max_examples=12, derandomize=True)
@given(data=st.data(), kind=KINDS, num_shards=st.integers(1, 4), way=WAYS, small=st.booleans())
def test_joins(how, data, kind, num_shards, way, small, run):
    left = [{**row, "i": i} for i, row in enumerate(data.draw(tables(kind, {"t": TEXTS})))]
    right = [{**row, "j": j} for j, row in enumerate(data.draw(tables(kind, {"t": TEXTS})))]
    dataset = source(left, num_shards).with_columns(col("t")).join(source(right, 5 - num_shards), on="k", how=how)
    expected = joined(left, right, how)
    if small and how not in ("right", "full"):
        expected.sort(key=lambda row: row["i"])
        way = {**way, "many": False}
    check(run(dataset, small=small, **way), expected, way)
