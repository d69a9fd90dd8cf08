import io
import logging
import sys

import pytest

from marin_train.progress import ProgressLine, StderrHandler


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def row(step: int, loss: float | None = 2.5) -> dict[str, float | int | None]:
    return {
        "step": step, "loss": loss, "step_time_s": 0.5, "tokens_per_s": 2048.0, "mfu_causal": 0.31, "mfu_full": 0.42,
    }  # fmt: skip


def terminal(monkeypatch: pytest.MonkeyPatch, *, columns: int) -> Terminal:
    """Standard error from here on; not a fixture, since pytest takes it back between a fixture and its test."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    return screen


def drawn(monkeypatch: pytest.MonkeyPatch, columns: int, *rows: dict) -> str:
    screen, line = terminal(monkeypatch, columns=columns), ProgressLine()
    line.start({"config": {"steps": 1000}}, step=rows[0]["step"] - 1)
    for each in rows:
        line.log(each)
    line.finish({})
    return screen.getvalue()


def test_the_line_tells_loss_rates_both_utilisations_and_the_time_left(monkeypatch):
    told = drawn(monkeypatch, 120, row(399), row(400))
    assert "step 400/1,000, loss 2.500, 5:00 left, 2,048 tokens/s, mfu 31.0% causal, 42.0% full" in told


def test_the_first_step_compiles_and_enters_no_rate_but_its_own(monkeypatch):
    compiled = row(1) | {"step_time_s": 5.0, "tokens_per_s": 204.8}
    assert "step 1/1,000, loss 2.500, 1:23:15 left, 205 tokens/s" in drawn(monkeypatch, 120, compiled)
    assert "step 3/1,000, loss 2.500, 8:18 left, 2,048 tokens/s" in drawn(monkeypatch, 120, compiled, row(2), row(3))


def test_a_narrow_terminal_is_told_less_on_one_line(monkeypatch):
    told = drawn(monkeypatch, 60, row(400))
    assert "step 400/1,000, loss 2.500, 5:00 left" in told
    assert "tokens/s" not in told


def test_a_step_without_a_loss_says_so(monkeypatch):
    assert "step 7/1,000, no loss" in drawn(monkeypatch, 120, row(7, None))


def test_an_evaluations_row_leaves_the_line_as_it_is(monkeypatch):
    evaluation = {"step": 400, "eval/micro_loss": 9.0}
    assert drawn(monkeypatch, 120, row(399), row(400), evaluation) == drawn(monkeypatch, 120, row(399), row(400))


def test_rates_are_those_of_the_last_ten_seconds(monkeypatch):
    slow = [row(step) | {"tokens_per_s": 10.0} for step in range(1, 31)]
    assert " 2,048 tokens/s" in drawn(monkeypatch, 120, *slow, *(row(step) for step in range(31, 51)))


@pytest.mark.parametrize(("seconds", "left"), [(36.0, "1:00:00"), (360.0, "10:00:00"), (3600.0, "4.2 days")])
def test_long_times_are_told_in_hours_and_days(monkeypatch, seconds, left):
    assert f" {left} left" in drawn(monkeypatch, 120, row(900) | {"step_time_s": seconds})


def test_what_is_logged_meanwhile_stands_on_lines_of_its_own(monkeypatch):
    screen = terminal(monkeypatch, columns=120)
    line, logger = ProgressLine(), logging.Logger("a run")
    logger.addHandler(StderrHandler())
    line.start({"config": {"steps": 1000}}, step=0)
    logger.warning("out of line")
    line.close()
    assert "out of line\n" in screen.getvalue()
