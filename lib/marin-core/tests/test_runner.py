"""The runner: each step once, reused when nothing changed, rebuilt for a reason that it can name."""

import json
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from marin_core import MissingOutputError, RunReport, StepFailedError, StepRunner, adopt, lower, resolve, run
from marin_core.errors import DriftError, PrefixError, UsageError
from marin_core.reasons import Options
from marin_core.store.local import LocalStore

FLOW = """
    import os, signal
    from dataclasses import dataclass
    from pathlib import Path
    from marin_core import Input, Out, Work, step

    @dataclass(frozen=True)
    class Count:
        words: int
        longest: str

    @step
    def text(out: Out, *, content: str = "a bb ccc") -> int:
        out.open("sub/text.txt", "w").write(content)
        print("wrote", len(content))
        return len(content)

    @step
    def clean(out: Out, source: Input) -> None:
        with out.open("text.txt", "w") as f:
            f.write(source.open("sub/text.txt").read().strip().lower())

    @step
    def count(source: Input, size: int, *, log_every: int = 1) -> Count:
        words = (source / "text.txt").read_text().split()
        return Count(words=len(words) + 0 * size, longest=max(words, key=len))

    @step
    def describe(counts: list, *, title: str = "t") -> dict:
        return {"title": title, "longest": [c.longest for c in counts]}

    @step
    def attempts(work: Work, *, fail_until: int = 3) -> int:
        with work.open("tries", "a") as f:
            f.write("x")
        tries = len(work.open("tries").read())
        if tries < fail_until:
            raise RuntimeError(f"try {tries}")
        return work.epoch

    @step
    def broken(out: Out, *, how: str = "raise", upstream: object = None) -> int:
        if how == "raise":
            raise ValueError("no such luck")
        if how == "exit":
            os._exit(7)
        if how == "kill":
            os.kill(os.getpid(), 9)
        if how == "json":
            return {"a": [1, {2, 3}]}
        if how == "signal":
            os.kill(os.getpid(), signal.SIGRTMIN + 1)
        if how == "link":
            (out / "link").symlink_to("elsewhere")
            return 0
        error = RuntimeError("corpus 'x' is empty; name another")
        error.exit_code = 2
        raise error
"""


@pytest.fixture
def flow(module: Callable[[str], ModuleType]) -> ModuleType:
    return module(FLOW)


def chain(flow: ModuleType, content: str = "a bb ccc", **options: Any) -> Any:
    source = flow.text(content=content)
    return flow.describe([flow.count(flow.clean(source), source)], **options)


def decisions(report: Any) -> dict[str, tuple[str, str]]:
    return {n.name: (n.outcome, n.reason) for n in report.record.nodes}


def failure_of(report: RunReport, name: str) -> str | None:
    failure = report.node(name).failure
    return failure.type if failure is not None else None


@pytest.mark.parametrize("launcher", ["inline", "process"])
def test_values_and_inputs_reach_the_bodies(flow: ModuleType, prefix: str, launcher: str) -> None:
    target = chain(flow)
    report = run(target, prefix=prefix, launcher=launcher)
    assert report.ok
    assert report.value(target) == {"title": "t", "longest": ["ccc"]}
    count = next(s for s in report.graph.handles if s.name == "count")
    assert report.value(count) == flow.Count(words=3, longest="ccc")
    text = next(a for a in report.graph.addresses if a.startswith("text/"))
    assert (report.path(text) / "sub" / "text.txt").read_text() == "a bb ccc"
    assert (Path(prefix) / text / "attempts" / "1" / "log.txt").read_text() == "wrote 8\n"


def test_a_rerun_executes_nothing(flow: ModuleType, prefix: str) -> None:
    assert len(run(chain(flow), prefix=prefix, launcher="inline").executed) == 4
    again = run(chain(flow), prefix=prefix, launcher="inline")
    assert again.executed == ()
    assert set(decisions(again).values()) == {("reused", "up to date")}


def test_one_changed_argument_runs_it_and_what_follows(flow: ModuleType, prefix: str) -> None:
    run(chain(flow), prefix=prefix, launcher="inline")
    changed = run(chain(flow, title="new"), prefix=prefix, launcher="inline")
    assert [a.split("/")[0] for a in changed.executed] == ["describe"]
    assert changed.record.nodes[-1].reason == "recipe is new: title: 't' -> 'new'"


def test_an_ignored_argument_changes_nothing(flow: ModuleType, prefix: str) -> None:
    source = flow.text()
    run(flow.count(flow.clean(source), source), prefix=prefix, launcher="inline")
    assert run(flow.count(flow.clean(source), source, log_every=7), prefix=prefix, launcher="inline").executed == ()


