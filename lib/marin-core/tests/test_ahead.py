"""Reading ahead changes what a plan waits for, and nothing that it says."""

import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_core import Graph, StepRunner, ahead, lower
from marin_core.ahead import side_by_side
from marin_core.encoding import digest
from marin_core.graph import Node
from marin_core.history import History
from marin_core.reasons import Options, decide, matches, plan, read_record
from marin_core.records import StepRecord, from_json
from marin_core.running.ledger import Silence
from marin_core.script import plan_lines, run_script
from marin_core.store import Store, open_store

FLOW = """
from marin_core import Input, Out, step

@step
def leaf(out: Out, *, i: int, more: int = 0) -> int:
    (out / "a.txt").write_text(str(i))
    return i

@step
def pair(out: Out, left: Input, right: Input, *, i: int) -> int:
    (out / "a.txt").write_text(str(i))
    return i

@step(version="v1")
def join(sources: list[Input]) -> int:
    return len(sources)

def build(*, n: int = 4, more: int = 0, name: str = "leaf"):
    leaves = [leaf(i=i, more=more * (i % 2), name=name.format(i)) for i in range(n)]
    pairs = [pair(a, b, i=i) for i, (a, b) in enumerate(zip(leaves, leaves[1:]))]
    return join(pairs or leaves)

def chain(*, n: int = 3):
    last = leaf(i=0)
    for i in range(1, n):
        last = pair(last, last, i=i)
    return last
"""


class FarStore:
    """A store that shows no local path and notes what it is asked; ``wait`` is called during each operation."""

    local = None

    def __init__(
        self, store: Store, *, concurrency: int = 16, wait: Callable[[str, str], object] = lambda *_: None
    ) -> None:
        self._store, self.concurrency, self._wait = store, concurrency, wait
        self.asked: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found) or name in ("child", "error"):
            return found

        def ask(*args: Any, **keywords: Any) -> Any:
            self.asked.append((name, str(args[0]) if args else ""))
            self._wait(*self.asked[-1])
            return found(*args, **keywords)

        return ask


def far(prefix: str, **options: Any) -> Any:
    return FarStore(open_store(prefix), **options)


def one_by_one(graph: Graph, store: Any, options: Options) -> list[tuple[str, str, str]]:
    """What a plan is: each node in its turn, from what is committed and from the decisions before."""
    outputs: dict[str, str | None] = {}
    stuck: dict[str, str] = {}
    said = []
    for address, node in graph.nodes.items():
        found = read_record(store, address)
        decision, reason = decide(
            node, found, outputs=outputs, options=options, store=store, history=History(store)
        )  # fmt: skip
        stuck[address] = next((stuck[u] for u in node.upstream if stuck[u]), "")
        if stuck[address] and decision not in ("refuse", "unselected"):
            decision, reason = "blocked", stuck[address]
        elif decision in ("refuse", "unselected"):
            lacks = ", which has no committed output and is not selected" * (decision == "unselected")
            stuck[address] = f"blocked by {node.name}{lacks}"
        elif decision == "run" and node.step.version is None and isinstance(found, StepRecord):
            asked = matches(options.force + options.rebuild, node)
            back = None if asked else went_back(node, found, outputs, store)
            if back is not None:
                decision, found = "reuse", back
                reason = f"code is that of attempt 1 again ({reason.removeprefix('code changed: ')})"
        kept = isinstance(found, StepRecord) and decision in ("reuse", "accept")
        outputs[address] = found.output_digest if kept else None
        said.append((address, decision, reason))
    return said


def went_back(node: Node, found: StepRecord, outputs: dict[str, str | None], store: Any) -> StepRecord | None:
    """The first attempt, where `spoil` has put another one in its place and it is what is asked for."""
    data = store.read(f"{node.address}/attempts/1/step.json")
    record = from_json(StepRecord, data, where="") if data is not None else None
    same = record is not None and record.digests.inputs == digest([outputs[u] for u in node.upstream])
    return record if same and found.digests.code != node.code.digest else None


