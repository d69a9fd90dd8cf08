"""What differs in two steps and in two runs: named, measured, and nothing else."""

import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core import StepRunner, lower
from marin_core.reading.changes import Change, between_environments, leaves, matched
from marin_core.reasons import Options
from marin_core.records import NodeRecord

SOURCE = """
import json
from marin_core import Input, Out, step

FACTOR = 2.0

def scaled(lr):
    return lr * FACTOR

@step
def corpus(out: Out, *, text: str = "abc") -> int:
    (out / "a.txt").write_text(text)
    return len(text)

@step
def train(out: Out, source: Input, *, lr: float = 0.1, steps: int = 3) -> dict:
    rows = [{"step": i, "loss": 3 - scaled(lr) * i} for i in range(steps)]
    (out / "metrics.jsonl").write_text("".join(json.dumps(r) + chr(10) for r in rows))
    (out / "log.md").write_text("same")
    if steps > 3:
        (out / "more.txt").write_text("more")
    return {"loss": rows[-1]["loss"], "size": len((source / "a.txt").read_text())}
"""

DRAWS = """
import itertools
from marin_core import Out, step

numbers = itertools.count()

@step
def draw(out: Out) -> None:
    (out / "metrics.jsonl").write_text('{"loss": %d}' % next(numbers))
"""


def run(prefix: str, *handles: Any, **options: Any) -> Any:
    return StepRunner(prefix, launcher="inline", **options).run(lower(*handles))


@pytest.fixture
def flow(module: Callable[[str], ModuleType]) -> ModuleType:
    return module(SOURCE)


def test_two_steps_differ_in_config_value_metrics_and_files(marin: Any, prefix: str, flow: ModuleType) -> None:
    a = run(prefix, flow.train(flow.corpus())).executed[-1]
    b = run(prefix, flow.train(flow.corpus(), lr=0.2, steps=5)).executed[-1]
    done = marin("diff", a, b, "--json")
    assert done.code == 0
    changes = done.document["changes"]
    assert [(c["name"], c["old"], c["new"]) for c in changes["config"]] == [("lr", "0.1", "0.2"), ("steps", "3", "5")]
    value = changes["value"][0]
    assert (value["name"], value["old"], value["new"]) == ("loss", 2.6, pytest.approx(1.4))
    assert (value["delta"], value["ratio"]) == (pytest.approx(-1.2), pytest.approx(1.4 / 2.6))
    assert [(c["name"], c["old"], c["new"]) for c in changes["metrics"]][:1] == [("step", 2, 4)]
    assert [(c["name"], c["old"]) for c in changes["files"]][1] == ("more.txt", None)
    assert "log.md" not in [c["name"] for c in changes["files"]]
    assert {"code", "inputs", "environment"}.isdisjoint(changes)
    text = marin("diff", a, b)
    assert "  lr     0.1 -> 0.2" in text.out
    assert "loss  2.6 -> 1.4  (-1.2, x0.5385)" in text.out
    assert text.last.startswith(f"{a} and {b} differ in config, ")
    assert marin("diff", a, b, "--exit-code").code == 1
    assert marin("diff", a, a, "--exit-code").code == 0
    assert marin("diff", a, a).last == f"{a} and {a} are the same"


def test_changed_code_is_named_by_unit(marin: Any, prefix: str, flow: ModuleType) -> None:
    a = run(prefix, flow.corpus(name="a")).executed[0]
    b = run(prefix, flow.train(flow.corpus(), name="b")).executed[-1]
    names = {c["name"] for c in marin("diff", a, b, "--json").document["changes"]["code"]}
    assert names == {f"{flow.__name__}:{u}" for u in ("corpus", "train", "scaled", "FACTOR")}