def test_early_cutoff_stops_at_the_first_equal_output(module: Any, prefix: str) -> None:
    first = module(FLOW)
    run(chain(first), prefix=prefix, launcher="inline")
    path = Path(first.__file__)
    path.write_text(path.read_text().replace(".strip().lower()", ".lower().strip()"))
    rerun = run(chain(first), prefix=prefix, launcher="process")
    assert [a.split("/")[0] for a in rerun.executed] == ["clean"]
    outcome, reason = decisions(rerun)["clean"]
    assert (outcome, reason) == ("succeeded", f"code changed: step function {first.__name__}:clean")
    assert rerun.record.nodes[1].attempt == 2


def test_changed_inputs_rebuild_what_reads_them(flow: ModuleType, prefix: str) -> None:
    run(chain(flow), prefix=prefix, launcher="inline")
    path = Path(str(flow.__file__))
    path.write_text(path.read_text().replace(".strip().lower()", ".upper()"))
    plan = {p.name: p.reason for p in lower(chain(flow)).plan(prefix)}
    assert plan["count"] == "input source will be made again"
    rerun = run(chain(flow), prefix=prefix, launcher="process")
    assert [a.split("/")[0] for a in rerun.executed] == ["clean", "count", "describe"]
    assert decisions(rerun)["count"][1].startswith("input source changed: output ")
    assert rerun.value(rerun.graph.targets[0])["longest"] == ["CCC"]


def test_a_versioned_step_refuses_changed_code_and_recipe(flow: ModuleType, prefix: str) -> None:
    run(flow.text(version="v1"), prefix=prefix, launcher="inline")
    refused = run(flow.text(version="v1", content="other"), prefix=prefix, launcher="inline")
    assert (refused.exit_code, refused.executed) == (3, ())
    assert "content: 'a bb ccc' -> 'other'" in refused.record.nodes[0].reason
    accept = Options(accept=("text",))
    accepted = run(flow.text(version="v1", content="other"), prefix=prefix, launcher="inline", options=accept)
    assert (accepted.ok, accepted.record.nodes[0].decision, accepted.values["text/v1"]) == (True, "accept", 8)
    rebuild = Options(rebuild=("text",))
    rebuilt = run(flow.text(version="v1", content="other"), prefix=prefix, launcher="inline", options=rebuild)
    assert (rebuilt.values["text/v1"], rebuilt.record.nodes[0].attempt) == (5, 2)
    assert (Path(prefix) / "text/v1/attempts/1/out/sub/text.txt").read_text() == "a bb ccc"
    path = Path(str(flow.__file__))
    path.write_text(path.read_text().replace("return len(content)", "return 1 + len(content)"))
    drifted = run(flow.text(version="v1", content="other"), prefix=prefix, launcher="inline")
    assert drifted.exit_code == 3
    assert "code changed: step function" in drifted.record.nodes[0].reason
    report = run(
        flow.text(version="v1", content="other"),
        prefix=prefix,
        launcher="inline",
        options=Options(on_code_change="report"),
    )
    assert (report.ok, report.executed) == (True, ())
    assert report.record.nodes[0].reason.endswith("only reported")


@pytest.mark.parametrize(
    ("how", "kind", "message", "exit_code"),
    [
        ("raise", "ValueError", "no such luck", 1),
        ("exit", "Crash", "ended with exit code 7 and left no result", 1),
        ("kill", "Crash", "killed by SIGKILL", 1),
        ("signal", "Crash", f"killed by {signal.strsignal(signal.SIGRTMIN + 1)}", 1),
        ("link", "UsageError", "output link is a symbolic link", 1),
        ("json", "TypeError", r"broken returned['a'][1] a set, which has no JSON form", 1),
        ("user", "RuntimeError", "corpus 'x' is empty; name another", 2),
    ],
)
def test_a_failed_body_is_told_and_blocks_its_dependants(
    flow: ModuleType, prefix: str, how: str, kind: str, message: str, exit_code: int
) -> None:
    bad = flow.broken(how=how)
    report = run(flow.describe([bad]), flow.text(), prefix=prefix, keep_going=True)
    outcomes = decisions(report)
    assert outcomes["describe"] == ("blocked", "blocked by broken")
    assert outcomes["text"][0] == "succeeded"
    failure = report.node(bad).failure
    assert failure is not None
    assert failure.type == kind
    assert message in failure.message
    assert report.exit_code == exit_code
    with pytest.raises(StepFailedError, match=kind):
        report.value(bad)
    assert not (Path(prefix) / report.node(bad).address / "step.json").exists()