def spoil(prefix: Path, address: str, how: str) -> None:
    """One of the ways in which a committed step is not as its run left it."""
    record = prefix / address / "step.json"
    text = record.read_text()
    if how == "absent":
        record.unlink()
    elif how == "corrupt":
        record.write_text(text[:40])
    elif how == "newer":
        record.write_text(text.replace('"schema": 1', '"schema": 99'))
    elif how == "damaged":
        (prefix / address / "attempts/1/out/a.txt").unlink(missing_ok=True)
    elif how == "superseded":
        first, data = prefix / address / "attempts/1", json.loads(text)
        shutil.copytree(first, first.with_name("2"))
        (first / "step.json").write_text(text)
        data["attempt"], data["digests"]["code"], data["output_digest"] = 2, "0" * 64, "1" * 64
        record.write_text(json.dumps(data))
    elif how in ("code", "inputs", "environment"):
        data = json.loads(text)
        data["digests"][how] = "0" * 64
        record.write_text(json.dumps(data))


@given(st.lists(st.integers(), max_size=80), st.integers(1, 9), st.booleans())
def test_results_come_in_the_order_of_the_items(items: list[int], threads: int, local: bool) -> None:
    store: Any = FarStore(open_store("memory://ahead"), concurrency=threads)
    store.local = Path() if local else None
    assert side_by_side(store, lambda i: i * 3, items) == [i * 3 for i in items]


@pytest.mark.parametrize("error", [ValueError, IndexError, KeyError])
def test_an_error_of_the_work_is_raised(error: type[Exception]) -> None:
    def work(i: int) -> int:
        if i == 50:
            raise error("fifty")
        return i

    with pytest.raises(error, match="fifty"):
        side_by_side(far("memory://ahead", concurrency=4), work, range(100))


