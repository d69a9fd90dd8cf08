"""Certificates: differences are found where they are, and put down to what can have caused them."""

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core.records import Digests, EnvironmentRecord, StepRecord
from marin_core.reproduction.certificates import Side, compare, explain
from marin_core.reproduction.differences import Output, file_differences, first_difference, value_differences
from marin_core.store import manifest

MACHINE = {"cpu": "A", "num_cpus": 2, "accelerators": [], "platform": "Linux", "packages": {"numpy": "1"}}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)


def side(**changes: Any) -> Side:
    """One making of a step; keywords are fields of the record, or of the side itself."""
    record = StepRecord(
        address="a/1",
        name="a",
        version=None,
        attempt=1,
        digests=Digests(recipe="r", code="c", environment="e", inputs="i"),
        recipe={},
        code={"m:f": "1"},
        upstream=("u/1",),
        files=(),
        output_digest="o",
        value=1,
        committed_at=0.0,
        seconds=0.0,
        inputs={"u/1": "x"},
        origin={"commit": "1" * 40},
    )
    own = {"environment": None, "machine": MACHINE, "output": Output(files=(), prefix="/p", directory=None)}
    fields = {f.name for f in dataclasses.fields(record)}
    record = dataclasses.replace(record, **{k: v for k, v in changes.items() if k in fields})
    return Side(record=record, **own | {k: v for k, v in changes.items() if k not in fields})


def digests(**changes: str) -> Digests:
    return dataclasses.replace(side().record.digests, **changes)


def packages(**versions: str) -> EnvironmentRecord:
    return EnvironmentRecord(python="3.12.1", lock="", packages=versions)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({}, {}, "the step is not deterministic"),
        (
            {},
            {"machine": MACHINE | {"cpu": "B"}},
            "same recipe, code, inputs and environment; machine differs: cpu A -",
        ),
        ({}, {"machine": MACHINE | {"accelerators": ["H"]}}, "machine differs: accelerators [] -> ['H']"),
        ({}, {"machine": MACHINE | {"packages": {"numpy": "2"}}}, "environment differs: numpy 1 -> 2"),
        (
            {"machine": {}},
            {},
            "same recipe, code, inputs and environment; the machine it was made with is not recorded",
        ),
        ({}, {"digests": digests(environment="E")}, "the environment it was made with is not recorded"),
        (
            {"environment": packages(a="1")},
            {"digests": digests(environment="E"), "environment": packages(a="2")},
            "same recipe, code, inputs and machine; environment differs: a 1 -> 2",
        ),
        ({}, {"inputs": {"u/1": "y"}}, "input differs: u/1"),
        (
            {},
            {"digests": digests(code="C"), "code": {"m:f": "2"}, "origin": {"commit": "2" * 40}},
            f"code differs: made at commit {'1' * 12}, run at {'2' * 12}, m:f",
        ),
    ],
)
def test_a_difference_is_put_down_to_what_differs(old: dict[str, Any], new: dict[str, Any], expected: str) -> None:
    assert expected in explain(side(**old), side(**new), first={})


def test_an_input_that_differs_already_comes_before_every_other_cause() -> None:
    new = side(machine=MACHINE | {"cpu": "B"})
    assert explain(side(), new, first={"u/1": "u/1"}) == "its input u/1 differs already"
    far = explain(side(), new, first={"u/1": "t/1"})
    assert far == "its input u/1 differs already; the first to differ is t/1"


def test_an_unplaced_value_is_recognised_whatever_attempt_its_path_names() -> None:
    outputs = [Output(files=(), prefix=p, directory=None) for p in ("/old", "/new/prefix")]
    old = side(value="/old/u/1/attempts/3/out", output=outputs[0], output_digest="1")
    new = side(value="/new/prefix/u/1/attempts/1/out", output=outputs[1], output_digest="2")
    assert compare(old, new, first={}).explanation == "only the path of the prefix differs, in its value"
    other = side(value="/new/prefix/u/2/attempts/1/out", output=outputs[1], output_digest="2")
    assert "not deterministic" in compare(old, other, first={}).explanation


@given(st.binary(max_size=30), st.binary(max_size=30))
def test_the_first_byte_that_differs_is_found(a: bytes, b: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        one, two = Path(directory, "one"), Path(directory, "two")
        one.write_bytes(a)
        two.write_bytes(b)
        at = first_difference(one, two)
    assert (at is None) == (a == b)
    if at is not None:
        assert a[:at] == b[:at]
        assert a[at : at + 1] != b[at : at + 1]


def test_a_difference_beyond_the_first_block_has_its_own_offset(tmp_path: Path) -> None:
    start = b"x" * ((1 << 20) + 5)
    (tmp_path / "a").write_bytes(start + b"a")
    (tmp_path / "b").write_bytes(start + b"b")
    assert first_difference(tmp_path / "a", tmp_path / "b") == len(start)
    assert first_difference(tmp_path / "a", tmp_path / "absent") is None


@given(json_values, json_values)
def test_values_differ_in_a_leaf_exactly_when_they_differ(a: Any, b: Any) -> None:
    assert not list(value_differences(a, a))
    if list(value_differences(a, b)):
        assert repr(a) != repr(b)
    else:
        assert a == b


def test_differing_fields_of_json_files_are_named(tmp_path: Path) -> None:
    def output(name: str, files: dict[str, str]) -> Output:
        directory = tmp_path / name
        directory.mkdir()
        for path, text in files.items():
            (directory / path).write_text(text)
        return Output(files=manifest(directory, durable=False), prefix=str(tmp_path), directory=directory)

    old = output("old", {"m.jsonl": '{"s": 1, "t": 2}\n{"s": 2, "t": 2}\n', "b.json": "{", "c.txt": "1", "gone": ""})
    new = output("new", {"m.jsonl": '{"s": 1, "t": 2}\n{"s": 2, "t": 3}\n', "b.json": "[", "c.txt": "2", "new": ""})
    found = {f.path: f for f in file_differences(old, new)}
    assert list(found) == ["b.json", "c.txt", "gone", "m.jsonl", "new"]
    assert found["m.jsonl"].fields == ("[1].t: 2 -> 3",)
    assert (found["b.json"].fields, found["b.json"].first_byte) == ((), 0)
    assert (found["gone"].new, found["new"].old) == (None, None)