@pytest.mark.parametrize("launcher", ["inline", "process"])
def test_of_a_hundred_steps_one_fails_and_only_what_needs_it_is_blocked(
    module: Any, prefix: str, launcher: str
) -> None:
    flow = module(FLOW)
    bad = flow.broken()
    blocked = [flow.describe([bad], title=str(i)) for i in range(30)]
    fine = [flow.text(content=str(i)) for i in range(69)]
    report = run(blocked, fine, prefix=prefix, launcher=launcher, keep_going=True)
    found = [n.outcome for n in report.record.nodes]
    assert (found.count("succeeded"), found.count("blocked"), found.count("failed")) == (69, 30, 1)
    assert {n.reason for n in report.record.nodes if n.outcome == "blocked"} == {"blocked by broken"}
    record = json.loads((Path(prefix) / "runs" / f"{report.record.run_id}.json").read_text())
    (failure,) = (n["failure"] for n in record["nodes"] if n["failure"])
    assert 'raise ValueError("no such luck")' in failure["traceback"]
    again = run(blocked, fine, prefix=prefix, launcher=launcher, keep_going=True)
    assert [n.outcome for n in again.record.nodes].count("reused") == 69
    path = Path(str(flow.__file__))
    text = path.read_text().replace('raise ValueError("no such luck")', "return 1")
    path.write_text(text.replace("[c.longest for c in counts]", "len(counts)"))
    repaired = run(blocked, fine, prefix=prefix, launcher="process", keep_going=True)
    assert repaired.ok
    assert set(repaired.executed) == {n.address for n in report.record.nodes if n.outcome in ("failed", "blocked")}


def test_fail_fast_starts_nothing_more(flow: ModuleType, prefix: str) -> None:
    after = flow.describe([flow.broken()])
    report = run(after, [flow.text(content=str(i)) for i in range(3)], prefix=prefix, launcher="inline")
    assert report.executed == ()
    assert [n.outcome for n in report.record.nodes] == ["failed", "blocked", "pending", "pending", "pending"]


def test_inline_bodies_take_turns_and_each_output_is_committed(module: Any, prefix: str, tmp_path: Path) -> None:
    flow = module("""
        from marin_core import Out, step

        inside = []

        @step
        def alone(out: Out, *, i: int) -> int:
            assert not inside
            inside.append(i)
            (out / "a.txt").write_text(str(i))
            inside.remove(i)
            return i
        """)
    report = run([flow.alone(i=i) for i in range(20)], prefix=prefix, launcher="inline", max_workers=4)
    assert report.ok
    assert [(report.path(a) / "a.txt").read_text() for a in report.executed] == [str(i) for i in range(20)]


def test_fail_fast_lets_what_runs_come_to_its_end(module: Any, prefix: str, tmp_path: Path) -> None:
    flow = module("""
        import time
        from pathlib import Path
        from marin_core import step

        @step
        def fail(*, other: str) -> int:
            while not Path(other).exists():
                time.sleep(0.01)
            raise ValueError("no")

        @step
        def run_on(*, mine: str, record: str) -> int:
            Path(mine).touch()
            while not list(Path(record).glob("fail/*/attempts/1/attempt.json")) or '"failed"' not in next(
                Path(record).glob("fail/*/attempts/1/attempt.json")
            ).read_text():
                time.sleep(0.01)
            return 1

        @step
        def later(x: int) -> int:
            return x
    """)
    running = flow.run_on(mine=str(tmp_path / "mine"), record=prefix)
    report = run(flow.later(running), flow.fail(other=str(tmp_path / "mine")), prefix=prefix)
    assert [n.outcome for n in report.record.nodes] == ["succeeded", "pending", "failed"]
    assert report.record.nodes[1].reason.startswith("not started, the run was failed")


def test_retries_share_work_and_raise_the_epoch(flow: ModuleType, prefix: str) -> None:
    assert resolve(flow.attempts(retries=2), prefix=prefix) == 3
    report = run(flow.attempts(retries=2), prefix=prefix)
    assert (report.executed, report.record.nodes[0].attempt) == ((), 3)