def test_a_slow_local_disk_is_read_by_several_threads(monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    monkeypatch.setattr(ahead, "_WAITING", -1.0)  # every disk is too slow for that
    both = threading.Barrier(2)

    def work(i: int) -> str:
        if i >= 100:  # past what is tried out first; the two wait for each other
            both.wait(timeout=60)
        return threading.current_thread().name

    names = side_by_side(open_store(prefix), work, range(102))
    assert len(set(names[100:])) == 2


@pytest.mark.parametrize("seen", ["local", "far"])
def test_a_plan_decides_as_one_look_after_another_would(
    module: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: str
) -> None:
    flow = module(FLOW)
    filled = tmp_path / "filled"
    done = lower(flow.build())
    assert StepRunner(filled, launcher="inline").run(done).ok
    monkeypatch.setattr(ahead, "_WAITING", -1.0)
    monkeypatch.setattr(ahead, "_SAMPLE", 1)
    kinds = st.sampled_from(
        ["kept", "absent", "corrupt", "newer", "damaged", "code", "inputs", "environment", "superseded"]
    )
    globs = st.sampled_from([(), ("leaf",), ("pair",), ("join",), ("*",)])

    @settings(max_examples=40)
    @given(
        states=st.lists(kinds, min_size=len(done), max_size=len(done)),
        more=st.integers(0, 1),
        options=st.builds(Options, only=globs, force=globs, accept=globs, rebuild=globs),
        threads=st.integers(2, 9),
    )
    def check(states: list[str], more: int, options: Options, threads: int) -> None:
        prefix = tmp_path / "prefix"
        shutil.rmtree(prefix, ignore_errors=True)
        shutil.copytree(filled, prefix)
        for address, how in zip(done.addresses, states, strict=True):
            spoil(prefix, address, how)
        store: Any = far(str(prefix), concurrency=threads) if seen == "far" else open_store(prefix)
        graph = lower(flow.build(more=more))
        planned = plan(graph, store, options=options)
        assert [(p.address, p.decision, p.reason) for p in planned] == one_by_one(graph, store, options)

    check()


def test_a_rerun_asks_for_all_records_at_once_and_then_for_nothing_by_the_step(
    module: Callable[[str], ModuleType], prefix: str
) -> None:
    flow = module(FLOW)
    beyond = []
    for n in (8, 16):
        graph = lower(flow.build(n=n))
        assert StepRunner(prefix, launcher="inline", options=Options(rebuild=("join",))).run(graph).ok
        together = threading.Barrier(len(graph))  # opens when as many readings are under way as there are steps

        def wait(name: str, key: str, together: threading.Barrier = together) -> None:
            if key.endswith("step.json"):
                together.wait(timeout=60)

        store = far(prefix, concurrency=len(graph), wait=wait)
        runner = StepRunner(prefix, launcher="inline")
        runner.store = store
        report = runner.run(graph)
        assert {node.outcome for node in report.record.nodes} == {"reused"}
        asked = Counter("record" if key.endswith("/step.json") else name for name, key in store.asked)
        assert asked["record"] == len(graph)
        assert not asked["damage"]
        beyond.append(asked.total() - asked["record"])
    assert beyond[0] == beyond[1]


def test_what_is_new_is_read_once_a_name_however_many_steps_bear_it(
    module: Callable[[str], ModuleType], prefix: str
) -> None:
    flow = module(FLOW)
    assert StepRunner(prefix, launcher="inline").run(lower(flow.build(n=3))).ok
    planned = {}
    for n in (50, 100):
        store = far(prefix)
        graph = lower(flow.build(n=n, more=1))
        planned = {p.address: p for p in plan(graph, store, options=Options())}
        asked = Counter(name for name, _ in store.asked)
        assert asked["names"] == 2  # leaf and pair
        assert asked["read"] == len(graph) + len(open_store(prefix).names("leaf") + open_store(prefix).names("pair"))
    assert any("recipe is new: i: " in p.reason for p in planned.values())


def test_the_earlier_recipes_of_many_names_are_asked_for_at_once(
    module: Callable[[str], ModuleType], prefix: str
) -> None:
    flow = module(FLOW)
    assert StepRunner(prefix, launcher="inline").run(lower([flow.leaf(i=1, name=f"leaf{i}") for i in range(8)])).ok
    together = threading.Barrier(8)

    def wait(name: str, key: str) -> None:
        if name == "names" or key.endswith("step.json"):
            together.wait(timeout=60)

    changed = lower([flow.leaf(i=2, name=f"leaf{i}") for i in range(8)])
    told = [p.reason for p in plan(changed, far(prefix, concurrency=8, wait=wait), options=Options())]
    assert told == ["recipe is new: i: 1 -> 2"] * 8


def test_many_names_are_not_all_looked_into(
    module: Callable[[str], ModuleType], prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = module(FLOW)
    assert StepRunner(prefix, launcher="inline").run(lower(flow.build(n=6, name="leaf{}"))).ok
    monkeypatch.setattr("marin_core.history._MOST_READ", 2)
    changed = lower([flow.leaf(i=9, name=f"leaf{i}") for i in range(6)])
    told = [p.reason for p in plan(changed, open_store(prefix), options=Options())]
    assert [reason.partition(":")[0] for reason in told] == ["recipe is new"] * 2 + ["no committed output"] * 4


def test_records_share_what_they_say_of_the_same_code(module: Callable[[str], ModuleType], prefix: str) -> None:
    graph = lower(module(FLOW).build())
    assert StepRunner(prefix, launcher="inline").run(graph).ok
    records = [p.record for p in plan(graph, open_store(prefix), options=Options()) if p.name == "leaf"]
    assert len({id(record.code) for record in records if record}) == 1
    assert records[0] == read_record(open_store(prefix), graph.addresses[0])


@pytest.mark.parametrize("before", ["absent", "code"])
def test_what_another_run_commits_after_the_plan_is_not_made_again(
    module: Callable[[str], ModuleType], prefix: str, before: str
) -> None:
    graph = lower(module(FLOW).chain(n=4))
    assert StepRunner(prefix, launcher="inline").run(graph).ok
    for address in graph.addresses:
        spoil(Path(prefix), address, before)

    class Intruder(Silence):
        def started(self, run: Any) -> None:
            assert len(StepRunner(prefix, launcher="inline").run(graph).executed) == 4

    report = StepRunner(prefix, launcher="inline", observer=Intruder()).run(graph)
    assert report.ok
    assert report.executed == ()


def test_a_chain_of_ten_thousand_steps_is_planned_drawn_and_explained(
    module: Callable[[str], ModuleType], prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flow = module(FLOW)
    assert run_script(flow.chain, ["--n", "10000", "--prefix", prefix, "--plan"]) == 0
    assert capsys.readouterr().out.endswith("10,000 of 10,000 steps would run\n")
    graph = lower(flow.chain(n=10_000))
    assert len(plan_lines(graph.plan(prefix))) == 10_001
    assert len(graph.edges) == 9_999
    assert graph.priorities()[graph.addresses[0]] == (-10_000, 0)
