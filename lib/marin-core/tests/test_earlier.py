"""Going back: code or inputs that a step had before are served what was made of them then, and nothing executes."""

import importlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from marin_core import Resources, RunReport, StepRunner, lower, run
from marin_core.code.bytecode import forget_racy
from marin_core.faults import VARIABLE
from marin_core.reading.catalogue import Catalogue
from marin_core.reading.verification import verify_steps
from marin_core.reasons import Options
from marin_core.running.ledger import Silence
from marin_core.store import open_store

SOURCE = """
    import os
    from marin_core import Input, Out, step

    WORD = "ant"

    @step
    def first(out: Out) -> str:
        (out / "noise.bin").write_bytes(os.urandom(8))
        (out / "a.txt").write_text(WORD)
        return WORD

    @step
    def last(out: Out, source: Input) -> int:
        return (out / "b.txt").write_bytes((source / "noise.bin").read_bytes())

    def build():
        return last(first())
"""


@pytest.fixture
def flow(module: Callable[[str], ModuleType]) -> ModuleType:
    return module(SOURCE)


def say(flow: ModuleType, word: str) -> None:
    path = Path(str(flow.__file__))
    now = next(line for line in path.read_text().splitlines() if line.startswith("WORD"))
    path.write_text(path.read_text().replace(now, f'WORD = "{word}"'))
    forget_racy([path])  # for whoever reloads it


def bring(flow: ModuleType, prefix: str, word: str, **options: Any) -> RunReport:
    say(flow, word)
    return run(flow.build(), prefix=prefix, options=Options(**options))


def outcomes(report: RunReport) -> dict[str, tuple[int | None, str]]:
    return {n.name: (n.attempt, n.outcome) for n in report.record.nodes}


def contents(report: RunReport) -> list[bytes]:
    return [(report.path("first") / "noise.bin").read_bytes(), (report.path("last") / "b.txt").read_bytes()]


def test_code_that_was_there_before_executes_nothing(flow: ModuleType, prefix: str, marin: Any) -> None:
    ant = bring(flow, prefix, "ant")
    made = contents(ant)
    address = ant.node("first").address
    assert not Path(prefix, address, "attempts/1/step.json").exists()  # first commits leave nothing more
    bee = bring(flow, prefix, "bee")
    assert len(bee.executed) == 2
    for word, number in (("ant", 1), ("bee", 2), ("ant", 1)):
        say(flow, word)
        planned = {p.name: (p.decision, p.reason) for p in lower(flow.build()).plan(prefix)}
        assert planned["first"] == (
            "reuse",
            f"code is that of attempt {number} again (constant {flow.__name__}:WORD)",
        )
        assert planned["last"][0] == "reuse"
        assert planned["last"][1].startswith(f"inputs are those of attempt {number} again (source changed: output ")
        back = bring(flow, prefix, word)
        assert {n.name: (n.decision, n.reason) for n in back.record.nodes} == planned
        assert outcomes(back) == {"first": (number, "reused"), "last": (number, "reused")}
        assert (back.value("first"), contents(back)) == (word, made if number == 1 else contents(bee))
        assert {n.reason for n in bring(flow, prefix, word).record.nodes} == {"up to date"}
    assert [s["state"] for s in marin("status", "--json").document["steps"]] == ["committed"] * 2
    assert not [s["note"] for s in marin("status", "--json").document["steps"] if s["note"]]
    assert marin("verify", "--deep").code == 0


def test_equal_output_of_an_earlier_attempt_cuts_the_rebuild_off(module: Any, prefix: str) -> None:
    flow = module(SOURCE.replace("os.urandom(8)", "b'same'").replace("write_text(WORD)", "write_text(WORD[:0])"))
    Path(str(flow.__file__)).write_text(Path(str(flow.__file__)).read_text().replace("return WORD", "return WORD[:0]"))
    for word, executed in (("ant", ["first", "last"]), ("bee", ["first"]), ("ant", [])):
        report = bring(flow, prefix, word)
        assert [a.split("/")[0] for a in report.executed] == executed
        assert report.node("last").attempt == 1