def test_only_and_until_restrict_what_runs(flow: ModuleType, prefix: str) -> None:
    target = chain(flow)
    until = run(target, prefix=prefix, launcher="inline", options=Options(until=("clean",)))
    assert [a.split("/")[0] for a in until.executed] == ["text", "clean"]
    only = run(target, prefix=prefix, launcher="inline", options=Options(only=("describe",)))
    assert [n.outcome for n in only.record.nodes] == ["reused", "reused", "unselected", "blocked"]
    forced = run(target, prefix=prefix, launcher="inline", options=Options(force=("text",)))
    assert [a.split("/")[0] for a in forced.executed] == ["text", "count", "describe"]
    with pytest.raises(UsageError, match="--only nothing: no step of that name; there are text"):
        run(target, prefix=prefix, options=Options(only=("nothing",)))


def test_code_that_is_only_reported_hides_no_other_change(module: Any, prefix: str) -> None:
    flow = module(FLOW.replace("@step\n    def count", '@step(on_code_change="report")\n    def count'))
    run(chain(flow), prefix=prefix, launcher="inline")
    path = Path(str(flow.__file__))
    path.write_text(path.read_text().replace("max(words", "min(words"))
    assert decisions(run(chain(flow), prefix=prefix))["count"][1].endswith("only reported")
    path.write_text(path.read_text().replace(".strip().lower()", ".upper()"))
    assert decisions(run(chain(flow), prefix=prefix))["count"][1].startswith("input source changed: output ")


def overwrite(path: Path, text: str) -> None:
    """Damages a committed file, which is read-only."""
    path.unlink()
    path.write_text(text)


def test_damaged_output_is_served_neither_by_only_nor_by_accept(flow: ModuleType, prefix: str) -> None:
    report = run(chain(flow), flow.text(version="v1"), prefix=prefix, launcher="inline")
    for address in (report.graph.addresses[1], "text/v1"):
        overwrite(next((Path(prefix) / address / "attempts/1/out").rglob("text.txt")), "truncat")
    only = run(chain(flow), prefix=prefix, launcher="inline", options=Options(only=("count",), force=("count",)))
    assert decisions(only)["clean"][0] == "unselected"
    assert decisions(only)["count"][0] == "blocked"
    changed = flow.text(version="v1", content="other")
    accepted = run(changed, prefix=prefix, launcher="inline", options=Options(accept=("text",)))
    assert accepted.exit_code == 3
    with pytest.raises(DriftError, match=r"output is damaged: sub/text\.txt has 7 bytes instead of 8; --rebuild text"):
        accepted.value(changed)


def test_any_text_passes_through_arguments_values_and_file_names(module: Any, prefix: str) -> None:
    odd = module("""
        from marin_core import Out, step

        @step
        def odd(out: Out, *, text: str) -> list:
            (out / "caf\\udce9").write_text("")
            return [text, "\\udce9"]
    """)
    target = odd.odd(text="if __name__ == '__main__': \udce9")
    report = run(target, prefix=prefix)
    assert report.value(target) == ["if __name__ == '__main__': \udce9", "\udce9"]
    assert run(target, prefix=prefix).executed == ()


def test_a_damaged_or_corrupt_step_is_made_again_and_others_are_not(flow: ModuleType, prefix: str) -> None:
    report = run(chain(flow), prefix=prefix, launcher="inline")
    _, clean, _, describe = report.graph.addresses
    overwrite(Path(prefix) / clean / "attempts/1/out/text.txt", "truncat")
    record = Path(prefix) / describe / "step.json"
    record.write_text(record.read_text()[:100])
    rerun = run(chain(flow), prefix=prefix, launcher="inline")
    assert rerun.executed == (clean, describe)
    assert "text.txt has 7 bytes instead of 8" in rerun.node(clean).reason
    assert "record is corrupt" in rerun.node(describe).reason


def test_a_moved_prefix_is_still_valid(flow: ModuleType, prefix: str, tmp_path: Path) -> None:
    run(chain(flow), prefix=prefix, launcher="inline")
    moved = tmp_path / "elsewhere"
    Path(prefix).rename(moved)
    report = run(chain(flow), prefix=str(moved), launcher="inline")
    assert report.executed == ()
    assert report.path(report.graph.addresses[0]).is_relative_to(moved)
    assert prefix not in "".join(p.read_text() for p in moved.rglob("*.json") if p.parent.name != "runs")


def test_adopted_data_is_read_in_place_and_known_by_content(flow: ModuleType, prefix: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "text.txt").write_text("X Y")
    target = flow.clean(adopt(tmp_path / "one", name="raw"))
    assert run(target, prefix=prefix).ok
    assert run(flow.clean(adopt(tmp_path / "two", name="raw")), prefix=prefix).executed == ()
    (tmp_path / "two" / "sub" / "text.txt").write_text("X Z")
    assert len(run(flow.clean(adopt(tmp_path / "two", name="raw")), prefix=prefix).executed) == 1
    assert not (Path(prefix) / "raw").exists()


