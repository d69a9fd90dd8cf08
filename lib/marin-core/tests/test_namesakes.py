"""Steps of one name are told apart by what was varied."""

import dataclasses
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from marin_core.namesakes import distinctions
from marin_core.records import NodeRecord


def node(name: str, key: object, **arguments: Any) -> NodeRecord:
    fixed: dict[str, Any] = {"version": None, "upstream": (), "decision": "run", "reason": "", "outcome": "succeeded"}
    return NodeRecord(address=f"{name}/{key}", name=name, arguments=arguments, **fixed)


def test_a_unique_name_says_enough() -> None:
    assert distinctions([node("a", 1, lr=1), node("b", 1, lr=2)], []) == ["", ""]


def test_members_of_a_sweep_are_known_by_what_differs() -> None:
    nodes = [node("train", i, steps=300, config={"optimizer": {"lr": lr}}) for i, lr in enumerate([0.001, 0.003])]
    assert distinctions(nodes, []) == ["lr=0.001", "lr=0.003"]


def test_two_arguments_with_one_last_name_are_written_in_full() -> None:
    nodes = [node("t", i, a={"lr": i}, b={"lr": -i}) for i in (1, 2)]
    assert distinctions(nodes, []) == ["a.lr=1, b.lr=-1", "a.lr=2, b.lr=-2"]


def test_an_argument_that_only_some_have_is_named_where_it_is() -> None:
    assert distinctions([node("t", 1), node("t", 2, seed=1)], []) == ["1", "seed=1"]


def test_what_differs_only_by_its_upstream_is_known_by_that() -> None:
    trains = [node("train", i, lr=i) for i in (1, 2)]
    evaluations = [node("evaluate", i, model={"step": f"train/{i}"}) for i in (1, 2)]
    assert distinctions([*trains, *evaluations], [(0, 2), (1, 3)]) == ["lr=1", "lr=2", "lr=1", "lr=2"]


def test_steps_that_nothing_tells_apart_get_their_digest() -> None:
    assert distinctions([node("a", "0123abcd"), node("a", "4567abcd")], []) == ["0123abcd", "4567abcd"]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.dictionaries(st.text(), st.integers() | st.text())), max_size=8))
def test_every_step_of_a_shared_name_gets_something(steps: list[tuple[str, dict[str, Any]]]) -> None:
    nodes = [dataclasses.replace(node(name, i), arguments=arguments) for i, (name, arguments) in enumerate(steps)]
    names = [n.name for n in nodes]
    for said, name in zip(distinctions(nodes, []), names, strict=True):
        assert bool(said) == (names.count(name) > 1)
