"""What a run shows: a bar where a body counts, its own words elsewhere."""

import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core import run
from marin_core.records import NodeRecord
from marin_core.running.progress import MOST_LINED, Live, Plain, _printable, _rows, _shortened, bar_text

NODE = NodeRecord(
    address="a/1",
    name="a",
    version=None,
    upstream=(),
    arguments={},
    decision="run",
    reason="",
    outcome="succeeded",
)


@pytest.mark.parametrize("line", ["step 30/120  loss 4.3", "7 of 14 parts", "1,500/6,000 rows"])
def test_a_line_that_counts_gets_a_bar_of_its_share(line):
    bar, rest = bar_text(line).split(" ", 1)
    assert rest == line
    share = 0.25 if "of" not in line else 0.5
    assert bar.count("━") / len(bar) == share


@pytest.mark.parametrize("line", ["", "compiling", "9/8 is more than all", "0/0", "version 1.2"])
def test_any_other_line_stays_as_it_is(line):
    assert bar_text(line) == line


@given(st.text())
def test_no_line_breaks_the_display(line):
    assert bar_text(line).endswith(line)


def test_a_long_list_is_told_as_a_whole_and_many_changes_are_counted():
    from marin_core.reasons import flatten, recipe_changes

    def recipe(items: list[str], **others: int) -> dict:
        arguments = {"files": ("tuple", [("str", i) for i in items])}
        return {"function": "f", "version": None, "arguments": arguments | {k: ("int", v) for k, v in others.items()}}

    old, new = recipe([f"{i}.py" for i in range(1740)]), recipe([f"{i}.txt" for i in range(40)])
    (change,) = recipe_changes(old, new)
    assert change.startswith("files: 1740 items")
    assert "40 items" in change
    assert recipe_changes(old, old) == []
    assert len(flatten(recipe(["a", "b"]))) == 4


BIG = """
    import sys
    from marin_core import step

    @step
    def part(*, i: int = 0) -> int:
        print("\\x1b[31mred\\x1b[0m part", i)
        if i % 20 == 0:
            raise ValueError(f"part {i} is odd")
        return i
"""


@pytest.mark.parametrize("num_steps", [50, 400])
def test_plain_output_has_a_bounded_number_of_lines(module, prefix, num_steps):
    part = module(BIG).part
    stream = io.StringIO()
    with Plain(stream) as display:
        steps = [part(i=i, name=f"part/{i}") for i in range(num_steps)]
        report = run(steps, prefix=prefix, launcher="inline", keep_going=True, observer=display)
        display.tick()
    lines = stream.getvalue().splitlines()
    assert sum(n.outcome == "failed" for n in report.record.nodes) == num_steps // 20 + bool(num_steps % 20)
    failures = [line for line in lines if line.endswith(": failed")]
    assert len(failures) == num_steps // 20 + bool(num_steps % 20)
    if num_steps > MOST_LINED:
        assert lines == [*failures, "380/400 steps, 20 failed"]
    else:
        assert len(lines) == 2 * num_steps


def test_the_lines_of_single_steps_come_to_an_end(module, prefix):
    part = module(BIG).part
    stream = io.StringIO()
    with Plain(stream) as display:
        run([part(i=20 * i) for i in range(250)], prefix=prefix, launcher="inline", keep_going=True, observer=display)
        display.tick()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 102
    assert lines[-2:] == ["(no more lines of single steps; the counts go on)", "0/250 steps, 250 failed"]


@pytest.mark.parametrize("columns", [60, 100])
def test_a_terminal_shows_whole_lines_of_its_width(module, prefix, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "20")
    part = module(BIG).part
    parts = [part(i=i, name=f"corpora/a-long-name-of-a-step/part-{i:03}") for i in range(18, 43)]
    stream = io.StringIO()
    with Live(file=stream) as display:
        run(parts, prefix=prefix, launcher="inline", keep_going=True, observer=display)
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= columns
    assert any("/part-020" in line or "part-020" in line for line in lines)
    assert any("ValueError: part 20 is odd"[: columns // 4] in line for line in lines)
    assert "8 more" in stream.getvalue()
    assert "23/25 steps, 2 failed" in lines[-1]


def test_what_failed_or_runs_is_shown_before_anything_else(module, prefix, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "20")
    part = module(BIG).part
    stream = io.StringIO()
    with Live(file=stream) as display:
        run([part(i=20 * i) for i in range(30)], prefix=prefix, launcher="inline", keep_going=True, observer=display)
    last = stream.getvalue().rpartition("0/30 steps, 30 failed")[0]
    assert all(f"part i={20 * i} " in last for i in range(30))
    nodes = [NODE] * 50 + [replace(NODE, outcome="running")] * 30 + [replace(NODE, outcome="failed")] * 5
    shown, hidden = _rows(nodes, room=40, is_over=False)
    assert [n.outcome for n in shown] == ["failed"] * 5 + ["running"] * 30
    assert {n.outcome for n in hidden} == {"succeeded"}


@given(st.text(), st.integers(8, 80))
def test_a_name_is_shortened_in_its_middle(name, most):
    short = _shortened(name, most=most)
    assert len(short) <= most
    assert short == name or (name.startswith(short.split("…")[0]) and name.endswith(short[-3:]))


@given(st.text())
def test_nothing_of_a_log_moves_the_cursor(line):
    assert all(c.isprintable() for c in _printable(line))


def test_colours_of_a_log_are_left_out():
    assert _printable("\x1b[1;31mloss\x1b[0m 3.2\x1b]0;title\x07 \x1b[2K") == "loss 3.2"