def test_data_that_comes_back_is_served_what_was_made_of_it(module: Any, prefix: str, tmp_path: Path) -> None:
    flow = module("""
        from pathlib import Path
        from marin_core import Input, Out, adopt, step
        @step(version="v1")
        def copied(out: Out, data: Input) -> int:
            return (out / "t.txt").write_text((data / "d.txt").read_text())
        @step
        def read(source: Input) -> str:
            return (source / "t.txt").read_text()
        def build(path):
            return read(copied(adopt(path)))
    """)
    data = tmp_path / "d.txt"
    seen = []
    for word in ("ant", "bee", "ant"):
        data.write_text(word)
        report = run(flow.build(data), prefix=prefix, options=Options(rebuild=("copied",)))
        seen.append((report.value("read"), report.node("read").outcome))
    assert seen == [("ant", "succeeded"), ("bee", "succeeded"), ("ant", "reused")]
    assert report.node("copied").outcome == "succeeded"  # a version is made anew where that is asked
    assert report.node("read").reason.startswith("inputs are those of attempt 1 again (source changed: ")


@pytest.mark.parametrize("harm", ["resized", "gone", "no record", "broken record", "collected"])
def test_an_earlier_attempt_that_is_not_whole_is_not_served(
    flow: ModuleType, prefix: str, marin: Any, harm: str
) -> None:
    address = bring(flow, prefix, "ant").node("first").address
    bring(flow, prefix, "bee")
    attempt = Path(prefix, address, "attempts/1")
    if harm == "resized":
        (attempt / "out/a.txt").chmod(0o600)
        (attempt / "out/a.txt").write_text("longer")
    elif harm == "gone":
        (attempt / "out/a.txt").unlink()
    elif harm == "no record":
        (attempt / "step.json").unlink()
    elif harm == "broken record":
        (attempt / "step.json").write_text("{")
    if harm in ("resized", "gone", "broken record"):
        assert marin("verify").code == 1
        assert f"attempts/1{'/step.json' if harm == 'broken record' else ': a.txt'}" in marin("verify").out
    if harm == "collected":
        marin("gc", "--apply")
        assert [p.name for p in attempt.iterdir()] == ["attempt.json"]
        assert marin("verify").code == 0
    back = bring(flow, prefix, "ant")
    assert outcomes(back)["first"] == (3, "succeeded")


def test_what_is_served_again_is_kept_and_what_was_left_is_collected(flow: ModuleType, prefix: str, marin: Any) -> None:
    address = bring(flow, prefix, "ant").node("first").address
    bring(flow, prefix, "bee")
    bring(flow, prefix, "ant")
    found = marin("gc", "--apply", "--json").document["garbage"]
    assert {(g["what"], g["why"]) for g in found if g["what"].startswith(address)} == {
        (f"{address}/attempts/2", "superseded by attempt 1")
    }
    assert bring(flow, prefix, "ant").executed == ()
    assert len(bring(flow, prefix, "bee").executed) == 2


@pytest.mark.parametrize("flag", ["force", "rebuild"])
def test_what_is_asked_to_be_made_is_made(flow: ModuleType, prefix: str, flag: str) -> None:
    bring(flow, prefix, "ant")
    bring(flow, prefix, "bee")
    again = bring(flow, prefix, "ant", **{flag: ("first",)})
    assert outcomes(again)["first"] == (3, "succeeded")
    bring(flow, prefix, "bee")
    assert outcomes(bring(flow, prefix, "ant"))["first"] == (3, "reused")  # not the one that it replaced


def test_a_version_is_never_pointed_back(flow: ModuleType, prefix: str) -> None:
    def at(word: str) -> RunReport:
        say(flow, word)
        return run(flow.first(version="v1"), prefix=prefix, options=Options(rebuild=("first",)))

    assert [outcomes(at(word))["first"] for word in ("ant", "bee", "ant")] == [
        (1, "succeeded"), (2, "succeeded"), (3, "succeeded"),
    ]  # fmt: skip


def test_another_environment_of_the_earlier_attempt_is_told(flow: ModuleType, prefix: str) -> None:
    address = bring(flow, prefix, "ant").node("first").address
    bring(flow, prefix, "bee")
    path = Path(prefix, address, "attempts/1/step.json")
    record = json.loads(path.read_text())
    record["digests"]["environment"] = "0" * 64
    path.write_text(json.dumps(record))
    assert bring(flow, prefix, "ant").node("first").reason == (
        f"code is that of attempt 1 again (constant {flow.__name__}:WORD); environment changed since"
    )