def test_two_runs_are_compared_step_by_step(marin: Any, prefix: str, flow: ModuleType) -> None:
    run(prefix, flow.train(flow.corpus()))
    run(prefix, flow.train(flow.corpus(), lr=0.2), flow.corpus(text="new", name="extra"))
    document = marin("diff", "latest~1", "latest", "--json").document
    steps = {s["name"]: s for s in document["steps"]}
    assert (document["kind"], document["same"]) == ("runs", False)
    assert steps["extra"]["a"] is None
    assert [c["name"] for c in steps["train"]["changes"]["config"]] == ["lr"]
    assert steps["train"]["a"] != steps["train"]["b"]
    assert "metrics" in steps["train"]["changes"]
    decisions = {c["name"]: (c["old"], c["new"]) for c in steps["corpus"]["changes"]["decisions"]}
    assert decisions["outcome"] == ("succeeded", "reused")
    text = marin("diff", "latest~1", "latest")
    assert text.last.endswith(": 2 of 3 steps differ (2 are in both runs)")
    assert "extra/" in text.out
    assert marin("diff", "latest", "latest", "--exit-code").code == 0


def test_the_output_of_a_run_that_was_made_over_is_not_taken_for_the_runs(
    marin: Any, prefix: str, module: Callable[[str], ModuleType]
) -> None:
    draws = module(DRAWS)
    run(prefix, draws.draw())
    run(prefix, draws.draw(), options=Options(force=("draw",)))
    run(prefix, draws.draw(), options=Options(force=("draw",)))
    changes = marin("diff", "latest~2", "latest~1", "--json").document["steps"][0]["changes"]
    assert [c["name"] for c in changes["files"]] == ["output"]
    assert "metrics" not in changes


def test_a_run_and_a_step_cannot_be_compared(marin: Any, prefix: str, flow: ModuleType) -> None:
    run(prefix, flow.corpus())
    done = marin("diff", "latest", "corpus")
    assert done.code == 2
    assert done.err == "error: latest is a run, and corpus is none; compare two runs or two steps\n"


def test_packages_are_compared_by_name_and_version() -> None:
    old = {"python": "3.12.1", "packages": {"numpy": "2.0", "jax": "0.5", "six": "1"}}
    new = {"python": "3.12.2", "packages": {"numpy": "2.1", "jax": "0.5", "rich": "14"}}
    found = [(c.name, c.old, c.new) for c in between_environments(old, new)]
    assert found == [("python", "3.12.1", "3.12.2"), ("numpy", "2.0", "2.1"), ("six", "1", None), ("rich", None, "14")]
    assert between_environments({}, {}) == []


@pytest.mark.parametrize("pair", [(0, 5), (float("inf"), 1.0), (10**400, 1.5), (1.5, 10**400), (True, 2), ("NaN", 1.0)])
def test_a_change_of_any_numbers_is_strict_json(pair: tuple[Any, Any]) -> None:
    change = Change(section="value", name="x", old=pair[0], new=pair[1])
    assert json.loads(json.dumps(change.document(), allow_nan=False))["name"] == "x"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
def test_leaves_are_all_the_scalars_of_a_value(value: Any) -> None:
    def scalars(value: Any) -> list[Any]:
        if isinstance(value, dict | list):
            inner = value.values() if isinstance(value, dict) else value
            return [s for v in inner for s in scalars(v)]
        return [] if value is None else [value]

    assert list(leaves(value).values()) == scalars(value)


def node(name: str, index: int) -> NodeRecord:
    return NodeRecord(
        address=f"{name}/{index}",
        name=name,
        version=None,
        upstream=(),
        arguments={"index": index, "tens": index // 10},
        decision="run",
        reason="",
        outcome="succeeded",
    )


nodes = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 40)), unique=True, max_size=8)


@given(nodes, nodes)
def test_every_step_of_both_runs_is_matched_once(old: list[Any], new: list[Any]) -> None:
    before, after = [node(*n) for n in old], [node(*n) for n in new]
    pairs = list(matched(before, after))
    assert sorted(id(a) for a, _ in pairs if a) == sorted(map(id, before))
    assert [b for _, b in pairs if b] == after
    assert all(a is None or b is None or a.name == b.name for a, b in pairs)
    assert all(a.address == b.address for a, b in pairs if a and b and b.address in {n.address for n in before})


def test_a_step_is_matched_with_the_one_that_shares_most_of_its_arguments() -> None:
    pairs = list(matched([node("a", 1), node("a", 21)], [node("a", 22), node("a", 2)]))
    assert [(a and a.address, b and b.address) for a, b in pairs] == [("a/21", "a/22"), ("a/1", "a/2")]
