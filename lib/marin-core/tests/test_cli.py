"""The reading commands: one answer in two forms, what holds now rather than what was written, and a last line."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from marin_core import StepRunner, adopt, lower
from marin_core.cli import main
from marin_core.reading.catalogue import Catalogue
from marin_core.store import open_store

SOURCE = """
import threading
from marin_core import Input, Out, step

GATE = threading.Event()
STARTED = threading.Event()

@step
def text(out: Out, *, word: str = "ant", fail: bool = False) -> int:
    print("first of", word)
    print("second of", word)
    if fail:
        raise ValueError("the first line\\nand the second")
    (out / "t.txt").write_text(word)
    return len(word)

@step
def slow() -> int:
    print("before")
    STARTED.set()
    assert GATE.wait(120)
    print("after")
    return 1
"""

READS = """
from marin_core import Input, step

@step
def reads(data: Input) -> int:
    return len(data.local().read_text())
"""

READERS = ("status", "logs", "report", "diff", "lineage", "verify", "gc", "pin", "unpin")


@pytest.fixture
def flow(module: Callable[[str], ModuleType]) -> ModuleType:
    return module(SOURCE)


def run(prefix: str, *handles: Any, **options: Any) -> Any:
    return StepRunner(prefix, launcher="inline", keep_going=True, **options).run(lower(*handles))


def states(marin: Any) -> dict[str, tuple[str, str]]:
    """Name -> state and note."""
    steps = marin("status", "--json").document["steps"]
    return {s["address"].split("/")[0]: (s["state"], s["note"]) for s in steps}


@pytest.mark.parametrize("command", READERS)
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main([command, "--help"])
    assert exited.value.code == 0
    assert f"example: marin {command} " in capsys.readouterr().out


@pytest.mark.parametrize("command", ["run", "plan", "explain", "graph"])
def test_commands_on_a_script_have_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert f"example: marin {command} " in capsys.readouterr().out
    assert main([command]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["status", "--runs", "0"],
        ["logs", "text"],
        ["report"],
        ["diff", "latest", "latest"],
        ["diff", "text", "text"],
        ["lineage", "text", "--down"],
        ["verify", "--deep"],
        ["gc"],
        ["gc", "--apply"],
        ["pin"],
        ["pin", "text"],
        ["unpin", "text"],
    ],
)
def test_json_is_one_document_and_all_that_stdout_holds(
    marin: Any, prefix: str, flow: ModuleType, arguments: list[str]
) -> None:
    run(prefix, flow.text())
    said = marin(*arguments)
    assert said.code == 0
    assert said.out
    assert isinstance(marin(*arguments, "--json").document, dict | list)


def test_status_shows_runs_and_the_state_of_every_step(marin: Any, prefix: str, flow: ModuleType) -> None:
    run(prefix, flow.text(name="good"), flow.text(name="bad", fail=True), flow.text(name="torn"))
    torn = next(Path(prefix, "torn").glob("*/step.json"))
    torn.write_text(torn.read_text()[:-30])
    found = states(marin)
    assert found["good"] == ("committed", "")
    assert found["bad"] == ("failed", "ValueError: the first line\nand the second")
    assert found["torn"][0] == "corrupt"
    said = marin("status")
    assert said.last == f"1 committed step, 1 failed, 1 corrupt, 1 run under {prefix}"
    assert "failed      ValueError" not in said.out
    assert any(line.endswith("ValueError: the first line and the second") for line in said.out.splitlines())
    assert "2 succeeded, 1 failed" in said.out


def test_a_committed_step_whose_later_attempt_failed_says_both(marin: Any, prefix: str, flow: ModuleType) -> None:
    from marin_core.reasons import Options

    run(prefix, flow.text(name="v", version="v1"))
    run(prefix, flow.text(name="v", version="v1", fail=True), options=Options(rebuild=("v",)))
    assert states(marin)["v"] == ("committed", "attempt 2 since: ValueError: the first line\nand the second")


def test_a_step_that_is_being_made_says_by_whom(prefix: str, flow: ModuleType) -> None:
    from marin_core import leases
    from marin_core.commands.runs import state_of

    driver = threading.Thread(target=run, args=(prefix, flow.slow()))
    driver.start()
    assert flow.STARTED.wait(120)
    catalogue = Catalogue.of(prefix)
    step = state_of(catalogue, catalogue.addresses[0], witness=leases.Witness())
    flow.GATE.set()
    driver.join()
    assert step.state == "running"
    assert step.note.startswith(f"run {catalogue.run_ids[0]} (pid {os.getpid()} on ")
    assert ", attempt 1 for " in step.note


def test_logs_show_an_attempt_or_its_end(marin: Any, prefix: str, flow: ModuleType) -> None:
    run(prefix, flow.text(fail=True))
    run(prefix, flow.text(fail=True))
    said = marin("logs", "text")
    printed, _, why = said.out.partition("Traceback (most recent call last):\n")
    assert printed == "first of ant\nsecond of ant\n"
    assert why.endswith("\nand the second\nfailed: ValueError: the first line\nand the second\n")
    assert said.err.startswith("attempt 2 of text/")
    assert said.err.endswith(": failed\n")
    assert marin("logs", "text", "--tail", "1").out.startswith("second of ant\nTraceback")
    assert marin("logs", "text", "--tail", "0").out.startswith("Traceback")
    assert marin("logs", "text", "--attempt", "1", "--follow").out == said.out
    document = marin("logs", "text", "--attempt", "1", "--json").document
    assert (document["attempt"], document["state"], document["log"]) == (1, "failed", printed)
    assert document["failure"]["type"] == "ValueError"
    missing = marin("logs", "text", "--attempt", "7")
    assert missing.code == 2
    assert "there is no attempt 7; there are 1, 2" in missing.err


def test_logs_of_a_name_are_those_of_the_step_that_was_tried_last(marin: Any, prefix: str, flow: ModuleType) -> None:
    run(prefix, flow.text(word="cat"))
    run(prefix, flow.text(fail=True))
    said = marin("logs", "text")
    assert said.out.startswith("first of ant\n")
    assert "text: the last tried of 2 is meant" in said.err


def test_logs_of_a_name_are_those_of_the_step_that_runs(marin: Any, prefix: str, flow: ModuleType) -> None:
    driver = threading.Thread(target=run, args=(prefix, flow.slow(name="text")))
    driver.start()
    assert flow.STARTED.wait(120)
    address = Catalogue.of(prefix).addresses[0]
    other = flow.text()
    store = open_store(prefix)
    # Began after the one that runs, as by another runner, and is over.
    StepRunner(prefix, launcher="process").run(lower(other))
    said = marin("logs", "text")
    flow.GATE.set()
    driver.join()
    assert len(Catalogue(store).addresses) == 2
    assert f"the one that is running of 2 is meant, {address}" in said.err


def test_steps_of_one_name_are_told_apart_by_what_was_varied(marin: Any, prefix: str, flow: ModuleType) -> None:
    run(prefix, flow.text(word="ant"), flow.text(word="bee", fail=True))
    out = marin("status").out
    assert " fail=False, word=ant  committed" in out
    assert " fail=True, word=bee   failed" in out


def test_many_steps_are_told_by_name_unless_all_are_asked_for(marin: Any, prefix: str, flow: ModuleType) -> None:
    run(prefix, [flow.text(word=f"w{i}") for i in range(45)], flow.text(word="odd", fail=True))
    lines = marin("status").out.splitlines()
    assert any(line.startswith("text/*") and "45 committed" in line for line in lines)
    assert any("failed" in line and "ValueError" in line for line in lines)
    assert "(45 steps in 1 row by name; marin status --all lists each)" in lines
    assert sum(line.startswith("text/") for line in marin("status", "--all").out.splitlines()) == 46
    assert len(marin("status", "--json").document["steps"]) == 46
    collected = marin("gc", "--keep-days", "0", "--keep-runs", "0").out
    assert "45 of text" in collected
    assert re.search(r"\(\d+ items in \d+ rows by name; marin gc --all lists each\)", collected)
    assert "rows by name" not in marin("gc", "--keep-days", "0", "--keep-runs", "0", "--all").out


def test_what_was_made_of_adopted_data_can_be_asked_for(marin: Any, prefix: str, module: Any, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1")
    reads = module(READS).reads
    made = run(prefix, reads(adopt(tmp_path / "data.csv"))).record.nodes[1].address
    down = marin("lineage", "data.csv", "--down")
    assert down.code == 0
    assert f"adopted from {tmp_path}/data.csv" in down.out.splitlines()[0]
    assert made in down.out.splitlines()[1]


def test_a_local_prefix_that_is_made_here_is_ignored_by_git(prefix: str, flow: ModuleType, tmp_path: Path) -> None:
    run(prefix, flow.text())
    assert Path(prefix, ".gitignore").read_text().endswith("\n*\n")
    (tmp_path / "mine").mkdir()
    run(str(tmp_path / "mine"), flow.text())
    assert not (tmp_path / "mine" / ".gitignore").exists()


def test_a_report_lies_beside_the_runs_record(marin: Any, prefix: str, flow: ModuleType) -> None:
    run_id = run(prefix, flow.text()).record.run_id
    assert marin("report").out == f"report: {prefix}/runs/{run_id}.html\n"
    assert Path(prefix, "runs", f"{run_id}.html").read_text().startswith("<!doctype html>")
    assert marin("report", run_id[:-2], "--html", f"{prefix}/x.html").out == f"report: {prefix}/x.html\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["logs", "txet"], "did you mean text?"),
        (["lineage", "txet"], "did you mean text?"),
        (["diff", "txet", "text"], "did you mean text?"),
        (["verify", "txet"], "did you mean text?"),
        (["pin", "txet"], "did you mean text?"),
        (["report", "2000"], "run 2000: no such run under"),
        (["diff", "latest~3", "latest"], "there are 1 runs"),
        (["logs", "../text"], "no step of this address or name"),
        (["gc", "--keep-days", "-1"], "give 0 or more"),
        (["gc", "--keep-days", "nan"], "give 0 or more"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(
    marin: Any, prefix: str, flow: ModuleType, arguments: list[str], message: str
) -> None:
    run(prefix, flow.text())
    said = marin(*arguments)
    assert (said.code, said.out) == (2, "")
    assert message in said.err
    assert said.err.count("\n") == 1


# With processes of their own

SCRIPT = textwrap.dedent(
    """
    import time
    from pathlib import Path
    from marin_core import Input, Out, main, step

    GATE = Path(__file__).with_name("gate")

    @step
    def first(out: Out, *, word: str = "ant", unused: int = 0) -> int:
        (out / "a.txt").write_text(word)
        return 1

    @step
    def slow(source: Input) -> int:
        print("before", flush=True)
        while not GATE.exists():
            time.sleep(0.01)
        print("after")
        return 2

    def build(*, word: str = "ant", unused: int = 0):
        return slow(first(word=word, unused=unused))

    if __name__ == "__main__":
        main(build)
    """
)


class Job:
    """A script, the driver that runs it, and a follower of its log."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.prefix = directory, str(directory / ".marin")
        (directory / "job.py").write_text(SCRIPT)
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *command: str) -> subprocess.Popen[str]:
        options: dict[str, Any] = {"cwd": self.directory, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen([sys.executable, *command], text=True, start_new_session=True, **options)
        self.started.append(process)
        return process

    def marin(self, *arguments: str) -> subprocess.Popen[str]:
        return self.start("-m", "marin_core.cli", *arguments)

    def until_printed(self, word: str) -> None:
        while not any(word in p.read_text() for p in Path(self.prefix).glob("slow/*/attempts/*/log.txt")):
            time.sleep(0.01)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_log_is_followed_until_its_attempt_ends(job: Job) -> None:
    driver = job.start("job.py")
    job.until_printed("before")
    follower = job.marin("logs", "slow", "--follow")
    assert follower.stdout is not None
    assert follower.stdout.readline() == "before\n"
    (job.directory / "gate").touch()
    assert follower.stdout.read() == "after\n"
    assert follower.wait() == 0
    assert driver.wait() == 0


def test_a_run_whose_driver_was_killed_is_said_to_have_died(job: Job) -> None:
    driver = job.start("job.py")
    job.until_printed("before")
    running = json.loads(job.marin("status", "--json").communicate()[0])
    assert running["runs"][0]["status"] == "running"
    assert {s["name"]: s["state"] for s in running["steps"]} == {
        "first": "committed",
        "slow": "running",
    }
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    out, _ = job.marin("status").communicate()
    assert "  died  " in out
    assert "its driver died (pid" in out
    followed = job.marin("logs", "slow", "--follow")
    out, err = followed.communicate()
    assert (followed.returncode, out) == (0, "before\n")
    assert err.endswith(": died\n")


def test_a_script_is_explained_against_the_nearest_recipe(job: Job) -> None:
    (job.directory / "gate").touch()
    assert job.start("job.py", "--word", "bee").wait() == 0
    assert job.start("job.py", "--word", "cat", "--unused", "7").wait() == 0
    out, _ = job.marin("explain", "job.py", "--word", "bee", "--unused", "1").communicate()
    assert out.splitlines()[1] == "  run: recipe is new: unused: 0 -> 1"
    assert out.splitlines()[-1] == "2 of 2 steps would run"
    assert "digests" not in out
    full, _ = job.marin("explain", "job.py", "first", "--word", "bee", "--unused", "1").communicate()
    assert "  changed    recipe unused: 0 -> 1" in full
    assert "  digests    recipe = " in full
    text, _ = job.marin("explain", "job.py", "--full").communicate()
    assert text.count("  digests    code = ") == 2


def test_a_graph_is_drawn_on_one_page_with_decisions(job: Job) -> None:
    (job.directory / "gate").touch()
    assert job.start("job.py").wait() == 0
    done = job.marin("graph", "job.py", "--html", "graph.html", "--unused", "3")
    assert done.communicate()[0] == "graph of 2 steps: graph.html\n"
    page = (job.directory / "graph.html").read_text()
    assert "2 would run" in page
    assert "recipe is new: unused: 0 -&gt; 3" in page
    assert "default-src &#x27;none&#x27;" in page
    document = json.loads(job.marin("graph", "job.py", "--json").communicate()[0])
    assert len(document["edges"]) == 1


@pytest.mark.parametrize("command", ["plan", "run", "explain", "graph"])
def test_what_a_script_prints_by_itself_is_no_part_of_the_json(job: Job, command: str) -> None:
    (job.directory / "gate").touch()
    talking = SCRIPT.replace("def build(", "print('loaded')\n\ndef build(")
    talking = talking.replace("    return slow(", "    print('building')\n    return slow(")
    (job.directory / "job.py").write_text(talking)
    process = job.marin(command, "job.py", "--json")
    out, err = process.communicate()
    assert process.returncode == 0, err
    json.loads(out)
    assert "loaded" in err
    assert "building" in err


@pytest.mark.parametrize("command", ["status", "gc", "lineage text", "diff latest latest", "pin", "verify"])
def test_a_reader_that_leaves_in_an_ascii_locale_is_no_error(prefix: str, flow: ModuleType, command: str) -> None:
    run(prefix, flow.text(), flow.text(name="bad", fail=True))
    environment = os.environ | {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONIOENCODING": "ascii",
    }
    line = f"{sys.executable} -m marin_core.cli {command} --prefix {prefix} | head -n 1"
    done = subprocess.run(["sh", "-c", line], capture_output=True, env=environment, check=False)
    assert done.stderr == b""
    assert done.stdout.count(b"\n") == 1


@pytest.mark.parametrize("columns", [24, 40, 200])
def test_a_terminal_of_any_width_gets_rows_that_fit_it(prefix: str, flow: ModuleType, columns: int) -> None:
    run(prefix, flow.text(), flow.text(name="bad", fail=True))
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "marin_core.cli", "status", "--prefix", prefix]
    environment = os.environ | {"COLUMNS": str(columns)}
    process = subprocess.Popen(command, env=environment, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    shown = b""
    with contextlib.suppress(OSError):
        while chunk := os.read(master, 65536):
            shown += chunk
    os.close(master)
    assert process.wait() == 0
    note = next(line for line in shown.decode().splitlines() if "Val" in line)
    assert len(note) <= columns
    assert ("and the second" in note) == (columns == 200)
