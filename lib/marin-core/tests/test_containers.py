"""Containers: searched, replaced and copied alike; a handle does not change with what it was made from."""

from __future__ import annotations

import functools
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from marin_core import Step, UsageError, lower, step
from marin_core.steps import find_steps, replace_steps


@step
def node(x: Any = None, *, n: int = 0, log_every: Any = 1) -> int:
    return n


class Named(NamedTuple):
    first: Any
    second: Any = 0


@dataclass(frozen=True, slots=True)
class Frozen:
    value: Any


@dataclass
class Derived:
    value: Any
    double: Any = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.value, Step | list):
            raise TypeError("made again")
        self.double = [self.value, self.value]


def test_steps_are_found_and_replaced_in_every_container_in_order() -> None:
    steps = [node(n=i) for i in range(10)]
    value = [
        steps[0],
        (steps[1], Named(steps[2])),
        {"k": Frozen(steps[3]), "d": defaultdict(list, {1: steps[4]})},
        OrderedDict(b=steps[5], a=steps[6]),
        functools.partial(max, steps[7], key=steps[8]),
        Derived(steps[9]),
    ]
    assert list(dict.fromkeys(find_steps(value))) == steps
    replaced = replace_steps(value, lambda s: s.arguments["n"])
    assert replaced[:3] == [0, (1, Named(2)), {"k": Frozen(3), "d": defaultdict(list, {1: 4})}]
    assert isinstance(replaced[1][1], Named)
    assert list(replaced[3].items()) == [("b", 5), ("a", 6)]
    assert (replaced[4].args, replaced[4].keywords) == ((7,), {"key": 8})
    assert (replaced[5].value, replaced[5].double) == (9, [9, 9])
    assert replace_steps([1, {"a": 2}], lambda _: None) == [1, {"a": 2}]


def test_upstream_steps_stand_in_the_order_of_the_arguments() -> None:
    steps = [node(n=i) for i in range(4)]
    graph = lower(node([steps[2], {"b": steps[1], "a": steps[0]}, Frozen(steps[3])]))
    upstream = graph.nodes[graph.targets[0]].upstream
    assert list(upstream) == [graph.handles[steps[i]] for i in (2, 0, 1, 3)]


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda: [[1]], lambda v: v[0].append(2)),
        (lambda: {"a": [1]}, lambda v: v["a"].append(2)),
        (lambda: ({1},), lambda v: v[0].add(2)),
        (lambda: OrderedDict(a=1), lambda v: v.move_to_end("a") or v.update(b=1)),
        (lambda: defaultdict(list), lambda v: v["a"]),
        (lambda: Frozen([1]), lambda v: v.value.append(2)),
        (lambda: Derived([1]), lambda v: setattr(v, "value", 2)),
        (lambda: Named([1]), lambda v: v.first.append(2)),
        (lambda: functools.partial(max, [1]), lambda v: v.args[0].append(2)),
    ],
)
def test_a_later_change_to_an_argument_does_not_reach_the_handle(make: Any, change: Any) -> None:
    value = make()
    handle = node(value)
    before = lower(handle).targets
    change(value)
    assert lower(handle).targets == before != lower(node(value)).targets


def test_a_later_change_to_an_array_does_not_reach_the_handle() -> None:
    np = pytest.importorskip("numpy")
    value = np.zeros(3)
    handle = node(x=[value])
    before = lower(handle).targets
    value[0] = 1
    assert lower(handle).targets == before != lower(node(x=[value])).targets


def test_a_value_that_contains_itself_or_is_too_deep_is_refused_at_the_call() -> None:
    endless: list[Any] = [1]
    endless.extend([{"again": endless}, {"again": endless}])
    with pytest.raises(UsageError, match="step node: x: a list contains itself"):
        node(endless)
    deep: Any = 0
    for _ in range(1000):
        deep = {"k": deep}
    with pytest.raises(UsageError, match="step node: x is nested more than 64 levels deep"):
        node(deep)


def test_what_is_shared_is_looked_at_once() -> None:
    value: Any = [node()]
    for _ in range(40):
        value = (value, value)
    assert len(list(find_steps(value))) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: node({node(): 1}), "is a key of a dict; pass it as a value"),
        (lambda: node({(1, node()): 1}), "is a key of a dict"),
        (lambda: node([{node()}]), "is inside a set"),
        (lambda: node(log_every=[node()]), "log_every is ignored, so it cannot hold <Step 'node'"),
    ],
)
def test_a_step_where_none_is_looked_for_is_refused(call: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call()
