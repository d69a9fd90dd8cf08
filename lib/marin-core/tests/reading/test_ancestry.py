"""Lineage: linear whatever the graph, and an answer for what is collected, adopted or unknown."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from marin_core import StepRunner, adopt, lower
from marin_core.records import Digests, StepRecord, to_json
from marin_core.store import Store, open_store

SOURCE = """
from marin_core import Input, Out, step

@step
def copy(out: Out, source: Input) -> str:
    return "copied"

@step
def count(text: str, *, extra: int = 0) -> int:
    return len(text) + extra
"""


def commit(store: Store, name: str, upstream: Sequence[str]) -> str:
    """Writes what a committed step leaves, without running one."""
    address = f"{name}/0"
    record = StepRecord(
        address=address,
        name=name,
        version=None,
        attempt=1,
        digests=Digests(recipe="a", code="b", environment="c", inputs="d"),
        recipe={},
        code={},
        upstream=tuple(upstream),
        files=(),
        output_digest="e",
        value=None,
        committed_at=time.time(),
        seconds=0.1,
    )
    store.write(f"{address}/step.json", to_json(record).encode(), durable=False)
    return address


def test_stacked_diamonds_are_told_once_each(marin: Any, prefix: str) -> None:
    store = open_store(prefix)
    top = commit(store, "d0", [])
    for i in range(1, 31):
        sides = [commit(store, f"{side}{i}", [top]) for side in ("left", "right")]
        top = commit(store, f"d{i}", sides)
    up = marin("lineage", "d30")
    assert len(up.out.splitlines()) == 1 + 30 * 4 + 1
    assert up.out.count(", see above") == 30
    assert up.last == "90 steps upstream of d30/0"
    assert marin("lineage", "d0", "--down").last == "90 steps downstream of d0/0"
    document = marin("lineage", "d30", "--json").document
    assert len(document["steps"]) == 91
    assert document["steps"][1]["upstream"] == ["d29/0"]


def test_a_long_chain_needs_no_recursion_and_no_wide_lines(marin: Any, prefix: str) -> None:
    store, last = open_store(prefix), []
    for i in range(3000):
        last = [commit(store, f"c{i}", last)]
    up = marin("lineage", "c2999")
    assert up.last == "2,999 steps upstream of c2999/0"
    assert max(map(len, up.out.splitlines())) < 160
    assert "(2999) c0/0" in up.out
    assert marin("lineage", "c0", "--down").last == "2,999 steps downstream of c0/0"


def test_it_says_when_by_which_run_and_how_much_and_where_adopted_data_lies(
    marin: Any, prefix: str, module: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    flow = module(SOURCE)
    (tmp_path / "raw.txt").write_text("raw")
    counted = flow.count(flow.copy(adopt(tmp_path / "raw.txt", name="raw")))
    report = StepRunner(prefix, launcher="inline").run(lower(counted))
    first, second, third, last = marin("lineage", "count").out.splitlines()
    assert first.startswith(f"{report.executed[1]}  ")
    assert f"run {report.record.run_id}" in first
    assert second.startswith(f"  {report.executed[0]}  ")
    assert third.startswith("    raw/")
    assert third.endswith(f"adopted from {tmp_path / 'raw.txt'}")
    assert last == f"2 steps upstream of {report.executed[1]}"


def test_a_record_that_is_missing_or_damaged_is_named(marin: Any, prefix: str) -> None:
    store = open_store(prefix)
    damaged = commit(store, "damaged", [])
    store.write(f"{damaged}/step.json", b"{")
    commit(store, "made", ["gone/0", damaged])
    done = marin("lineage", "made")
    assert done.code == 0
    assert "  gone/0  missing: no record of it here" in done.out
    assert "  damaged/0  corrupt: " in done.out
    assert done.last == "2 steps upstream of made/0, 1 record missing"
    assert marin("lineage", "made", "--json").document["missing"] == ["gone/0"]
