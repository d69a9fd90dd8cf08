"""Staleness, end to end: a result is served only if what asks for it would make the same again."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from marin_core import EncodingError, RunReport, StepRunner, adopt, lower, run
from marin_core.reasons import Options
from marin_core.script import plan_lines

SHAPES = """
    import enum
    from dataclasses import dataclass
    from marin_core import step

    class Level(enum.Enum):
        LOW = 1

        def weight(self):
            return 10

    @dataclass(frozen=True)
    class Shape:
        side: int

        def area(self):
            return self.side * self.side

    @dataclass(frozen=True)
    class Count:
        words: int

        @property
        def score(self):
            return 2 * self.words

    @step
    def measure(shape, *, level=None):
        return shape.area() + (level.weight() if level else 0)

    @step
    def count(*, n: int = 3) -> list[Count]:
        return [Count(n)]

    @step
    def total(counts: object):
        return sum(c.score for c in counts)
"""


def edit(flow: ModuleType, old: str, new: str) -> None:
    path = Path(str(flow.__file__))
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))


def names(report: RunReport) -> list[str]:
    return [a.split("/")[0] for a in report.executed]


@pytest.mark.parametrize(
    ("old", "new", "value", "unit"),
    [
        ("self.side * self.side", "self.side + 1", 13, "class {}:Shape"),
        ("return 10", "return 20", 29, "class {}:Level"),
    ],
)
def test_the_class_of_an_argument_counts_as_code(
    module: Callable[[str], ModuleType], prefix: str, old: str, new: str, value: int, unit: str
) -> None:
    flow = module(SHAPES)
    target = flow.measure(flow.Shape(3 if "10" in old else 2), level=flow.Level.LOW)
    run(target, prefix=prefix)
    edit(flow, old, new)
    again = run(target, prefix=prefix)
    assert again.value(target) == value
    assert again.record.nodes[-1].reason == f"code changed: {unit.format(flow.__name__)}"


def test_the_class_of_an_upstream_value_counts_as_code(module: Callable[[str], ModuleType], prefix: str) -> None:
    flow = module(SHAPES)
    target = flow.total(flow.count())
    assert run(target, prefix=prefix).value(target) == 6
    edit(flow, "return 2 * self.words", "return 5 * self.words")
    again = run(target, prefix=prefix)
    assert again.value(target) == 15
    assert names(again) == ["count", "total"]


def test_what_a_value_is_restored_as_counts_for_who_gets_it(module: Callable[[str], ModuleType], prefix: str) -> None:
    flow = module(
        """
        from marin_core import step
        @step
        def first() -> list[int]:
            return [1, 2]
        @step
        def second(x: object) -> str:
            return type(x).__name__
        """
    )
    assert run(flow.second(flow.first()), prefix=prefix).value("second") == "list"
    edit(flow, "list[int]", "tuple[int, int]")
    again = importlib.reload(flow)
    report = run(again.second(again.first()), prefix=prefix)
    assert (names(report), report.value("second")) == (["second"], "tuple")
    assert report.node("second").reason == f"code changed: type of {flow.__name__}:second(x) (new)"


def test_a_number_that_becomes_a_text_of_the_same_json_counts_for_who_gets_it(
    module: Callable[[str], ModuleType], prefix: str
) -> None:
    flow = module(
        """
        from marin_core import step
        @step
        def first() -> float:
            return float("nan")
        @step
        def second(x: object) -> str:
            return repr(x)
        """
    )
    assert run(flow.second(flow.first()), prefix=prefix).value("second") == "nan"
    edit(flow, "-> float", "-> str")
    edit(flow, 'float("nan")', '"NaN"')
    again = importlib.reload(flow)
    report = run(again.second(again.first()), prefix=prefix)
    assert (names(report), report.value("second")) == (["first", "second"], "'NaN'")


APPLY = """
    from marin_core import step
    OFFSET = 1
    def helper():
        return OFFSET
    @step
    def apply(f: object) -> int:
        return f()
