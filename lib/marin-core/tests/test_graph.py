"""Lowering: linear, iterative, and strict about addresses."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from marin_core import AddressCollisionError, EncodingError, Resources, Step, lower, step


@step
def node(*, inputs: Any = (), n: int = 0, log_every: int = 1) -> int:
    return n


@step
def other(*, n: int = 0) -> int:
    return n


@dataclass(frozen=True)
class Config:
    hook: Any


def test_a_chain_of_ten_thousand_steps_lowers_in_order() -> None:
    handle = node()
    for n in range(9_999):
        handle = node(inputs=handle, n=n)
    graph = lower(handle)
    assert len(graph) == 10_000
    assert graph.targets == (graph.addresses[-1],)
    assert graph.edges == tuple(zip(graph.addresses, graph.addresses[1:], strict=False))


def test_stacked_diamonds_are_linear() -> None:
    handle: Step = node()
    for n in range(30):
        handle = node(inputs=[node(inputs=handle, n=2 * n), node(inputs=handle, n=2 * n + 1)], n=n)
    assert len(lower(handle)) == 1 + 3 * 30


DIAMONDS = """
from marin_core import step
@step
def node(*, inputs: object = (), n: int = 0) -> int:
    return n
def build(*, count: int = 30):
    handle = node()
    for n in range(count):
        handle = node(inputs=[node(inputs=handle, n=2 * n), node(inputs=handle, n=2 * n + 1)], n=n)
    return handle
"""


def test_whatever_shows_stacked_diamonds_is_linear(tmp_path: Path, marin: Any) -> None:
    script = tmp_path / "diamonds.py"
    script.write_text(DIAMONDS)

    def shown(count: int) -> list[int]:
        flags = (str(script), "--count", str(count))
        commands = [("plan",), ("explain", "--full"), ("graph",), ("run", "--launcher", "inline"), ("plan",)]
        texts = [marin(*first[:1], *flags, *first[1:]).out for first in commands]
        return [len(t) for t in (*texts, marin("lineage", texts[-1].splitlines()[-2].split()[1]).out)]

    few, many = shown(15), shown(30)
    assert all(0 < b < 3 * a for a, b in zip(few, many, strict=True))


def test_equal_handles_are_one_node() -> None:
    assert len(lower(node(n=1), [node(n=1)], {"k": node(n=1, log_every=9, resources=Resources(cpus=8))})) == 1


def test_upstream_recipes_enter_and_names_do_not() -> None:
    a, b = node(n=1, name="a"), node(n=1, name="b")
    graph = lower(node(inputs=a), node(inputs=b), node(inputs=node(n=2)))
    recipes = [graph.nodes[t].recipe_digest for t in graph.targets]
    assert len(graph.targets) == 2
    assert len(set(recipes)) == 2


def test_a_version_is_the_address_and_enters_downstream() -> None:
    graph = lower(node(inputs=node(version="v1")), node(inputs=node(version="v2")))
    assert {"node/v1", "node/v2"} < set(graph.addresses)
    assert len(graph) == 4


def test_two_recipes_at_one_address_are_named_with_what_differs() -> None:
    with pytest.raises(AddressCollisionError, match=r"node/v1 .*n: 1 -> 2"):
        lower(node(n=1, version="v1"), node(n=2, version="v1"))
    with pytest.raises(
        AddressCollisionError, match=r"test_graph:node and .*test_graph:other both claim the address x/v1"
    ):
        lower(node(name="x", version="v1"), other(name="x", version="v1"))


def test_an_unencodable_value_is_named_by_its_path() -> None:
    with pytest.raises(EncodingError, match=r"node\(inputs\[1\]\.hook\) is a lambda"):
        lower(node(inputs=[0, Config(lambda: 0)]))
