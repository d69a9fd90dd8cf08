"""The ``delphi`` command: output, exit codes, and one line for a user's mistake."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from marin_delphi import CompletedAdamHParams
from marin_delphi.cli import main


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


Delphi = Callable[..., Done]


@pytest.fixture
def delphi(capsys: pytest.CaptureFixture[str]) -> Delphi:
    """The command, run in this process."""

    def run(*args: str) -> Done:
        try:
            code = main(args)
        except SystemExit as leaving:
            code = leaving.code
        assert isinstance(code, int)
        return Done(code, *capsys.readouterr())

    return run


def test_a_plan_is_a_table_of_every_candidate(delphi: Delphi) -> None:
    done = delphi("plan", "--recipe", "completed-adamh", "--budgets", "3e18", "9e18")
    assert done.returncode == 0
    header, *rows, last = done.stdout.splitlines()
    assert header.split()[:3] == ["budget", "hidden", "layers"]
    assert [tuple(row.split()[:3]) for row in rows[:2]] == [("3e+18", "512", "6"), ("3e+18", "640", "7")]
    assert len(rows) == 15
    assert last.startswith("15 configurations by completed-adamh ")


def test_json_is_one_document_with_exact_counts(delphi: Delphi) -> None:
    done = delphi("plan", "--budgets", "1e21", "--tokens-min", "46.2e9", "--batch", "512", "--json")
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert document["recipe_digest"] == CompletedAdamHParams().digest()
    (row,) = document["candidates"]
    assert (row["tokens"], row["num_params_total"], row["steps"]) == (46_256_881_664, 3_383_110_656, 22_057)
    assert row["num_params_total"] - row["num_params_recipe"] == 256 * row["num_layers"]


def test_a_document_rebuilds_the_recipe(delphi: Delphi) -> None:
    document = json.loads(delphi("plan", "--budgets", "3e18", "--json").stdout)
    assert CompletedAdamHParams(**document["params"]).digest() == document["recipe_digest"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("plan", "--budgets", "1e15"), "delphi: budget=1e+15 has no completed-adamh configuration"),
        (("plan", "--budgets", "nan"), "delphi: budget=nan must be a positive, finite number"),
        (("plan", "--budgets", "3e18", "--tokens-min", "1e15"), "delphi: tokens_min=1e+15 exceeds every candidate"),
        (("plan", "--budgets", "3e18", "--batch", "0"), "delphi: batch_size=0 must be at least 1"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(delphi: Delphi, args: tuple[str, ...], message: str) -> None:
    done = delphi(*args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(message)
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("args", [(), ("plan",), ("plan", "--budgets", "many"), ("plan", "--recipe", "unknown")])
def test_wrong_usage_is_exit_2_without_a_traceback(delphi: Delphi, args: tuple[str, ...]) -> None:
    done = delphi(*args)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr + done.stdout


def test_help_shows_an_example(delphi: Delphi) -> None:
    done = delphi("plan", "--help")
    assert done.returncode == 0
    assert "delphi plan --budgets 3e18 9e18" in done.stdout


def test_a_reader_that_leaves_early_is_no_error() -> None:
    code = "import sys; from marin_delphi.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "plan", "--budgets", "3e18"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