"""


def test_a_function_that_is_given_may_not_be_edited_after_the_plan(
    module: Callable[[str], ModuleType], prefix: str
) -> None:
    flow = module(APPLY)
    graph = lower(flow.apply(flow.helper))
    edit(flow, "OFFSET = 1", "OFFSET = 2")
    node = StepRunner(prefix).run(graph).record.nodes[0]
    assert node.failure is not None
    assert (node.value, node.failure.type) == (None, "SourceChanged")


def test_changed_code_of_a_function_that_is_given_is_named(module: Callable[[str], ModuleType], prefix: str) -> None:
    flow = module(APPLY)
    run(flow.apply(flow.helper), prefix=prefix)
    edit(flow, "OFFSET = 1", "OFFSET = 2")
    name = flow.__name__
    assert run(flow.apply(flow.helper), prefix=prefix).record.nodes[0].reason == (
        f"recipe is new: f: code of {name}:helper changed; code changed: constant {name}:OFFSET"
    )


def test_changed_adopted_data_is_named(module: Callable[[str], ModuleType], prefix: str, tmp_path: Path) -> None:
    flow = module("from marin_core import Input, step\n@step\ndef read(data: Input) -> int:\n    return 1\n")
    (tmp_path / "data.txt").write_text("a")
    run(flow.read(adopt(tmp_path / "data.txt")), prefix=prefix)
    (tmp_path / "data.txt").write_text("b")
    (_, planned) = lower(flow.read(adopt(tmp_path / "data.txt"))).plan(prefix)
    assert planned.reason == "recipe is new: data: adopted data changed"


def test_a_body_in_this_process_never_runs_text_that_the_file_no_longer_has(
    module: Callable[[str], ModuleType], prefix: str
) -> None:
    flow = module(SHAPES)
    run(flow.count(), prefix=prefix, launcher="inline")
    edit(flow, "[Count(n)]", "[Count(n + 1)]")
    refused = run(flow.count(), prefix=prefix, launcher="inline")
    assert refused.executed == ()
    failure = refused.record.nodes[0].failure
    assert failure is not None
    assert "was edited after this process loaded it; start it again, or use the process launcher" in failure.message
    made = run(flow.count(), prefix=prefix, launcher="process")
    assert [c.words for c in made.value("count")] == [4]


HELPED = """
    import {helper}
    from marin_core import step
    @step
    def work() -> int: return {helper}.f()
"""


@pytest.fixture
def helped(module: Callable[[str], ModuleType]) -> tuple[ModuleType, ModuleType]:
    helper = module("def f(): return 1\n")
    return helper, module(HELPED.format(helper=helper.__name__))


def test_a_helper_that_was_edited_before_it_was_first_looked_at_does_not_run_in_this_process(
    helped: tuple[ModuleType, ModuleType], prefix: str
) -> None:
    helper, flow = helped
    edit(helper, "return 1", "return 777")
    refused = run(flow.work(), prefix=prefix, launcher="inline")
    failure = refused.record.nodes[0].failure
    assert failure is not None
    assert f"{helper.__name__}.py was edited after this process loaded it" in failure.message
    assert run(flow.work(), prefix=prefix, launcher="process").value("work") == 777


def test_a_helper_that_was_loaded_again_runs_in_this_process(
    helped: tuple[ModuleType, ModuleType], prefix: str
) -> None:
    helper, flow = helped
    assert run(flow.work(), prefix=prefix, launcher="inline").value("work") == 1
    edit(helper, "return 1", "return 777")
    importlib.reload(helper)
    assert run(flow.work(), prefix=prefix, launcher="inline").value("work") == 777


CHAIN = """
    from marin_core import step

    OFFSET = 0

    @step
    def first(*, n: int = 1, log_every: int = 1) -> int:
        return n

    @step
    def middle(x: int, *, k: int = 1) -> int:
        return min(x, 10) * k + OFFSET

    @step
    def last(x: int) -> int:
        return 100 * x
