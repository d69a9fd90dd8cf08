"""Encoding: what differs to a program differs here, and nothing else does."""

import dataclasses
import enum
import functools
import math
import re
import types
import uuid
from collections import Counter, OrderedDict, defaultdict
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core.encoding import digest, encode
from marin_core.errors import EncodingError


@dataclasses.dataclass(frozen=True)
class Point:
    x: Any
    y: Any = 0


@dataclasses.dataclass(frozen=True)
class Pair:
    x: Any
    y: Any = 0


class Colour(enum.Enum):
    RED = 1
    CRIMSON = 2


class Level(enum.IntEnum):
    ONE = 1


def double(x: int) -> int:
    return 2 * x


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([0.0, -0.0, 1.0, 2.0, math.inf, -math.inf, math.nan, 1e-300]),
    st.sampled_from(["", "0", "1", "None", "True", "a"]),
    st.sampled_from([b"", b"0", b"a"]),
    st.sampled_from([Path("a"), Path("1"), Colour.RED, Level.ONE]),
    st.sampled_from([0j, complex(0.0, -0.0), Decimal("1.0"), Decimal("1.00"), Fraction(1), date(2020, 1, 1)]),
    st.sampled_from([datetime(2020, 1, 1), datetime(2020, 1, 1, tzinfo=UTC), timedelta(1), re.compile("a")]),
)
hashable = st.one_of(st.booleans(), st.integers(-3, 3), st.sampled_from(["0", "1", "a"]))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.frozensets(hashable, max_size=3),
        st.frozensets(hashable, max_size=3).map(set),
        st.dictionaries(hashable, inner, max_size=3),
        st.dictionaries(hashable, inner, max_size=3).map(OrderedDict),
        st.builds(Point, inner, inner),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=6,
)


