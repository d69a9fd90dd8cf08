"""Timings: lanes that do not overlap, the chain that bounds the run, and what a reader is told of them."""

import dataclasses
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from marin_core.records import NodeRecord, RunRecord
from marin_core.web.files import PrefixFiles
from marin_core.web.timings import Interval, bar_name, lanes, longest_chain, render_timings
from marin_core.web.view import RunView

START = 1_780_000_000.0


def view(
    tmp_path: Path, *steps: tuple[str, float, float], upstream: dict[int, tuple[int, ...]] | None = None
) -> RunView:
    """A run whose steps (name, start, end) ran as given, seconds since its start."""
    nodes: list[NodeRecord] = []
    for i, (name, start, end) in enumerate(steps):
        fields: dict[str, Any] = {"started_at": START + start, "ended_at": START + end, "seconds": end - start}
        nodes.append(
            NodeRecord(
                name=name, address=f"{name}/{i}", version=None, arguments={}, decision="run", reason="new",
                outcome="succeeded", upstream=tuple(nodes[u].address for u in (upstream or {}).get(i, ())), **fields,
            )
        )  # fmt: skip
    record = RunRecord(
        run_id="r", script="x.py", argv=(), targets=(), status="succeeded", started_at=START,
        ended_at=START + max(end for _, _, end in steps), nodes=tuple(nodes),
    )  # fmt: skip
    return RunView.of(record, PrefixFiles(str(tmp_path)))


spans = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=60)


@given(spans)
def test_no_two_intervals_of_a_lane_overlap_and_no_lane_is_needless(drawn: list[tuple[int, int]]) -> None:
    intervals = [Interval(i, float(s), float(s + length)) for i, (s, length) in enumerate(sorted(drawn))]
    chosen = lanes(intervals)
    for lane in set(chosen):
        members = [i for i, at in zip(intervals, chosen, strict=True) if at == lane]
        assert all(a.end <= b.start for a, b in pairwise(members))
    at_once = max(sum(o.start <= i.start < max(o.end, o.start + 0.5) for o in intervals) for i in intervals)
    assert max(chosen) + 1 <= at_once


@given(spans, st.randoms(use_true_random=False))
def test_the_longest_chain_is_as_long_as_any_path(drawn: list[tuple[int, int]], random: Any) -> None:
    intervals = [Interval(i, float(s), float(s + length)) for i, (s, length) in enumerate(drawn[:12])]
    n = len(intervals)
    edges = [(a, b) for a in range(n) for b in range(a + 1, n) if random.random() < 0.3]
    best = 0.0
    paths = [[i] for i in range(n)]
    while paths:
        path = paths.pop()
        best = max(best, sum(intervals[i].seconds for i in path))
        paths.extend([*path, b] for a, b in edges if a == path[-1])
    chain = longest_chain(intervals, edges)
    assert sum(i.seconds for i in chain) == best
    assert all((a.index, b.index) in edges for a, b in pairwise(chain))


def test_the_section_names_the_chain_and_adds_up_by_name(tmp_path: Path) -> None:
    run = view(tmp_path, ("split", 0, 10), ("shard", 10, 30), ("shard", 10, 15), ("merge", 30, 31), upstream={
        1: (0,), 2: (0,), 3: (1, 2),
    })  # fmt: skip
    html = str(render_timings(run))
    assert "4 steps ran for 36.0 s within 31.0 s, 1.2 at a time on average" in html
    chain = html[html.index("The longest chain took 31.0 s") : html.index("</p>")]
    assert [name in chain for name in ('href="#s0"', 'href="#s1"', 'href="#s2"', 'href="#s3"')] == [
        True,
        True,
        False,
        True,
    ]
    assert html.index(">shard</th>") < html.index(">split</th>") < html.index(">merge</th>")
    assert "25.0 s" in html


def test_only_the_longest_of_thousands_are_drawn(tmp_path: Path) -> None:
    html = str(render_timings(view(tmp_path, *[("shard", i / 10, i / 10 + 1 + i / 1000) for i in range(1000)])))
    assert html.count("<title>") == 300
    assert "700 shorter ones ran too" in html


def test_nothing_ran_nothing_is_drawn(tmp_path: Path) -> None:
    run = view(tmp_path, ("a", 0, 1))
    reused = dataclasses.replace(run.record.nodes[0], outcome="reused")
    assert render_timings(RunView.of(dataclasses.replace(run.record, nodes=(reused,)), run.files)) is None


def test_a_name_stands_in_its_bar_only_where_it_fits_and_on_a_telephone_only_where_it_fits_there() -> None:
    assert bar_name("train lr=0.003", "train", share=0.9) == '<text x="5" y="12">train lr=0.003</text>'
    assert bar_name("train lr=0.003", "train", share=0.2) == '<text x="5" y="12" class="wide">train lr=0.003</text>'
    assert bar_name("train lr=0.003", "train", share=0.06) == '<text x="5" y="12" class="wide">train</text>'
    assert bar_name("train lr=0.003", "train", share=0.02) is None
