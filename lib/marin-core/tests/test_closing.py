"""What is said when a run is over, and what Python and the parser say of things: short, and of the right step."""

import dataclasses
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from marin_core import Input, lower, run
from marin_core.closing import closing_lines
from marin_core.reasons import Options

Python = Callable[..., subprocess.CompletedProcess[str]]

FLOW = """
    from marin_core import Input, step

    K = 1

    @step(version="v1")
    def clean() -> int:
        return K

    @step
    def train(data: int, *, lr: float = 0.1) -> float:
        if lr > 1:
            raise ValueError("diverged")
        return lr

    @step
    def summary(scores: list) -> float:
        return min(scores)
"""


@pytest.fixture
def flow(module: Callable[[str], ModuleType]) -> ModuleType:
    return module(FLOW)


def sweep(flow: ModuleType, *rates: float) -> Any:
    data = flow.clean()
    return flow.summary([flow.train(data, lr=lr) for lr in rates])


def closing(prefix: str, handle: Any, epilogue: Any = None, **options: Any) -> list[str]:
    return closing_lines(run(handle, prefix=prefix, launcher="inline", **options), epilogue)


def test_a_failed_run_ends_with_the_step_that_failed_and_the_counts(flow: ModuleType, prefix: str) -> None:
    lines = closing(prefix, sweep(flow, 0.1, 0.3, 3.0))
    assert "step train lr=3 failed: ValueError: diverged" in lines
    assert lines[-1] == "3 done, 1 failed, 1 blocked"
    lines = closing(prefix, sweep(flow, 0.1, 3.0, 0.5))
    assert lines[-1] == "2 up to date, 1 failed, 1 blocked, 1 not started"


def test_a_run_of_one_step_is_told_in_the_singular(flow: ModuleType, prefix: str) -> None:
    assert closing(prefix, flow.clean())[-1].startswith("done: 1 of 1 step executed in ")
    assert closing(prefix, flow.clean())[-1] == "nothing to do: 1 step up to date"


def test_what_the_epilogue_returns_is_shown_whatever_it_is(flow: ModuleType, prefix: str) -> None:
    assert closing(prefix, flow.clean(), lambda report: report.value("clean"))[0] == "1"


def test_what_was_accepted_is_told(flow: ModuleType, prefix: str) -> None:
    run(flow.clean(), prefix=prefix, launcher="inline")
    path = Path(str(flow.__file__))
    path.write_text(path.read_text().replace("K = 1", "K = 2"))
    lines = closing(prefix, flow.clean(), options=Options(accept=("clean",)))
    unit = f"{flow.__name__}:K"
    assert lines[0] == f"accepted clean/v1: code changed: constant {unit}; the next plain run refuses again"


def test_an_environment_that_changed_is_told_in_one_line(flow: ModuleType, prefix: str) -> None:
    run(sweep(flow, 0.1, 0.3), prefix=prefix, launcher="inline")
    for path in Path(prefix).glob("*/*/step.json"):
        record = json.loads(path.read_text())
        record["digests"]["environment"] = "0" * 64
        path.write_text(json.dumps(record))
    lines = closing(prefix, [sweep(flow, 0.1, 0.3), flow.train(flow.clean(), lr=0.5)])
    assert [line for line in lines if "environment" in line] == ["environment changed since 4 of 5 steps were made"]


def test_what_a_body_left_undone_is_told_in_the_plan(flow: ModuleType, prefix: str) -> None:
    bad = flow.train(flow.clean(), lr=3.0)
    run(bad, prefix=prefix, launcher="inline")
    assert lower(bad).plan(prefix)[1].reason == "no committed output; attempt 1 failed: ValueError: diverged"
    run(flow.train(flow.clean()), prefix=prefix, launcher="inline")
    assert lower(bad).plan(prefix)[1].reason == "recipe is new: lr: 0.1 -> 3.0; attempt 1 failed: ValueError: diverged"


def test_many_inputs_that_changed_are_counted(flow: ModuleType, prefix: str) -> None:
    rates = [0.01 * i for i in range(1, 41)]
    run(sweep(flow, *rates), prefix=prefix, launcher="inline")
    path = Path(str(flow.__file__))
    path.write_text(path.read_text().replace("return lr", "return lr + 1"))
    reason = run(sweep(flow, *rates), prefix=prefix).node("summary").reason
    assert reason == "40 of 40 inputs scores changed"


def test_a_recipe_of_the_same_function_is_nearer_than_any_other(
    flow: ModuleType, module: Callable[[str], ModuleType], prefix: str
) -> None:
    other = module(FLOW)
    run(flow.train(flow.clean(), lr=0.2), prefix=prefix, launcher="inline")
    run(other.train(flow.clean(), lr=0.3), prefix=prefix, launcher="inline")
    assert lower(flow.train(flow.clean(), lr=0.3)).plan(prefix)[1].reason == "recipe is new: lr: 0.2 -> 0.3"


# From Python


def test_what_python_shows_of_handles_and_reports_is_short(flow: ModuleType, prefix: str) -> None:
    handle = flow.train(flow.clean(), lr=0.1)
    assert repr(handle) == "<Step 'train' = train(data=<clean>, lr=0.1)>"
    assert repr(sweep(flow, *[0.1] * 9)) == "<Step 'summary' = summary(scores=[<train>, … 9 items])>"
    assert repr(Input("/x/out", cache="/y")) == "Input(url='/x/out')"
    report = run(handle, prefix=prefix, launcher="inline")
    assert repr(report) == f"<RunReport {report.record.run_id} under {prefix}: succeeded (2 succeeded)>"
    assert dataclasses.is_dataclass(report)


