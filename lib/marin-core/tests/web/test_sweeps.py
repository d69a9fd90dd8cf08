"""The members of a sweep are a table of what was varied and what came of it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from marin_core.records import Failure, NodeRecord, RunRecord
from marin_core.web.files import PrefixFiles
from marin_core.web.folding import fold
from marin_core.web.sweeps import parameters, render_members, render_sweeps
from marin_core.web.tables import ABSENT
from marin_core.web.view import RunView


def node(name: str, **fields: Any) -> NodeRecord:
    defaults: dict[str, Any] = {
        "address": f"{name}/1", "version": None, "upstream": (), "arguments": {}, "decision": "run", "reason": "new",
        "outcome": "succeeded", "attempt": 1,
    }  # fmt: skip
    return NodeRecord(name=name, **{**defaults, **fields})


def view(prefix: Path, *nodes: NodeRecord, targets: tuple[str, ...] = ()) -> RunView:
    record = RunRecord(
        run_id="r", script="s.py", argv=("s.py",), targets=targets, status="succeeded", started_at=0.0, ended_at=1.0,
        nodes=nodes,
    )  # fmt: skip
    return RunView.of(record, PrefixFiles(str(prefix)))


def members(count: int, **fields: Any) -> list[NodeRecord]:
    return [
        node("train", address=f"train/{i}", arguments={"lr": i / 4, "steps": 9}, value={"lr": i / 4, "loss": i + 0.5})
        if not fields
        else node("train", address=f"train/{i}", arguments={"lr": i / 4, "steps": 9}, **fields)
        for i in range(1, count + 1)
    ]


def cells(html: str) -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", html, flags=re.DOTALL)
    found = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, flags=re.DOTALL) for row in rows]
    return [[re.sub(r"<[^>]*>", "", cell) for cell in row] for row in found]


def test_what_was_varied_stands_before_what_was_recorded_and_leads_to_the_step(tmp_path: Path) -> None:
    html = render_sweeps(view(tmp_path, node("data"), *members(3)))
    assert html is not None
    assert cells(html) == [["lr", "loss"], ["0.25", "1.5"], ["0.5", "2.5"], ["0.75", "3.5"]]
    assert [f'href="#s{i}"' in html for i in range(4)] == [False, True, True, True]
    assert "sortable" in html
    assert 'data-value="2.5"' in html


def test_last_metrics_stand_in_for_values_that_were_not_recorded(tmp_path: Path) -> None:
    nodes = members(2, value=None)
    for i, each in enumerate(nodes):
        out = tmp_path / each.address / "attempts/1/out"
        out.mkdir(parents=True)
        rows = [{"step": 0, "loss": 9.0}, {"step": 1, "loss": 2.5 + i}]
        (out / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"st')
    html = render_sweeps(view(tmp_path, *nodes))
    assert html is not None
    assert cells(html)[1:] == [["0.25", "1", "2.5"], ["0.5", "1", "3.5"]]


def test_a_member_that_failed_says_so_in_its_row(tmp_path: Path) -> None:
    failure = Failure(type="ValueError", message="NaN", traceback="")
    first, last = members(2)
    broken = node("train", address="train/9", arguments={"lr": 7}, outcome="failed", value=None, failure=failure)
    html = render_sweeps(view(tmp_path, first, last, broken))
    assert html is not None
    assert cells(html)[3] == ["7", "", "failed: ValueError", ""]


def test_steps_that_differ_in_nothing_or_recorded_nothing_are_no_sweep(tmp_path: Path) -> None:
    assert render_sweeps(view(tmp_path, node("a", address="a/1"), node("a", address="a/2"), node("b"))) is None
    assert render_sweeps(view(tmp_path, *members(3, value=None))) is None
    assert render_members(view(tmp_path, *members(3, value=None)), [0, 1, 2], even_bare=True) is not None


def test_targets_that_are_many_are_results_and_not_shown_twice(tmp_path: Path) -> None:
    nodes = members(8)
    assert render_sweeps(view(tmp_path, *nodes, targets=tuple(n.address for n in nodes))) is None


def test_a_table_of_thousands_is_cut_and_says_so(tmp_path: Path) -> None:
    html = render_sweeps(view(tmp_path, *members(1000)))
    assert html is not None
    assert html.count("<tr>") == 201
    assert "The first 200 of 1,000 steps." in html


@pytest.mark.parametrize(
    ("given", "varied"),
    [
        ([{"a": 1, "b": 2}, {"a": 1, "b": 3}], {"b": [2, 3]}),
        ([{"o": {"lr": 1}}, {"o": {"lr": 2}}], {"lr": [1, 2]}),
        ([{"x": {"n": 1}, "y": {"n": 1}}, {"x": {"n": 2}, "y": {"n": 3}}], {"x.n": [1, 2], "y.n": [1, 3]}),
        ([{"a": 1}, {}], {"a": [1, ABSENT]}),
        ([{"a": [1, 2]}, {"a": [3]}], {"a": ["1, 2", "3"]}),
        ([{"d": {"step": "x/1"}}, {"d": {"step": "x/2"}}], {}),
        ([{"a": 1}, {"a": 1.0}, {"a": True}], {"a": [1, 1.0, True]}),
    ],
)
def test_parameters_are_the_literals_that_differ(given: list[dict[str, Any]], varied: dict[str, Any]) -> None:
    assert parameters(given) == varied


def test_equal_steps_are_folded_and_those_that_failed_stand_apart() -> None:
    train = [node("train", outcome="failed" if i == 5 else "succeeded") for i in range(12)]
    score = [node("score", outcome="blocked" if i == 5 else "succeeded") for i in range(12)]
    edges = [(0, i) for i in range(1, 13)] + [(i, i + 12) for i in range(1, 13)] + [(i, 25) for i in range(13, 25)]
    boxes = fold([node("data"), *train, *score, node("summary")], edges)
    assert boxes == [
        [0],
        [i for i in range(1, 13) if i != 6],
        [6],
        [i for i in range(13, 25) if i != 18],
        [18],
        [25],
    ]


def test_a_few_equal_steps_and_links_of_a_chain_are_not_folded() -> None:
    assert fold([node("a") for _ in range(3)], []) == [[0], [1], [2]]
    assert fold([node("a") for _ in range(9)], [(i, i + 1) for i in range(8)]) == [[i] for i in range(9)]