def test_a_path_is_where_the_output_lies(flow: ModuleType, prefix: str) -> None:
    with pytest.raises(MissingOutputError, match="never run"):
        flow.text().path(prefix)
    resolve(flow.text(), prefix=prefix, launcher="inline")
    assert (flow.text().path(prefix) / "sub/text.txt").exists()


def test_memory_prefix_keeps_outputs_for_inline_runs(flow: ModuleType, tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}"
    assert run(chain(flow), prefix=url, launcher="inline").ok
    assert run(chain(flow), prefix=url, launcher="inline").executed == ()
    with pytest.raises(UsageError, match="launcher='inline'"):
        StepRunner(url)
    with pytest.raises(PrefixError, match=r"https:// is used without conditional writes.*--unsafe-single-writer"):
        StepRunner("https://host/x")


def test_a_prefix_without_conditional_writes_runs_on_the_users_word(flow: ModuleType, tmp_path: Path) -> None:
    url = f"local://{tmp_path}/prefix"
    with pytest.raises(PrefixError, match="--unsafe-single-writer"):
        StepRunner(url)
    runner = StepRunner(url, unsafe_single_writer=True)
    assert len(runner.run(lower(chain(flow))).executed) == 4
    assert runner.run(lower(chain(flow))).executed == ()


def test_an_unwritable_prefix_is_named(flow: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PrefixError, match=r"file.*Not a directory.*choose another --prefix"):
        run(flow.text(), prefix=tmp_path / "file" / "prefix")


def test_sources_edited_after_the_plan_are_not_run_under_its_digest(flow: ModuleType, prefix: str) -> None:
    graph = lower(flow.text())
    path = Path(str(flow.__file__))
    path.write_text("# a comment\n" + path.read_text())
    assert StepRunner(prefix).run(graph).ok
    graph = lower(flow.text(content="other"))
    path.write_text(path.read_text().replace("return len(content)", "return 0"))
    report = StepRunner(prefix).run(graph)
    assert failure_of(report, "text") == "SourceChanged"
    with pytest.raises(UsageError, match="no step of this run"):
        report.node("texts")


def test_the_run_record_has_every_node_with_reason(flow: ModuleType, prefix: str) -> None:
    report = run(chain(flow), prefix=prefix, launcher="inline")
    data = json.loads((Path(prefix) / "runs" / f"{report.record.run_id}.json").read_text())
    assert data["status"] == "succeeded"
    assert [n["reason"] for n in data["nodes"]] == ["no committed output"] * 4
    assert data["nodes"][2]["arguments"] == {
        "source": {"step": report.graph.addresses[1]},
        "size": {"step": report.graph.addresses[0]},
        "log_every": 1,
    }
    assert data["environment"]["num_cpus"] >= 1


@pytest.mark.parametrize("record", ["step.json", "lease.json", "attempts/1/attempt.json"])
def test_what_a_later_version_wrote_is_refused_and_not_replaced(flow: ModuleType, prefix: str, record: str) -> None:
    address = run(flow.text(), prefix=prefix, launcher="inline").node("text").address
    path = Path(prefix) / address / record
    path.write_text(newer := json.dumps(json.loads(path.read_text()) | {"schema": 2}))
    options = Options(force=("text",))
    report = run(
        flow.text(), flow.text(content="x"), prefix=prefix, options=options, launcher="inline", keep_going=True
    )
    assert report.exit_code == 3
    assert report.node(address).outcome == "refused"
    assert "upgrade marin-core" in report.node(address).reason
    assert [n.outcome for n in report.record.nodes] == ["refused", "succeeded"]
    assert path.read_text() == newer
    assert not (Path(prefix) / address / "attempts" / "2").exists()


def test_a_full_prefix_is_told_once(
    flow: ModuleType, prefix: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = LocalStore.write

    def write(store: LocalStore, key: str, data: bytes, **options: Any) -> None:
        if key.endswith("attempt.json") or full:
            full.append(key)
            raise store.error(OSError(28, "No space left on device", key))
        real(store, key, data, **options)

    full: list[str] = []
    monkeypatch.setattr(LocalStore, "write", write)
    with caplog.at_level(logging.INFO), pytest.raises(PrefixError, match="no space left on the device"):
        run(flow.text(), prefix=prefix)
    assert any(key.startswith("runs/") for key in full)
    assert caplog.records == []
