"""Records: what is written reads back the same, and what does not is called corrupt."""

import dataclasses
import json
import math
import typing
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marin_core.errors import CorruptRecordError, NewerRecordError
from marin_core.records import (
    AttemptRecord,
    NodeRecord,
    RunRecord,
    StepRecord,
    build,
    fenced,
    finite,
    from_json,
    to_json,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def strategy_for(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field's annotation, JSON ones where it says Any."""
    if hint is Any:
        return json_values
    if typing.get_origin(hint) is dict:
        return st.dictionaries(st.text(max_size=3), strategy_for(typing.get_args(hint)[1]), max_size=3)
    if hint is float:
        return st.floats(allow_nan=False, allow_infinity=False)
    if dataclasses.is_dataclass(hint):
        return records(hint)
    if typing.get_origin(hint) is tuple:
        return st.lists(strategy_for(typing.get_args(hint)[0]), max_size=3).map(tuple)
    if type(None) in typing.get_args(hint):
        return st.none() | strategy_for(next(a for a in typing.get_args(hint) if a is not type(None)))
    return st.from_type(hint)


def records(kind: Any) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    fields = {f.name: strategy_for(hints[f.name]) for f in dataclasses.fields(kind) if f.name != "schema"}
    return st.builds(kind, **fields)


@pytest.mark.parametrize("kind", [StepRecord, AttemptRecord, NodeRecord, RunRecord])
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_records_round_trip(kind: type, data: st.DataObject) -> None:
    record = data.draw(records(kind))
    assert from_json(kind, to_json(record), where="x") == record


def a_run() -> RunRecord:
    return RunRecord(
        run_id="r",
        script="s.py",
        argv=("s.py",),
        targets=(),
        status="running",
        started_at=0.0,
        ended_at=None,
        nodes=(),
        environment={"python": "3.12"},
    )


@given(st.integers(0, 400))
def test_a_truncated_record_is_corrupt_and_names_the_file(cut: int) -> None:
    run = a_run()
    text = to_json(run)
    assert from_json(RunRecord, text, where="x") == run
    with pytest.raises(CorruptRecordError, match=r"runs/r\.json"):
        from_json(RunRecord, text[: min(cut, len(text) - 3)], where="runs/r.json")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "9"}', "null", "\x00"])
def test_other_documents_are_corrupt(text: str) -> None:
    with pytest.raises(CorruptRecordError, match="not a readable StepRecord"):
        from_json(StepRecord, text, where="step.json")


def test_a_record_of_a_later_schema_is_refused_and_not_called_corrupt() -> None:
    with pytest.raises(NewerRecordError, match=r"a/1/step\.json: schema 99 is newer than 1; upgrade marin-core") as e:
        from_json(StepRecord, '{"schema": 99}', where="a/1/step.json")
    assert e.value.exit_code == 3


@dataclasses.dataclass(frozen=True)
class Loss:
    last: float
    best: float | None = None
    name: str | float = "NaN"


@given(st.floats())
def test_every_float_has_a_name_in_strict_json_and_comes_back_from_it(value: float) -> None:
    text = json.dumps({"last": finite(value), "best": finite(value), "name": "NaN"}, allow_nan=False)
    loss = build(Loss, json.loads(text))
    for back in (loss.last, loss.best):
        assert back == value or (math.isnan(back) and math.isnan(value))
    assert loss.name == "NaN"


def test_a_bare_nan_that_an_earlier_version_wrote_reads_as_its_name() -> None:
    run_record = a_run()
    text = to_json(run_record).replace('"3.12"', "[NaN, -Infinity]")
    record = from_json(RunRecord, text, where="x")
    assert record.environment == {"python": ["NaN", "-Infinity"]}
    assert from_json(RunRecord, to_json(record), where="x") == record
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json(dataclasses.replace(run_record, environment={"loss": math.nan}))


def test_a_run_record_has_a_line_for_each_step_and_each_fact() -> None:
    nodes = tuple(
        NodeRecord(
            address=f"a/{i}", name="a", version=None, upstream=(), arguments={"i": i}, decision="run", reason="",
            outcome="pending",
        )
        for i in range(3)
    )  # fmt: skip
    text = to_json(dataclasses.replace(a_run(), nodes=nodes))
    lines = text.splitlines()
    assert [line for line in lines if '"python"' in line] == ['    "python": "3.12"']
    assert [json.loads(line.strip().rstrip(","))["address"] for line in lines if '"a/' in line] == ["a/0", "a/1", "a/2"]


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(record=records(StepRecord))
def test_the_text_of_a_record_is_its_fields_as_json(record: StepRecord) -> None:
    assert json.loads(to_json(record)) == json.loads(json.dumps(dataclasses.asdict(record)))


def test_what_is_no_record_is_refused_inside_one() -> None:
    with pytest.raises(TypeError, match="a object has no place in a record"):
        to_json(dataclasses.replace(a_run(), environment={"x": object()}))


def test_garbage_that_is_nested_deep_is_a_corrupt_record_too() -> None:
    with pytest.raises(CorruptRecordError, match=r"a/step.json: not a readable StepRecord"):
        from_json(StepRecord, "[" * 100_000, where="a/step.json")
    assert fenced(b"[" * 100_000, address="a", epoch=1).endswith(b"\n1")
