"""Command lines, as a user meets them: flags, exit codes, what is said and where."""

import json
import os
import pty
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from marin_core.script import parse

SCRIPT = textwrap.dedent(
    '''
    from typing import Literal
    from marin_core import Input, Out, UsageError, main, step

    class CorpusError(Exception):
        exit_code = 2

    @step
    def text(out: Out, *, corpus: str) -> int:
        """Reads a corpus."""
        print("reading", corpus)
        if corpus == "empty":
            raise CorpusError("--corpus empty: there is no document in it; name another")
        if corpus == "bug":
            return {}["missing"]
        if corpus == "full":
            with open("/dev/full", "w") as f:
                f.write("x" * 100_000)
        (out / "t.txt").write_text(corpus)
        return len(corpus)

    @step(version="v1")
    def count(source: Input, *, mode: str, times: int) -> dict:
        return {"n": len((source / "t.txt").read_text()) * times, "mode": mode}

    def build(*, corpus: str = "stdlib", mode: Literal["chars", "words"] = "chars", times: int = 1):
        """Counts a corpus.

        Args:
            corpus: where the text comes from.
            mode: what to count.
            times: multiplies.
        """
        if corpus == "unread":
            open("unread.txt")
        if corpus == "nowhere":
            raise CorpusError("--corpus nowhere: no such file; give a path")
        return count(text(corpus=corpus), mode=mode, times=times, name="count/" + mode)

    def epilogue(report):
        return f"counted {next(iter(report.values.values()))['n']}"

    if __name__ == "__main__":
        main(build, epilogue=epilogue)
    '''
)

BROKEN = {
    "README.md": "# A title\nis no program.\n",
    "unfinished.py": "x = 1\ny = (\n",
    "imports.py": "x = 1\nimport nowhere_to_be_found\n",
    "raises.py": "def f():\n\n    return 1 / 0\nf()\n",
    "uses.py": "import unfinished\n",
}

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def script(tmp_path: Path, python: Run) -> Run:
    (tmp_path / "job.py").write_text(SCRIPT)
    return lambda *flags, **options: python("job.py", *flags, **options)


@pytest.fixture
def marin(tmp_path: Path, python: Run) -> Run:
    (tmp_path / "job.py").write_text(SCRIPT)
    return lambda *flags, **options: python("-m", "marin_core.cli", *flags, **options)


def test_a_run_says_what_it_did_and_where_the_page_lies(script: Run, tmp_path: Path) -> None:
    first = script()
    assert first.returncode == 0, first.stderr
    *_, counted, done, report = first.stdout.splitlines()
    assert counted == "counted 6"
    assert done.startswith("done: 2 of 2 steps executed in ")
    assert (tmp_path / report.removeprefix("report: ")).read_text().startswith("<!doctype html>")
    again = script()
    assert again.stdout.splitlines()[:-1] == ["counted 6", "nothing to do: 2 steps up to date"]


def test_help_shows_the_builds_flags_and_the_runners(script: Run) -> None:
    shown = script("--help")
    assert shown.returncode == 0
    for word in ("Counts a corpus.", "where the text comes from", "{chars,words}", "--on-code-change", "--keep-going"):
        assert word in shown.stdout


def test_json_is_one_document_on_stdout(script: Run) -> None:
    run = json.loads(script("--json").stdout)
    assert [n["outcome"] for n in run["nodes"]] == ["succeeded", "succeeded"]
    plan = json.loads(script("--json", "--plan", "--corpus", "other").stdout)
    assert [p["decision"] for p in plan] == ["run", "refuse"]