"""


def chain(flow: ModuleType, *, n: int = 1, k: int = 1) -> Any:
    return flow.last(flow.middle(flow.first(n=n), k=k, version="v1"))


@pytest.fixture
def flow(module: Callable[[str], ModuleType], prefix: str) -> ModuleType:
    made = module(CHAIN)
    assert run(chain(made), prefix=prefix).value("last") == 100
    return made


def drift_recipe(flow: ModuleType) -> tuple[Any, str, int]:
    return chain(flow, k=2), "recipe changed: k: 1 -> 2", 200


def drift_code(flow: ModuleType) -> tuple[Any, str, int]:
    edit(flow, "OFFSET = 0", "OFFSET = 5")
    return chain(flow), f"code changed: constant {flow.__name__}:OFFSET", 600


def drift_input(flow: ModuleType) -> tuple[Any, str, int]:
    edit(flow, "return n", "return n + 1")
    return chain(flow), "input x changed: output ", 200


DRIFTS = [drift_recipe, drift_code, drift_input]


@pytest.mark.parametrize("drift", DRIFTS)
def test_a_version_refuses_every_drift_and_says_what_it_is(flow: ModuleType, prefix: str, drift: Any) -> None:
    target, reason, _ = drift(flow)
    refused = run(target, prefix=prefix)
    assert refused.exit_code == 3
    assert "last" not in names(refused)
    assert "middle" not in names(refused)
    told = refused.node("middle/v1")
    assert (told.decision, told.outcome) == ("refuse", "refused")
    assert told.reason.startswith(reason)
    assert told.reason.endswith("--accept middle serves the old output this once, --rebuild middle makes a new one")
    stored = json.loads(Path(prefix, "runs", f"{refused.record.run_id}.json").read_text())
    assert next(n["reason"] for n in stored["nodes"] if n["name"] == "middle") == told.reason


@pytest.mark.parametrize("drift", DRIFTS)
def test_an_accepted_drift_is_recorded_and_changes_nothing_below(flow: ModuleType, prefix: str, drift: Any) -> None:
    target, reason, _ = drift(flow)
    accepted = run(target, prefix=prefix, options=Options(accept=("middle",)))
    assert accepted.ok
    assert set(names(accepted)) <= {"first"}
    assert accepted.value("last") == 100
    stored = json.loads(Path(prefix, "runs", f"{accepted.record.run_id}.json").read_text())
    decided = next((n["decision"], n["reason"]) for n in stored["nodes"] if n["name"] == "middle")
    assert decided[0] == "accept"
    assert decided[1].startswith(reason)
    assert decided[1].endswith("old output accepted by --accept")
    assert run(target, prefix=prefix).exit_code == 3


@pytest.mark.parametrize("drift", DRIFTS)
def test_a_rebuilt_version_reaches_what_is_below_it(flow: ModuleType, prefix: str, drift: Any) -> None:
    target, _, value = drift(flow)
    rebuilt = run(target, prefix=prefix, options=Options(rebuild=("middle/v1",)))
    assert rebuilt.value("last") == value
    assert rebuilt.node("middle/v1").attempt == 2
    assert rebuilt.node("last").reason.startswith("input x changed: output ")
    assert Path(prefix, "middle/v1/attempts/1/attempt.json").exists()
    assert run(target, prefix=prefix).executed == ()


def test_a_rebuilt_version_is_a_changed_input_of_a_version_below_it(flow: ModuleType, prefix: str) -> None:
    def ends(k: int) -> Any:
        return flow.last(flow.middle(flow.first(), k=k, version="v1"), version="w1")

    assert run(ends(1), prefix=prefix).ok
    refused = run(ends(2), prefix=prefix, options=Options(rebuild=("middle",)))
    assert (refused.exit_code, names(refused)) == (3, ["middle"])
    assert refused.node("last/w1").reason.startswith("input x changed: output ")
    assert run(ends(2), prefix=prefix, options=Options(rebuild=("last",))).value("last/w1") == 200


def test_a_rebuilt_version_that_comes_out_the_same_makes_nothing_below_it_anew(flow: ModuleType, prefix: str) -> None:
    run(chain(flow, n=0), prefix=prefix, options=Options(rebuild=("middle",)))
    rebuilt = run(chain(flow, n=0, k=2), prefix=prefix, options=Options(rebuild=("middle",)))
    assert names(rebuilt) == ["middle"]
    assert rebuilt.node("last").reason == "up to date"


def test_a_plan_says_what_a_refused_step_blocks(flow: ModuleType, prefix: str) -> None:
    planned = {p.name: (p.decision, p.reason) for p in lower(chain(flow, k=2)).plan(prefix)}
    assert planned["middle"][0] == "refuse"
    assert planned["last"] == ("blocked", "blocked by middle")
    lines = plan_lines(lower(chain(flow, k=2)).plan(prefix))
    assert lines[-1] == "0 of 3 steps would run, 1 refused, 1 blocked"
    graph = lower(chain(flow, k=2), flow.first(n=77))
    lines = plan_lines(graph.plan(prefix))
    assert lines[-1] == "nothing would run: 1 refused, 1 blocked; with --keep-going 1 of 4 steps would run"
    assert plan_lines(graph.plan(prefix), keep_going=True)[-1] == "1 of 4 steps would run, 1 refused, 1 blocked"
    assert run(chain(flow, k=2), prefix=prefix).node("last").reason == "blocked by middle"


def test_all_drifts_of_a_version_are_told_at_once(flow: ModuleType, prefix: str) -> None:
    edit(flow, "OFFSET = 0", "OFFSET = 5")
    reason = run(chain(flow, n=2, k=2), prefix=prefix).node("middle/v1").reason
    for part in ("x: upstream recipe changed", "k: 1 -> 2", "code changed: constant"):
        assert part in reason


@pytest.mark.parametrize(("setting", "exit_code", "executed"), [("report", 0, 0), ("rebuild", 0, 2), ("refuse", 3, 0)])
def test_a_command_says_what_changed_code_does(
    flow: ModuleType, prefix: str, setting: Any, exit_code: int, executed: int
) -> None:
    edit(flow, "OFFSET = 0", "OFFSET = 5")
    report = run(chain(flow), prefix=prefix, options=Options(on_code_change=setting))
    assert (report.exit_code, len(report.executed)) == (exit_code, executed)


def test_an_equal_output_of_a_versions_input_refuses_nothing(flow: ModuleType, prefix: str) -> None:
    edit(flow, "return n", "return 0 + n")
    plan = {p.name: p.reason for p in lower(chain(flow)).plan(prefix)}
    assert plan["middle"] == "input x will be made again, and refused if it comes out different"
    assert names(run(chain(flow), prefix=prefix)) == ["first"]


def test_changes_that_mean_nothing_execute_nothing(flow: ModuleType, prefix: str) -> None:
    edit(flow, "return 100 * x", '"A docstring."\n    return (100  # why\n        * x)')
    edit(flow, "OFFSET = 0", "import json\n\n\nOFFSET = 0  # unused")
    assert run(chain(flow), prefix=prefix).executed == ()


def test_a_step_from_another_library_under_the_same_name_is_made_again(
    module: Callable[[str], ModuleType], prefix: str
) -> None:
    flow = module(
        "from math import floor as f\nfrom marin_core import step\n@step\ndef g() -> int:\n    return f(1.5)\n"
    )
    assert run(flow.g(), prefix=prefix).value("g") == 1
    edit(flow, "floor as f", "ceil as f")
    again = run(flow.g(), prefix=prefix)
    assert again.value("g") == 2
    assert again.record.nodes[0].reason == f"code changed: imports of step function {flow.__name__}:g"


def test_a_file_that_is_not_utf8_is_named(flow: ModuleType) -> None:
    path = Path(str(flow.__file__))
    path.write_bytes(path.read_bytes() + b"\nNAME = '\xe9'\n")
    with pytest.raises(EncodingError, match=rf"{path.name}.*the code that a step reaches must be valid"):
        lower(chain(flow))


def test_a_changed_module_statement_is_named(module: Callable[[str], ModuleType], prefix: str) -> None:
    source = """
        from marin_core import step
        LIMITS = []
        def limit(n): LIMITS[:] = [n]
        limit(3)
        @step
        def work() -> int:
            return LIMITS[0]
    """
    flow = module(source)
    run(flow.work(), prefix=prefix)
    edit(flow, "limit(3)", "limit(4)")
    again = run(flow.work(), prefix=prefix)
    assert again.value("work") == 4
    assert again.record.nodes[0].reason == f"code changed: statement {flow.__name__}:limit()"


def test_modules_that_import_each_other_are_followed(
    module: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ring_a.py").write_text("import ring_b\ndef f(): return ring_b.g()\ndef h(): return 1\n")
    (tmp_path / "ring_b.py").write_text("import ring_a\ndef g(): return ring_a.h()\n")
    monkeypatch.syspath_prepend(tmp_path)
    flow = module("import ring_a\nfrom marin_core import step\n@step\ndef work(): return ring_a.f()\n")
    units = set(lower(flow.work()).nodes[lower(flow.work()).targets[0]].code.units)
    assert {"ring_a:f", "ring_b:g", "ring_a:h"} <= units
