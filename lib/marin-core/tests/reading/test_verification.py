"""Whatever is wrong on disk is found and named, and hides nothing else."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from marin_core import StepRunner, lower

SOURCE = """
from marin_core import Out, step

@step
def text(out: Out, *, word: str) -> int:
    (out / "t.txt").write_text(word)
    (out / "u.txt").write_text(word)
    return len(word)
"""


@pytest.fixture
def steps(prefix: str, module: Callable[[str], ModuleType]) -> list[Path]:
    """The directories of three committed steps, each with two files."""
    text = module(SOURCE).text
    graph = lower([text(word=w, name=w) for w in ("ant", "bee", "cat")])
    assert StepRunner(prefix, launcher="inline").run(graph).ok
    return [Path(prefix) / address for address in sorted(graph.addresses)]


def overwrite(path: Path, text: str) -> None:
    """Damages a committed file, which is read-only."""
    path.unlink()
    path.write_text(text)


def test_whole_outputs_are_said_to_be_whole(marin: Any, steps: list[Path]) -> None:
    done = marin("verify")
    assert (done.code, done.last) == (0, "3 steps checked, 0 damaged (6 files, 18 B by size)")
    assert marin("verify", "--deep").last == "3 steps checked, 0 damaged (6 files, 18 B read)"


@pytest.mark.parametrize(
    ("harm", "said", "deep"),
    [
        (lambda s: (s / "attempts/1/out/t.txt").unlink(), "t.txt is missing", False),
        (lambda s: overwrite(s / "attempts/1/out/t.txt", "longer"), "t.txt has 6 bytes instead of 3", False),
        (lambda s: overwrite(s / "attempts/1/out/u.txt", "anT"), "u.txt has another sha256 than recorded", True),
        (lambda s: (s / "step.json").write_text("{"), "corrupt: ", False),
        (lambda s: (s / "attempts/1/attempt.json").unlink(), "attempts/1 has no record", False),
        (lambda s: (s / "attempts/1/attempt.json").write_text("[]"), "attempt.json: not a readable", False),
        (lambda s: (s / "attempts/2/out").mkdir(parents=True), "attempts/2 has no record", False),
        (lambda s: (s / "attempts/1").rename(s / "gone"), "step.json points at attempt 1, which is not there", False),
        (lambda s: (s / "tombstone.json").write_text("?"), "tombstone.json: not a readable Tombstone", False),
        (lambda s: (s / "attempts/1/out/t.txt").chmod(0) or (s / "attempts/1/out/u.txt").unlink(), "u.txt is", True),
    ],
)
def test_damage_is_named_and_the_other_steps_are_checked(
    marin: Any, steps: list[Path], harm: Callable[[Path], object], said: str, deep: bool
) -> None:
    harm(steps[0])
    if deep and said != "u.txt is":
        assert marin("verify").code == 0
    done = marin("verify", *(["--deep"] if deep else []))
    assert done.code == 1
    named = [line for line in done.out.splitlines() if line.startswith("ant/")]
    assert any(said in line for line in named)
    assert done.last.startswith("3 steps checked, 1 damaged (")
    found = marin("verify", "--json", *(["--deep"] if deep else [])).document
    assert list(found["damaged"]) == [next(a for a in found["damaged"] if a.startswith("ant/"))]
    assert marin("verify", "bee", "cat").code == 0


def test_an_unreadable_run_record_is_damage_too(marin: Any, steps: list[Path], prefix: str) -> None:
    record = next(Path(prefix, "runs").glob("*.json"))
    record.write_text(record.read_text()[:-40])
    done = marin("verify", "--json")
    assert done.code == 1
    assert list(done.document["damaged"]) == [f"runs/{record.name}"]
    assert json.loads(marin("status", "--json").out)["unreadable_runs"]