def test_a_plan_runs_and_writes_nothing(script: Run, tmp_path: Path) -> None:
    shown = script("--plan")
    assert shown.returncode == 0
    assert shown.stdout.splitlines()[-1] == "2 of 2 steps would run"
    assert not (tmp_path / ".marin").exists()


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--corpus", "nowhere"], 2, "error: --corpus nowhere: no such file; give a path"),
        (["--corpus", "unread"], 2, "error: [Errno 2] No such file or directory: 'unread.txt'"),
        (["--only", "nothing"], 2, "error: --only nothing: no step of that name; there are text, count/chars"),
        (["--launcher", "cloud"], 2, "error: --launcher cloud: give inline, process, ray or module:factory"),
        (["--keep-going", "--fail-fast"], 2, "error: --keep-going and --fail-fast contradict each other"),
        (["--prefix", "job.py"], 2, "job.py: not a directory; choose another --prefix"),
        (["--prefix", "job.py/below"], 2, "choose another --prefix or MARIN_PREFIX"),
        (["--prefix", "abfs://c/x"], 2, "give a local directory"),
        (["--prefix", "nope://x"], 2, "say --unsafe-single-writer"),
        (["--launcher", "os:getpid"], 2, "is no launcher, it has no launch(), poll(), cancel(), adopt()"),
        (["--launcher", "os:rename"], 2, "error: --launcher os:rename: "),
        (["--max-workers", "0"], 2, "error: max_workers=0 must be at least 1"),
    ],
)
def test_a_users_mistake_is_one_line_on_stderr(script: Run, flags: list[str], code: int, message: str) -> None:
    done = script(*flags)
    assert done.returncode == code
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize("flags", [["--nope"], ["--times", "x"], ["--mode", "lines"]])
def test_a_bad_flag_exits_2_without_a_traceback(script: Run, flags: list[str]) -> None:
    done = script(*flags)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("corpus", "said"),
    [
        ("empty", "step text: --corpus empty: there is no document in it; name another"),
        ("full", "step text: no space left"),
    ],
)
def test_a_users_mistake_in_a_body_has_no_traceback(script: Run, corpus: str, said: str) -> None:
    done = script("--corpus", corpus)
    assert done.returncode == 2
    assert said in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert "  log: .marin/text/" in done.stdout


def test_a_bug_in_a_body_shows_the_end_of_its_traceback_and_the_log(script: Run) -> None:
    done = script("--corpus", "bug")
    assert done.returncode == 1
    assert "step text failed: KeyError: 'missing'" in done.stdout
    assert 'return {}["missing"]' in done.stdout
    assert "worker.py" not in done.stdout
    assert "count/chars: blocked (blocked by text)" in done.stdout


def test_drift_of_a_versioned_step_is_refused_until_accepted_or_rebuilt(script: Run) -> None:
    assert script().returncode == 0
    refused = script("--times", "2")
    assert refused.returncode == 3
    assert "recipe changed: times: 1 -> 2; --accept count/chars serves the old output this once" in refused.stdout
    assert "counted 6" in script("--times", "2", "--accept", "count*").stdout
    assert "counted 12" in script("--times", "2", "--rebuild", "count*").stdout
    assert "nothing to do" in script("--times", "2").stdout


def test_inline_bodies_keep_stdout_for_json(script: Run) -> None:
    done = script("--launcher", "inline", "--json")
    assert json.loads(done.stdout)["status"] == "succeeded"
    assert "reading stdlib" in done.stderr


def test_the_prefix_comes_from_the_environment(script: Run, tmp_path: Path) -> None:
    assert script(MARIN_PREFIX=str(tmp_path / "there")).returncode == 0
    assert (tmp_path / "there" / "runs").is_dir()


def test_a_terminal_gets_a_live_table(script: Run, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        [sys.executable, "job.py"], cwd=tmp_path, env=environment, stdout=slave, stderr=slave, stdin=slave
    )
    os.close(slave)
    chunks = []
    while True:
        try:
            chunks.append(os.read(master, 65536))
        except OSError:
            break
    os.close(master)
    assert process.wait() == 0
    shown = b"".join(chunks).decode()
    assert "✓" in shown
    assert "counted 6" in shown


def test_marin_runs_plans_and_explains_a_script(marin: Run) -> None:
    assert "2 of 2 steps would run" in marin("plan", "job.py").stdout
    run = marin("run", "job.py:build", "--times", "3")
    assert (run.returncode, run.stderr) == (0, "")
    assert "counted 18" in run.stdout
    explained = json.loads(marin("explain", "job.py", "count*", "--times", "3", "--json").stdout)
    assert [e["decision"] for e in explained] == ["reuse"]
    assert explained[0]["arguments"]["times"] == "3"
    assert "job:count" in explained[0]["code"]
    assert "s0 --> s1" in marin("graph", "job.py").stdout