def same(a: Any, b: Any) -> bool:
    """Equality that also compares types, all the way down; the oracle for the encoding."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, frozenset | set):
        return {(type(x), x) for x in a} == {(type(x), x) for x in b}
    if isinstance(a, OrderedDict) and [*map(repr, a)] != [*map(repr, b)]:
        return False
    if isinstance(a, dict):
        typed_a, typed_b = ({(type(k), k): v for k, v in d.items()} for d in (a, b))
        return typed_a.keys() == typed_b.keys() and all(same(v, typed_b[k]) for k, v in typed_a.items())
    if dataclasses.is_dataclass(a):
        return same(a.x, b.x) and same(a.y, b.y)
    return repr(a) == repr(b) if isinstance(a, Decimal | complex) else a == b


@given(values, values)
def test_encodings_are_equal_exactly_when_values_are(a: Any, b: Any) -> None:
    assert (digest(encode(a, where="a")) == digest(encode(b, where="b"))) == same(a, b)


@given(st.floats())
def test_floats_round_trip(x: float) -> None:
    tag, text = encode(x, where="x")
    back = float.fromhex(text) if "x" in text else float(text)
    assert tag == "float"
    assert same(back, x)


@given(st.dictionaries(hashable, st.integers()))
def test_order_of_a_mapping_does_not_matter(mapping: dict[Any, int]) -> None:
    backwards = dict(reversed(mapping.items()))
    assert encode(mapping, where="m") == encode(backwards, where="m")


def test_texts_that_are_no_utf8_have_digests_of_their_own() -> None:
    alike = ["\udce9", "\\udce9", "\udcea", "é"]
    assert len({digest(encode(v, where="v")) for v in alike}) == len(alike)


def test_types_with_equal_content_differ() -> None:
    alike = [
        1,
        1.0,
        True,
        "1",
        b"1",
        Path("1"),
        [1],
        (1,),
        {1},
        {1: 1},
        {"1": 1},
        Point(1),
        Pair(1),
        Level.ONE,
        range(1),
    ]
    assert len({digest(encode(v, where="v")) for v in alike}) == len(alike)


def test_partials_and_builtins_have_an_encoding() -> None:
    tag, function, args, _ = encode(functools.partial(double, 3), where="f")
    assert tag == "partial"
    assert function[0] == "function"
    assert function[1].endswith("test_encoding:double")
    assert args == ["tuple", [["int", "3"]]]
    assert encode(len, where="f") == ["builtin", "builtins:len"]


@pytest.mark.parametrize("value", [lambda x: x, object(), iter([]), (i for i in ())])
def test_values_without_identity_are_refused_with_their_path(value: Any) -> None:
    with pytest.raises(EncodingError, match=r"train\(config\.x\['deep'\]\[1\]\)"):
        encode(Point({"deep": [0, value]}), where="train(config")


def test_a_closure_is_refused() -> None:
    def inner() -> None: ...

    with pytest.raises(EncodingError, match="made inside another"):
        encode(inner, where="f")


def of(value: Any) -> str:
    return digest(encode(value, where="v"))


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Where(NamedTuple):
    x: Any
    y: Any = 0


@dataclasses.dataclass
class Cached:
    x: int

    @functools.cached_property
    def twice(self) -> int:
        return 2 * self.x


class Nowhere(tzinfo):
    def tzname(self, _: datetime | None) -> str:
        return "UTC"

    def utcoffset(self, _: datetime | None) -> timedelta:
        return timedelta(0)


def test_plain_values_of_the_standard_library_have_an_encoding_each() -> None:
    alike = [
        *(10**5000, -(10**5000), 2**53, 2.0**53),
        *(range(3), range(0, 3, 2), slice, list, dict),
        *(time(1), time(1, tzinfo=UTC), datetime(2020, 1, 1), datetime(2020, 1, 1, fold=1), date(2020, 1, 1)),
        *(datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 1, tzinfo=ZoneInfo("UTC")), timedelta(1)),
        *(Decimal(1), Decimal("1.0"), Fraction(1), uuid.UUID(int=1), complex(1)),
        *(re.compile("a"), re.compile(b"a"), re.compile("a", re.IGNORECASE)),
        *(Path("a"), PurePosixPath("a"), PureWindowsPath("a")),
        *(Access.READ, Access.WRITE, Access.READ | Access.WRITE, Access(0)),
        *(Where(1), (1, 0), [1, 0], Point(1, 0), Pair(1, 0)),
        *({1}, frozenset({1}), {1: 1}, OrderedDict({1: 1}), defaultdict(int, {1: 1}), defaultdict(list, {1: 1})),
        *("\u00e9", "e\u0301", "\udce9", "\\udce9", b"\xe9", math.nan, "nan", 0.0, -0.0, math.inf, -math.inf),
        *(functools.partial(double, 1), functools.partial(double, 1.0), functools.partial(double, x=1), double),
    ]
    assert len({of(v) for v in alike}) == len(alike)


def test_only_an_ordered_mapping_has_an_order() -> None:
    assert of({"a": 1, "b": 2}) == of({"b": 2, "a": 1})
    assert of(OrderedDict(a=1, b=2)) != of(OrderedDict(b=2, a=1))


def test_arrays_count_by_type_shape_and_bytes() -> None:
    np = pytest.importorskip("numpy")
    alike = [
        *(np.arange(6), np.arange(6.0), np.arange(6).astype("i4"), np.arange(6).reshape(2, 3), np.arange(6).tolist()),
        *(np.float32(1), np.float64(1), 1.0, np.int64(1), np.bool_(True), np.str_("1"), np.array(1)),
        *(np.dtype("f4"), np.float32, np.dtype("f8"), np.dtype([("a", "i4")]), np.dtype([("b", "i4")])),
        *(np.array([0.0]), np.array([-0.0]), np.datetime64("2020-01-01"), np.datetime64("2020-01-01", "s")),
    ]
    assert len({of(v) for v in alike}) == len(alike)
    assert of(np.arange(6).reshape(2, 3)) == of(np.asfortranarray(np.arange(6).reshape(2, 3)))
    with pytest.raises(EncodingError, match=r"f\(x\[0\]\) is a numpy.ndarray"):
        encode([np.array([object()])], where="f(x")


@pytest.mark.parametrize(
    "value",
    [
        bytearray(b"x"),
        Counter("a"),
        types.MappingProxyType({}),
        types.SimpleNamespace(a=1),
        type("Sub", (dict,), {})(a=1),
        type("Sub", (list,), {})([1]),
        type("Sub", (int,), {})(1),
        type("Sub", (str,), {})("1"),
        datetime(2020, 1, 1, tzinfo=Nowhere()),
        Point(0).__eq__,
        list[int],
        math,
    ],
)
def test_what_would_be_said_by_halves_is_refused_with_its_path(value: Any) -> None:
    with pytest.raises(EncodingError, match=r"train\(config\[1\]\['k'\]\) is a"):
        encode([0, {"k": value}], where="train(config")


def test_instances_of_classes_that_a_function_made_are_refused() -> None:
    def make(n: int) -> Any:
        @dataclasses.dataclass
        class Made:
            def f(self) -> int:
                return n

        return Made()

    with pytest.raises(EncodingError, match=r"train\(x\[1\]\) is an instance of .*Made, a function or class made"):
        encode([0, make(1)], where="train(x")


def test_what_was_set_on_an_instance_counts_and_what_it_only_remembers_does_not() -> None:
    a, b, c = Cached(1), Cached(1), Cached(1)
    assert b.twice == 2
    object.__setattr__(c, "extra", 3)
    assert of(a) == of(b) != of(c)


def test_endless_values_are_told() -> None:
    endless: list[Any] = []
    endless.append({"k": endless})
    with pytest.raises(EncodingError, match="nested more than 64 levels deep, or contains itself"):
        encode(endless, where="f(x")


def test_long_lists_are_digested_whole() -> None:
    many = list(range(100_000))
    other = [*many[:-1], float(many[-1])]
    assert len({of(many), of(other), of(tuple(many)), of(many[:-1])}) == 4
    assert len(str(encode(many, where="v"))) < 200


def test_a_function_and_a_class_count_with_what_they_reach(module: Any) -> None:
    digests = set()
    for limit in (1, 2):
        flow = module(f"LIMIT = {limit}\ndef f(): return LIMIT\nclass C:\n    f = f\n")
        digests |= {encode(flow.f, where="f")[2], encode(flow.C, where="f")[2]}
    assert len(digests) == 4