def test_a_step_for_which_there_are_no_slots_is_served(flow: ModuleType, prefix: str) -> None:
    target = flow.first(resources=Resources(accelerators="gpu:1"))
    for word, gpus in (("ant", 1), ("bee", 1), ("ant", 0)):
        say(flow, word)
        report = run(target, prefix=prefix, slots={"gpu": gpus})
    assert outcomes(report)["first"] == (1, "reused")


def test_an_earlier_attempt_that_is_collected_after_the_plan_is_made_again(
    flow: ModuleType, prefix: str, marin: Any
) -> None:
    bring(flow, prefix, "ant")
    bring(flow, prefix, "bee")
    say(flow, "ant")

    class Collecting(Silence):
        def started(self, run: Any) -> None:
            for path in Path(prefix).glob("first/*/attempts/1/step.json"):
                path.unlink()

    report = StepRunner(prefix, observer=Collecting()).run(lower(flow.build()))
    assert outcomes(report) == {"first": (3, "succeeded"), "last": (3, "succeeded")}


class Lab:
    """A script whose helper is edited between its drivers."""

    def __init__(self, directory: Path) -> None:
        self.script, self.prefix = directory / "job.py", directory / "prefix"

    def start(self, word: str, **environment: str) -> subprocess.Popen[str]:
        text = textwrap.dedent(SOURCE).replace("import Input, Out, step", "import Input, Out, main, step")
        text = text.replace('WORD = "ant"', f'WORD = "{word}"')
        self.script.write_text(f"{text}\n\nif __name__ == '__main__':\n    main(build)\n")
        command = [sys.executable, str(self.script), "--prefix", str(self.prefix), "--launcher", "inline"]
        return subprocess.Popen(
            command,
            cwd=self.script.parent,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self, word: str, **environment: str) -> tuple[int, str]:
        driver = self.start(word, **environment)
        out, _ = driver.communicate()
        return driver.returncode, out

    def pointers(self) -> list[int]:
        return [json.loads(p.read_text())["attempt"] for p in sorted(self.prefix.glob("*/*/step.json"))]


@pytest.mark.parametrize("point", ["lease-acquired", "before-commit", "after-commit", "lease-released"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_driver_killed_while_it_points_back_leaves_whole_steps(tmp_path: Path, point: str, number: int) -> None:
    lab = Lab(tmp_path)
    for word in ("ant", "bee"):
        assert lab.finish(word)[0] == 0
    files = {p: p.read_bytes() for p in lab.prefix.glob("*/*/attempts/*/out/*")}
    code, _ = lab.finish("ant", **{VARIABLE: f"{point}:{number}"})
    assert code == -signal.SIGKILL
    assert not any(f.damage for f in _findings(lab.prefix))
    code, out = lab.finish("ant")
    assert (code, "started" in out) == (0, False), out
    assert lab.pointers() == [1, 1]
    assert {p: p.read_bytes() for p in lab.prefix.glob("*/*/attempts/*/out/*")} == files


def _findings(prefix: Path) -> list[Any]:
    catalogue = Catalogue(open_store(prefix))
    return list(verify_steps(catalogue, catalogue.addresses, deep=True))


def test_two_runners_that_go_back_execute_nothing(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    for word in ("ant", "bee"):
        assert lab.finish(word)[0] == 0
    drivers = [lab.start("ant"), lab.start("ant")]
    outs = [driver.communicate()[0] for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0], outs
    assert not any("started" in out for out in outs), outs
    assert lab.pointers() == [1, 1]


def test_a_store_without_a_path_is_served_an_earlier_attempt_too(flow: ModuleType) -> None:
    prefix = f"memory://{flow.__name__}"
    values = []
    for word in ("ant", "bee", "ant"):
        say(flow, word)
        report = run(importlib.reload(flow).build(), prefix=prefix, launcher="inline")
        values.append((report.value("first"), report.node("last").attempt))
    assert values == [("ant", 1), ("bee", 2), ("ant", 1)]
    assert report.executed == ()
