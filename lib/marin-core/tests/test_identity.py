"""Encoding: what differs to a program differs here, and nothing else does."""

import dataclasses
import enum
import functools
import importlib.metadata
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core.errors import EncodingError
from marin_core.identity import digest, encode, installed_packages


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
)
hashable = st.one_of(st.booleans(), st.integers(-3, 3), st.sampled_from(["0", "1", "a"]))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.frozensets(hashable, max_size=3),
        st.dictionaries(hashable, inner, max_size=3),
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
    if isinstance(a, frozenset):
        return {(type(x), x) for x in a} == {(type(x), x) for x in b}
    if isinstance(a, dict):
        typed_a, typed_b = ({(type(k), k): v for k, v in d.items()} for d in (a, b))
        return typed_a.keys() == typed_b.keys() and all(same(v, typed_b[k]) for k, v in typed_a.items())
    if dataclasses.is_dataclass(a):
        return same(a.x, b.x) and same(a.y, b.y)
    return a == b


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
    assert function[1].endswith("test_identity:double")
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


SCRIPT = """
import enum, sys
from dataclasses import dataclass
from marin_core import Input, lower, step
@dataclass(frozen=True)
class Config:
    tags: frozenset
    table: dict
@step
def first(*, config: Config) -> int:
    return 1
@step
def second(a: int, *, names: set) -> int:
    return 2
def show():
    config = Config(frozenset({"a", "b", "c", "d"}), {"x": 1, 2: "y"})
    for node in lower(second(first(config=config), names={"p", "q", "r"})).nodes.values():
        print(node.address, node.recipe_digest, node.code.digest)
if __name__ == "__main__":
    show()
"""


def test_digests_do_not_depend_on_hash_seed_directory_or_being_the_script(tmp_path: Path, python: Any) -> None:
    (tmp_path / "project" / "experiments").mkdir(parents=True)
    (tmp_path / "project" / "pyproject.toml").write_text("")
    script = tmp_path / "project" / "experiments" / "job.py"
    script.write_text(SCRIPT)
    (tmp_path / "elsewhere").mkdir()
    as_module = "import sys; sys.path.insert(0, sys.argv[1]); import experiments.job as j; j.show()"
    as_plain = "import sys; sys.path.insert(0, sys.argv[1]); import job as j; j.show()"
    outputs = {
        python(script, cwd=tmp_path, PYTHONHASHSEED="1").stdout,
        python(script, cwd=tmp_path / "elsewhere", PYTHONHASHSEED="2").stdout,
        python("-c", as_module, script.parent.parent, cwd=tmp_path, PYTHONHASHSEED="3").stdout,
        python("-c", as_plain, script.parent, cwd=tmp_path, PYTHONHASHSEED="4").stdout,
    }
    assert len(outputs) == 1
    assert outputs.pop().count("\n") == 2


def test_installed_packages_are_those_that_importlib_names() -> None:
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        if distribution.name:
            found.setdefault(distribution.name.lower().replace("_", "-"), distribution.version)
    assert installed_packages() == found