def test_steps_of_a_heredoc_are_refused_in_words_that_help(tmp_path: Path) -> None:
    source = "from marin_core import step, resolve\n@step\ndef f():\n    return 1\nresolve(f(), prefix='p')\n"
    done = subprocess.run([sys.executable, "-"], input=source, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "no source file, as in a heredoc or notebook cell: put steps into a module" in done.stderr.splitlines()[-1]


# Scripts

TALKS = textwrap.dedent(
    """
    import logging, sys
    from marin_core import main, step

    logging.getLogger("wheel").setLevel(logging.INFO)

    @step
    def plain() -> int:
        logging.getLogger("wheel").info("told by a wheel")
        logging.getLogger("other").info("not told")
        return 1

    @step
    def loud(x: int) -> int:
        logging.basicConfig(level=logging.INFO, format="loud %(message)s")
        logging.getLogger("other").info("told")
        return x

    @step
    def after(x: int) -> list:
        root = logging.getLogger()
        return [len(root.handlers), root.level]

    def build(*, fail: bool = False):
        logging.basicConfig(level=logging.INFO, format="driver %(message)s")
        logging.getLogger("other").info("built")
        if fail:
            helper()
        return after(loud(plain()))

    def helper():
        raise ValueError("no such corpus")

    if __name__ == "__main__":
        main(build)
    """
)


@pytest.fixture
def talks(tmp_path: Path, python: Python) -> Python:
    (tmp_path / "talks.py").write_text(TALKS)
    return lambda *flags: python("talks.py", *flags)


@pytest.mark.parametrize("launcher", ["process", "inline"])
def test_a_body_sets_up_logging_as_in_any_program(talks: Python, tmp_path: Path, launcher: str) -> None:
    done = talks("--launcher", launcher, "--max-workers", "1")
    assert done.returncode == 0, done.stderr
    assert "driver built" in done.stderr
    logs = {p.parts[-5]: p.read_text() for p in Path(tmp_path, ".marin").glob("*/*/attempts/1/log.txt")}
    (after,) = Path(tmp_path, ".marin").glob("after/*/step.json")
    if launcher == "process":  # inline, the driver's own handler is there already, and goes on writing where it did
        assert logs["plain"] == "told by a wheel\n"
        assert logs["loud"] == "loud told\n"
        assert json.loads(after.read_text())["value"] == [0, 30]
    else:
        assert json.loads(after.read_text())["value"] == [1, 20]


def test_an_inline_body_leaves_no_handler_that_writes_to_its_log(python: Python, tmp_path: Path) -> None:
    (tmp_path / "talks.py").write_text(TALKS.replace('logging.basicConfig(level=logging.INFO, format="driver', '("'))
    done = python("talks.py", "--launcher", "inline")
    assert done.returncode == 0, done.stderr
    logs = {p.parts[-5]: p.read_text() for p in Path(tmp_path, ".marin").glob("*/*/attempts/1/log.txt")}
    assert logs["plain"] == "INFO wheel: told by a wheel\n"
    assert logs["loud"] == "loud told\n"
    (after,) = Path(tmp_path, ".marin").glob("after/*/step.json")
    assert json.loads(after.read_text())["value"] == [0, 30]


@pytest.mark.parametrize("arguments", [["talks.py"], ["-m", "marin_core.cli", "explain", "talks.py"]])
def test_an_error_in_build_shows_the_scripts_frames_alone(talks: Python, python: Python, arguments: list[str]) -> None:
    done = python(*arguments, "--fail")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ValueError: no such corpus"
    assert [line.split(", ")[-1] for line in done.stderr.splitlines() if "File " in line] == ["in build", "in helper"]


def test_a_build_without_a_name_is_told_in_one_line(python: Python, tmp_path: Path) -> None:
    (tmp_path / "nameless.py").write_text(TALKS.replace("main(build)", "main(lambda: plain())").replace("build(", "b("))
    done = python("-m", "marin_core.cli", "explain", "nameless.py")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "a lambda has none" in done.stderr


def test_help_says_what_holds_without_a_flag_once(talks: Python) -> None:
    words = " ".join(talks("--help").stdout.replace("│", " ").split())
    assert "start nothing more: the default. --json" in words
    assert "--on-code-change {rebuild,report,refuse} Overrides" in words
    assert "None" not in words


def test_steps_of_a_sweep_are_told_apart_wherever_they_are_read(python: Python, tmp_path: Path) -> None:
    source = textwrap.dedent(FLOW) + textwrap.dedent(
        """
        from marin_core import main

        def build():
            return summary([train(clean(), lr=lr) for lr in (0.1, 0.3)])

        if __name__ == "__main__":
            main(build)
        """
    )
    (tmp_path / "sweep.py").write_text(source)
    marin = ["-m", "marin_core.cli"]
    planned = python("sweep.py", "--plan").stdout
    assert planned.count(" lr=0.1  ") == planned.count(" lr=0.3  ") == 1
    shown = python("sweep.py").stdout
    assert "train lr=0.1: started (" in shown
    assert "train lr=0.3: done in " in shown
    assert '["train lr=0.3"]' in python(*marin, "graph", "sweep.py").stdout
    assert " lr=0.3\n" in python(*marin, "explain", "sweep.py").stdout
    assert " lr=0.3  " in python(*marin, "lineage", "summary").stdout
    assert " lr=0.3  " in python(*marin, "status").stdout
