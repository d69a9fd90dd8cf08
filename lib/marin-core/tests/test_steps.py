"""Handles: bound early, immutable, lazy; mistakes named at the call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from marin_core import Input, Out, Resources, Step, UsageError, Work, adopt, lower, step, sweep
from marin_core.steps import find_steps


@step
def make(out: Out, *, size: int = 1, log_every: int = 10) -> int:
    raise AssertionError("a handle never runs the body")


@step(version="v1", retries=2)
def join(out: Out, work: Work, first: Input, others: list[Input], count: int = 0, *, table: Any = None) -> dict:
    raise AssertionError("a handle never runs the body")


@dataclass(frozen=True)
class Nested:
    source: Any


def test_calling_runs_nothing_and_enters_defaults() -> None:
    handle = make(size=4)
    assert isinstance(handle, Step)
    assert dict(handle.arguments) == {"size": 4, "log_every": 10}
    assert handle.name == "make"


def test_injected_parameters_are_skipped_in_positional_order() -> None:
    handle = join(make(), [make(size=2)], 3)
    assert list(handle.arguments) == ["first", "others", "count", "table"]
    assert (handle.version, handle.retries) == ("v1", 2)


def test_reserved_words_override_at_the_call() -> None:
    handle = make(name="wiki/make", version="2", resources=Resources(cpus=4), retries=1)
    assert (handle.name, handle.version, handle.resources.cpus, handle.retries) == ("wiki/make", "2", 4, 1)


def test_roles_follow_string_annotations() -> None:
    assert join.roles == {
        "out": "out",
        "work": "work",
        "first": "input",
        "others": "input",
        "count": "value",
        "table": "value",
    }


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make(sise=1), "step make: no parameter named 'sise'; it has size, log_every"),
        (lambda: make(out="x"), "'out' is passed by the runner"),
        (lambda: join(), "step join: missing a required argument: 'first'"),
        (lambda: join("data/", []), r"first='data/' is a path.*adopt\(path\)"),
        (lambda: make(name="../up"), "name='../up'"),
        (lambda: make(name="runs/x"), "'runs' is a name of the store's own"),
        (lambda: make(version="a/b"), "version='a/b'"),
        (lambda: step(lambda out: 1), "at module level"),
        (lambda: sweep(make, over={"size": [1]}, size=2), "both swept over and fixed"),
        (lambda: sweep(make, over={"size": 1}), "sweep of make: 'size' is 1, one value; give a list of values"),
        (lambda: sweep(make, over={"size": {1, 2}}), "'size' is a set, which has no order; give a list"),
        (lambda: sweep(make, over={"sise": [1]}), "no parameter named 'sise'"),
        (lambda: sweep(len, over={}), "no step function; decorate it with @step"),  # type: ignore[arg-type]
        (lambda: step(ignore="size")(make.function), r"ignore='size' must be a tuple, \('size',\)"),
        (
            lambda: step(ignore=("sise",))(make.function),
            "ignore='sise' is no parameter of it; it has out, size, log_every",
        ),
        (lambda: Resources(cpus=-4), "Resources: cpus=-4 must be a number above 0"),
        (lambda: Resources(cpus=0), "cpus=0 must"),
        (lambda: Resources(cpus=float("nan")), "cpus=nan must"),
        (lambda: Resources(memory_bytes=-1), "memory_bytes=-1 must"),
        (lambda: Resources(memory_bytes="8GB"), "memory_bytes='8GB' must"),  # type: ignore[arg-type]
        (lambda: adopt("/nowhere/at/all"), "no such file or directory"),
        (lambda: lower([]), "no step to run"),
        (
            lambda: join(make(), [], table=(make(), {make()})),
            r"<Step 'make' = make\(size=1, log_every=10\)> is inside a set, .* pass a list",
        ),
    ],
)
def test_mistakes_are_named(call: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call()


def test_later_changes_to_arguments_do_not_reach_the_handle() -> None:
    others = [make(size=1)]
    handle = join(make(), others)
    before = lower(handle).addresses
    others.append(make(size=2))
    assert lower(handle).addresses == before


def test_upstream_steps_are_found_at_any_depth() -> None:
    steps = [make(size=i) for i in range(5)]
    value = [steps[0], {"a": (steps[1], [steps[2]])}, Nested({"b": steps[3]}), {1, 2}, (steps[4],)]
    assert list(find_steps(value)) == steps


@dataclass(frozen=True)
class Sources:
    text: Input
    more: list[Input] | None = None


@step
def merge(sources: Sources, nested: Nested) -> int:
    raise AssertionError("a handle never runs the body")


def test_a_dataclass_mentions_what_its_fields_do() -> None:
    assert merge.roles == {"sources": "input", "nested": "value"}


def test_a_sweep_is_in_the_order_of_its_product() -> None:
    grid = sweep(join, over={"count": [1, 2], "table": "ab"}, first=make(), others=[])
    assert [(h.arguments["count"], h.arguments["table"]) for h in grid] == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]


def test_a_sweep_over_steps_and_over_nothing() -> None:
    sources = [make(size=1), make(size=2)]
    grid = sweep(join, over={"first": iter(sources), "count": (1, 2)}, others=[], version=None)
    assert [h.arguments["first"] for h in grid] == [sources[0]] * 2 + [sources[1]] * 2
    assert sweep(make, over={"size": []}) == []
    assert [h.arguments["size"] for h in sweep(make, over={})] == [1]