def test_marin_reads_a_prefix(marin: Run, tmp_path: Path) -> None:
    marin("run", "job.py")
    status = json.loads(marin("status", "--json").stdout)
    assert status["steps"][0]["address"] == "count/chars/v1"
    assert marin("logs", "text").stdout == "reading stdlib\n"
    assert marin("report", "--html", "page.html").stdout == "report: page.html\n"
    assert (tmp_path / "page.html").stat().st_size > 1000
    assert marin("verify", "--deep").returncode == 0
    output = next((tmp_path / ".marin/text").glob("*/attempts/1/out/t.txt"))
    output.chmod(0o644)
    output.write_text("stdliB")
    assert marin("verify").returncode == 0
    deep = marin("verify", "--deep")
    assert deep.returncode == 1
    assert "t.txt has another sha256 than recorded" in deep.stdout
    assert "job.py" in marin("report", "--html", "job.py/page.html").stderr
    record = next((tmp_path / ".marin/text").glob("*/step.json"))
    record.write_text("{")
    assert "corrupt" in marin("verify").stdout
    assert "corrupt" in marin("status").stdout
    assert marin("verify", "count/chars").stdout.startswith("1 step checked, 0 damaged (")


def test_a_reader_that_leaves_early_is_no_error(script: Run, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "job.py", "--plan"]
    done = subprocess.run(command, cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nope.py"], "nope.py: there is no such script"),
        (["run", "job.py:nope"], "job.py has no function nope()"),
        (["run", "README.md"], "README.md:2: SyntaxError: "),
        (["plan", "unfinished.py"], "unfinished.py:2: SyntaxError: '(' was never closed"),
        (["explain", "imports.py"], "imports.py:2: ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        (["run", "raises.py"], "raises.py:3: ZeroDivisionError: "),
        (["plan", "uses.py"], "unfinished.py:2: SyntaxError: '(' was never closed"),
        (["explain", "job.py", "nope"], "nope: no step of this name or address; there are text, count/chars"),
        (["status", "--prefix", "nonexistent"], "nonexistent does not exist; give --prefix"),
        (["status", "--prefix", "job.py"], "job.py is not a directory; give --prefix"),
        (["verify", "--prefix", "nonexistent"], "nonexistent does not exist; give --prefix"),
        (["logs", "nope"], "nope: no step of this address or name"),
        (["report", "nope", "--html", "x.html"], "run nope: no such run"),
        (["verify", "nope"], "nope: no step of this address or name"),
        (["graph", "job.py", "--corpus", "nowhere"], "--corpus nowhere: no such file; give a path"),
        (["explain", "job.py", "--corpus", "unread"], "No such file or directory: 'unread.txt'"),
    ],
)
def test_marin_names_what_is_not_there(marin: Run, tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / ".marin").mkdir()
    for name, source in BROKEN.items():
        (tmp_path / name).write_text(source)
    done = marin(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_silence_and_no_error(script: Run, tmp_path: Path, closed: str) -> None:
    (tmp_path / "job.py").write_text(SCRIPT)

    def run(*flags: str) -> subprocess.CompletedProcess[str]:
        command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "job.py", *flags]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (run().returncode, run("--plan").returncode) == (0, 0)
    assert len(list((tmp_path / ".marin").rglob("step.json"))) == 2
    failed = run("--corpus", "nowhere")
    assert failed.returncode == 2
    assert "Traceback" not in failed.stderr
    assert ("no such file" in failed.stderr) == ("2>" not in closed)


def test_a_later_schema_is_told_by_every_command(script: Run, marin: Run, tmp_path: Path) -> None:
    script()
    record = tmp_path / ".marin/count/chars/v1/step.json"
    record.write_text(record.read_text().replace('"schema": 1', '"schema": 2'))
    told = "step.json: schema 2 is newer than 1; upgrade marin-core"
    for done in (script(), script("--plan"), script("--rebuild", "count*"), script("--accept", "count*")):
        assert done.returncode == 3
        assert told in done.stdout
    assert told in marin("status").stdout
    assert told in marin("verify").stdout


def test_no_flags_at_all_are_the_defaults_as_the_parser_gives_them() -> None:
    def build(*, learning_rate: float = 3e-4, names: tuple[str, ...] = ("a", "b"), where: Path = Path("x")) -> None:
        """Takes what scripts take."""

    assert parse(build, []) == parse(build, ["--learning-rate", "3e-4"])


def test_a_flag_without_a_default_is_asked_for() -> None:
    def build(*, corpus: str) -> None:
        """Needs a corpus."""

    with pytest.raises(SystemExit) as stopped:
        parse(build, [])
    assert stopped.value.code == 2
