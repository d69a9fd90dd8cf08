"""Collection: it takes exactly what no root needs, beside runners, whenever it is killed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marin_core import StepRunner, cli, leases, lower
from marin_core.collection import Policy, survey
from marin_core.collection.removal import Collection
from marin_core.errors import RefusedError
from marin_core.reading.catalogue import Catalogue
from marin_core.records import NodeRecord
from marin_core.running.ledger import Silence
from marin_core.store import open_store

SOURCE = """
import threading
from marin_core import Input, Out, Work, step

GATE = threading.Event()
STARTED = threading.Event()

@step
def node(out: Out, sources: list[Input], *, index: int, fail: bool = False) -> int:
    print("making", index)
    (out / "t.txt").write_text("".join((s / "t.txt").read_text() for s in sources) + str(index))
    if fail:
        raise ValueError("no")
    return index

@step
def resumed(out: Out, work: Work, *, fail: bool = False) -> int:
    work.open("progress", "a").write("x" * 100)
    if fail:
        raise ValueError("no")
    return 1

@step
def number() -> int:
    return 7

@step
def slow(out: Out, source: Input) -> str:
    STARTED.set()
    assert GATE.wait(120)
    return (source / "t.txt").read_text()
"""

BESIDE_LEFT = "a run has begun since, or a step stays, that may refer to it"
NOTHING_RECENT = ("--keep-days", "0", "--keep-runs", "0")


@pytest.fixture
def flow(module: Callable[[str], ModuleType]) -> ModuleType:
    return module(SOURCE)


def run(prefix: str, *handles: Any, **options: Any) -> Any:
    return StepRunner(prefix, launcher="inline", keep_going=True, **options).run(lower(*handles))


def chain(flow: ModuleType, length: int) -> list[Any]:
    made: list[Any] = []
    for i in range(length):
        made.append(flow.node(made[-1:], index=i, name=f"n{i}"))
    return made


def committed(prefix: str) -> set[str]:
    """Names of the steps that have an output."""
    return {p.relative_to(prefix).parts[0] for p in Path(prefix).rglob("step.json")}


def bytes_below(prefix: str, pattern: str) -> int:
    return sum(p.stat().st_size for p in Path(prefix).glob(pattern) if p.is_file())


def snapshot(prefix: str) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in Path(prefix).rglob("*") if p.is_file()}


# What is garbage


def test_what_lies_beside_the_steps_goes_with_the_last_that_refers_to_it(
    marin: Any, prefix: str, flow: ModuleType
) -> None:
    first = run(prefix, flow.node([], index=0, name="first")).record
    place = Path(prefix)
    shared = {p.relative_to(prefix).as_posix() for d in ("objects", "environments") for p in (place / d).iterdir()}
    assert shared
    patch, lock = "objects/" + "1" * 64, "objects/" + "2" * 64
    store = open_store(prefix)
    for key in (patch, lock, "objects/" + "3" * 64):
        store.write(key, b"text")
    environment = {"python": "3", "lock": "2" * 64, "packages": {}, "schema": 1}
    store.write("environments/old.json", json.dumps(environment).encode())
    record = json.loads((place / f"runs/{first.run_id}.json").read_text())
    record["origin"]["patch"] = "1" * 64
    record["nodes"][0]["digests"]["environment"] = "old"
    (place / f"runs/{first.run_id}.json").write_text(json.dumps(record))
    (place / "runs/gone.html").write_text("a page")
    (place / f"runs/{first.run_id}.html").write_text("a page")
    found = marin("gc", "--apply", "--json").document["garbage"]
    assert {(g["kind"], g["what"]) for g in found} == {("object", "objects/" + "3" * 64), ("page", "runs/gone.html")}
    assert (place / f"runs/{first.run_id}.html").exists()
    second = run(prefix, flow.node([], index=1, name="second")).record
    marin("gc", "--keep-days", "0", "--keep-run", second.run_id, "--apply")
    left = {p.relative_to(prefix).as_posix() for d in ("objects", "environments") for p in (place / d).iterdir()}
    assert left == shared
    marin("gc", *NOTHING_RECENT, "--apply")
    assert not [*(place / "objects").iterdir(), *(place / "environments").iterdir()]
    assert marin("gc", *NOTHING_RECENT).last == "nothing to collect"


def test_nothing_beside_the_steps_goes_while_a_step_is_made_or_after_a_run_has_begun(
    prefix: str, flow: ModuleType
) -> None:
    run(prefix, flow.node([], index=0))
    store = open_store(prefix)
    store.write("objects/" + "3" * 64, b"text")
    policy = Policy(keep_days=0, keep_runs=0)
    held = leases.acquire(store, "other/1", run_id="r", witness=leases.Witness())
    assert held is not None
    assert not [g for g in survey(Catalogue(store), policy).garbage if g.kind in ("object", "environment")]
    leases.release(store, "other/1", held)
    with Collection.begun(store) as collection:
        garbage = tuple(g for g in survey(Catalogue(store), policy).garbage if g.kind in ("object", "environment"))
        assert garbage
        store.write("runs/29990101.json", b"{}")
        assert {r.left for r in collection.collect(garbage)} == {BESIDE_LEFT}


def test_a_dry_run_says_what_would_go_and_changes_nothing(marin: Any, prefix: str, flow: ModuleType) -> None:
    run(prefix, chain(flow, 3))
    before = snapshot(prefix)
    done = marin("gc", *NOTHING_RECENT)
    assert done.code == 0
    kinds = [line.split()[0] for line in done.out.splitlines()]
    assert kinds == ["step"] * 3 + ["environment"] + ["object"] * kinds.count("object") + ["kept:", "would"]
    assert done.last.endswith("; marin gc --apply removes them")
    assert ": 3 steps, 1 environment, " in done.last
    assert snapshot(prefix) == before


def test_collected_steps_leave_tombstones_and_attempt_records(marin: Any, prefix: str, flow: ModuleType) -> None:
    steps = chain(flow, 2)
    run(prefix, steps)
    size = bytes_below(prefix, "n*/*/attempts/*/out/*") + bytes_below(prefix, "n*/*/attempts/*/*.*")
    size -= bytes_below(prefix, "n*/*/attempts/*/attempt.json")
    size += bytes_below(prefix, "objects/*") + bytes_below(prefix, "environments/*")
    done = marin("gc", *NOTHING_RECENT, "--apply", "--json").document
    assert (done["applied"], done["num_bytes"], done["left"]) == (True, size, [])
    assert committed(prefix) == set()
    assert bytes_below(prefix, "n*/*/attempts/*/out/*") == 0
    assert len(list(Path(prefix).glob("n*/*/attempts/1/attempt.json"))) == 2
    assert marin("verify").code == 0
    assert marin("gc", *NOTHING_RECENT).last == "nothing to collect"
    states = {s["address"].split("/")[0]: s["state"] for s in marin("status", "--json").document["steps"]}
    assert states == {"n0": "collected", "n1": "collected"}
    lines = marin("lineage", "n1").out.splitlines()
    assert "collected on" in lines[0]
    assert lines[1].startswith("  n0/")


def test_a_step_made_again_after_its_collection_says_so(marin: Any, prefix: str, flow: ModuleType) -> None:
    steps = chain(flow, 2)
    run(prefix, steps)
    marin("gc", *NOTHING_RECENT, "--apply")
    report = run(prefix, steps)
    day = time.strftime("%Y-%m-%d")
    assert {n.reason for n in report.record.nodes} <= {f"collected by gc on {day}"}
    assert [n.attempt for n in report.record.nodes] == [2, 2]
    assert run(prefix, steps).executed == ()
    assert marin("status", "--json").document["steps"][0]["state"] == "committed"


def test_recent_newest_and_named_runs_keep_what_they_used(marin: Any, prefix: str, flow: ModuleType) -> None:
    ids = [run(prefix, flow.node([], index=i, name=f"n{i}")).record.run_id for i in range(4)]
    assert marin("gc").last == "nothing to collect"
    aged = Path(prefix, "runs", f"{ids[1]}.json")
    data = json.loads(aged.read_text())
    data |= {"started_at": data["started_at"] - 20 * 86400, "ended_at": data["ended_at"] - 20 * 86400}
    data["nodes"][0]["ended_at"] = data["ended_at"]
    aged.write_text(json.dumps(data))
    assert [g["address"].split("/")[0] for g in marin("gc", "--json").document["garbage"]] == ["n1"]
    kept = marin("gc", "--keep-days", "0", "--keep-runs", "1", "--keep-run", ids[0], "--json").document["kept"]
    assert {a.split("/")[0] for a in kept} == {"n0", "n3"}
    assert marin("gc", "--keep-run", "nope").code == 2


def test_pins_and_versions_keep_a_step_and_all_that_it_was_made_from(marin: Any, prefix: str, flow: ModuleType) -> None:
    steps = chain(flow, 5)
    versioned = flow.node([steps[0]], index=9, name="v", version="v1")
    loose = flow.node([], index=5, name="loose")
    run(prefix, *steps, versioned, loose)
    assert marin("pin", "n3", "--why", "for the paper").code == 0
    assert "for the paper" in marin("pin").out
    marin("gc", *NOTHING_RECENT, "--apply")
    assert committed(prefix) == {"n0", "n1", "n2", "n3", "v"}
    assert marin("unpin", "n3").last.startswith("unpinned n3/")
    assert marin("unpin", "n3").last == "n3 was not pinned"
    marin("gc", *NOTHING_RECENT, "--apply")
    assert committed(prefix) == {"n0", "v"}
    missing = marin("pin", "n1")
    assert missing.code == 1
    assert "nothing is committed there" in missing.err


def test_attempts_that_nothing_points_to_go_and_the_log_of_the_last_failure_stays(
    marin: Any, prefix: str, flow: ModuleType
) -> None:
    from marin_core.reasons import Options

    good = flow.node([], index=0, name="good")
    run(prefix, good)
    run(prefix, good, options=Options(force=("good",)))
    bad = flow.node([], index=1, name="bad", fail=True)
    run(prefix, bad)
    run(prefix, bad)
    done = marin("gc", "--apply")
    assert "good" in done.out
    assert "superseded by attempt 2" in done.out
    assert done.out.count("failed: ValueError") == 2
    attempts = sorted(str(p.relative_to(prefix)).split("/", 2)[2] for p in Path(prefix).glob("bad/*/attempts/*/*"))
    assert [a for a in attempts if not a.endswith("out")] == [
        "attempts/1/attempt.json",
        "attempts/2/attempt.json",
        "attempts/2/log.txt",
    ]
    assert marin("logs", "bad").out.startswith("making 1\nTraceback ")
    assert marin("gc").last == "nothing to collect"
    assert run(prefix, good).executed == ()
    assert run(prefix, bad).node("bad").attempt == 3


def test_work_goes_when_its_step_is_committed_and_stays_while_it_can_be_resumed(
    marin: Any, prefix: str, flow: ModuleType
) -> None:
    run(prefix, flow.resumed(name="done"))
    run(prefix, flow.resumed(name="open", fail=True))
    gone = marin("gc", "--apply", "--json").document["garbage"]
    assert [g["address"].split("/")[0] for g in gone if g["kind"] == "work"] == ["done"]
    assert bytes_below(prefix, "open/*/work/*/*") >= 100
    marin("gc", *NOTHING_RECENT, "--apply")
    assert bytes_below(prefix, "open/*/work/*/*") == 0


def test_temporary_files_of_dead_writers_go_and_fresh_ones_stay(marin: Any, prefix: str, flow: ModuleType) -> None:
    report = run(prefix, flow.node([], index=0, name="n"))
    place = Path(prefix) / report.executed[0]
    old, fresh, mine = place / "step.json.12.34.tmp", place / "lease.json.12.34.tmp", place / "attempts/1/out/a.1.2.tmp"
    for path in (old, fresh, mine):
        path.write_text("{")
    os.utime(old, (0, 0))
    os.utime(mine, (0, 0))
    assert marin("gc", "--apply").last == "freed 1 B: 1 temporary file"
    assert (old.exists(), fresh.exists(), mine.exists()) == (False, True, True)


def test_what_cannot_be_read_is_left_alone_and_named(marin: Any, prefix: str, flow: ModuleType) -> None:
    report = run(prefix, flow.node([], index=0, name="n"))
    record = Path(prefix) / report.executed[0] / "step.json"
    record.write_text("{")
    before = snapshot(prefix)
    done = marin("gc", *NOTHING_RECENT, "--apply")
    assert "left alone: " in done.out
    assert done.last == "nothing to collect"
    assert {k: v for k, v in snapshot(prefix).items() if "runs/gc" not in k} == before


@pytest.mark.parametrize("linked", ["attempts", "attempts/1", "attempts/1/out", "."])
def test_what_a_link_leads_to_is_never_touched(
    marin: Any, prefix: str, flow: ModuleType, tmp_path: Path, linked: str
) -> None:
    report = run(prefix, flow.node([], index=0, name="n"))
    place, elsewhere = Path(prefix) / report.executed[0] / linked, tmp_path / "elsewhere"
    place = place.resolve()
    place.rename(elsewhere)
    place.symlink_to(elsewhere)
    before = snapshot(str(elsewhere))
    assert before
    marin("gc", *NOTHING_RECENT, "--apply")
    assert snapshot(str(elsewhere)) == before


def test_a_link_that_comes_after_the_survey_is_not_followed_either(
    prefix: str, flow: ModuleType, tmp_path: Path
) -> None:
    report = run(prefix, flow.node([], index=0, name="n"))
    place, elsewhere = Path(prefix) / report.executed[0] / "attempts/1", tmp_path / "elsewhere"
    with Collection.begun(open_store(prefix)) as collection:
        found = survey(Catalogue(open_store(prefix)), Policy(keep_days=0, keep_runs=0))
        place.rename(elsewhere)
        place.symlink_to(elsewhere)
        before = snapshot(str(elsewhere))
        removed, *_ = collection.collect(found.garbage)
    assert removed.left.endswith("is reached through a symbolic link")
    assert snapshot(str(elsewhere)) == before


# Beside others


def test_a_step_under_a_live_lease_is_left_alone(marin: Any, prefix: str, flow: ModuleType) -> None:
    steps = chain(flow, 2)
    report = run(prefix, steps)
    store = open_store(prefix)
    address = report.executed[1]
    lease = leases.acquire(store, address, run_id=report.record.run_id, witness=leases.Witness())
    assert lease is not None
    assert marin("gc", *NOTHING_RECENT, "--apply").last == "nothing to collect"
    leases.release(store, address, lease)
    # A lease that is taken after the survey protects its step all the same.
    with Collection.begun(store) as collection:
        found = survey(Catalogue(store), Policy(keep_days=0, keep_runs=0))
        lease = leases.acquire(store, address, run_id="late", witness=leases.Witness())
        assert lease is not None
        left = {r.garbage.address: r.left for r in collection.collect(found.garbage)}
    beside = {"environments": BESIDE_LEFT, "objects": BESIDE_LEFT}
    assert left == {report.executed[0]: "", address: "it is being made by now", **beside}
    assert committed(prefix) == {"n1"}


def test_a_run_that_is_going_on_keeps_its_whole_graph_even_between_two_leases(prefix: str, flow: ModuleType) -> None:
    seen = []

    class Collector(Silence):
        def changed(self, node: NodeRecord) -> None:
            if node.outcome == "succeeded":
                seen.append(survey(Catalogue(open_store(prefix)), Policy(keep_days=0, keep_runs=0)))

    steps = chain(flow, 3)
    run(prefix, steps, observer=Collector())
    assert [s.garbage for s in seen] == [(), (), ()]
    assert all("used by run" in why for s in seen for why in s.kept.values())
    found = survey(Catalogue(open_store(prefix)), Policy(keep_days=0, keep_runs=0))
    assert [g.kind for g in found.garbage][:4] == ["step", "step", "step", "environment"]


def test_the_graph_of_a_step_that_is_being_made_is_kept(prefix: str, flow: ModuleType) -> None:
    source = flow.node([], index=0, name="n")
    driver = threading.Thread(target=run, args=(prefix, flow.slow(source)))
    driver.start()
    assert flow.STARTED.wait(120)
    with Collection.begun(open_store(prefix)):
        found = survey(Catalogue(open_store(prefix)), Policy(keep_days=0, keep_runs=0))
    flow.GATE.set()
    driver.join()
    assert found.garbage == ()
    assert committed(prefix) == {"n", "slow"}


def test_a_run_that_begins_during_a_collection_waits_and_then_decides_afresh(prefix: str, flow: ModuleType) -> None:
    steps = [*chain(flow, 2), flow.number()]  # an output without files cannot be missed by its files
    run(prefix, steps)
    store, told, reports = open_store(prefix), threading.Event(), []

    class Listener(Silence):
        def said(self, text: str) -> None:
            assert text.startswith("a collection is under way (run gc-")
            told.set()

    with Collection.begun(store) as collection:
        found = survey(Catalogue(store), Policy(keep_days=0, keep_runs=0))
        driver = threading.Thread(target=lambda: reports.append(run(prefix, steps, observer=Listener())))
        driver.start()
        assert told.wait(120)
        left = {g.garbage.kind: g.left for g in collection.collect(found.garbage)}
        assert left == {"step": "", "environment": BESIDE_LEFT, "object": BESIDE_LEFT}
        assert committed(prefix) == set()
    driver.join()
    assert reports[0].ok
    assert len(reports[0].executed) == 3


def test_two_collections_do_not_overlap(prefix: str, flow: ModuleType, marin: Any) -> None:
    run(prefix, chain(flow, 1))
    with Collection.begun(open_store(prefix)):
        done = marin("gc", "--apply")
        assert done.code == RefusedError.exit_code
        assert "another collection is under way" in done.err
    assert marin("gc", "--apply").code == 0


# Crashes

KILLED = textwrap.dedent(
    """
    import os, signal, sys
    from marin_core.cli import main
    from marin_core.store import open_store

    prefix, left = sys.argv[1], [int(sys.argv[2])]

    def fatal(method):
        def call(*arguments, **options):
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return method(*arguments, **options)
        return call

    kind = type(open_store(prefix))
    for name in ("write", "delete", "remove_tree"):
        setattr(kind, name, fatal(getattr(kind, name)))
    sys.exit(main(["gc", "--apply", "--keep-days", "0", "--keep-runs", "0", "--prefix", prefix]))
    """
)


def test_killed_at_any_write_it_leaves_a_committed_step_or_a_tombstone(
    prefix: str, flow: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = chain(flow, 2)
    run(prefix, steps)
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    states = []
    for at in range(100):
        copy = str(tmp_path / f"copy{at}")
        shutil.copytree(prefix, copy)
        done = subprocess.run([sys.executable, script, copy, str(at)], capture_output=True, text=True, check=False)
        places = [next(Path(copy, f"n{i}").iterdir()) for i in range(2)]
        for place in places:
            assert (place / "step.json").exists() or (place / "tombstone.json").exists()
            if (place / "step.json").exists():
                assert (place / "attempts/1/out/t.txt").exists()
        states.append(tuple((p / "step.json").exists() for p in places))
        assert cli.main(["verify", "--deep", "--prefix", copy]) == 0
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
        again = run(copy, steps)
        assert again.ok
        assert {n.reason.split(" on ")[0] for n in again.record.nodes if n.outcome == "succeeded"} <= {
            "collected by gc"
        }
        assert cli.main(["gc", "--apply", *NOTHING_RECENT, "--prefix", copy]) == 0
        assert committed(copy) == set()
        assert bytes_below(copy, "n*/*/attempts/*/out/*") == 0
    assert done.returncode == 0, done.stderr
    assert set(states) == {(True, True), (False, True), (False, False)}
    capsys.readouterr()


# The law


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]], set[int], set[int], set[int]]:
    """Upstreams of each step; targets of each run; which steps are pinned or versioned, and which runs are named."""
    size = draw(st.integers(1, 7))
    index = st.integers(0, size - 1)
    upstreams = [sorted(draw(st.sets(st.integers(0, i - 1), max_size=3))) if i else [] for i in range(size)]
    runs = draw(st.lists(st.lists(index, min_size=1, max_size=2), min_size=1, max_size=3))
    named = draw(st.sets(st.integers(0, len(runs) - 1)))
    return upstreams, runs, draw(st.sets(index, max_size=2)), draw(st.sets(index, max_size=1)), named


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(history=histories())
def test_what_is_kept_is_what_the_roots_reach_and_it_serves_a_rerun(flow: ModuleType, history: Any) -> None:
    upstreams, runs, pinned, versioned, named = history
    steps: list[Any] = []
    for i, upstream in enumerate(upstreams):
        version = "v1" if i in versioned else None
        steps.append(flow.node([steps[u] for u in upstream], index=i, name=f"n{i}", version=version))
    with tempfile.TemporaryDirectory() as prefix:
        ids = [run(prefix, *(steps[t] for t in targets)).record.run_id for targets in runs]
        made = _reachable({t for targets in runs for t in targets}, upstreams)
        for i in pinned & made:
            assert cli.main(["pin", f"n{i}", "--prefix", prefix]) == 0
        roots = ((pinned | versioned) & made) | {t for r in named for t in runs[r]}
        flags = [flag for r in named for flag in ("--keep-run", ids[r])]
        assert cli.main(["gc", "--apply", *NOTHING_RECENT, *flags, "--prefix", prefix]) == 0
        kept = _reachable(roots, upstreams)
        assert committed(prefix) == {f"n{i}" for i in kept}
        assert cli.main(["verify", "--deep", "--prefix", prefix]) == 0
        if kept:
            assert run(prefix, *(steps[i] for i in kept)).executed == ()
        rest = run(prefix, *steps)
        assert rest.ok
        assert len(rest.executed) == len(steps) - len(kept)


def _reachable(roots: set[int], upstreams: list[list[int]]) -> set[int]:
    found = set(roots)
    for i in reversed(range(len(upstreams))):
        if i in found:
            found.update(upstreams[i])
    return found
