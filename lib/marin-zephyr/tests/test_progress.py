"""Progress: what is said, and that it ends whatever ends the work."""

import io
import logging

import pytest

from marin_zephyr import Dataset, Session
from marin_zephyr.errors import UserCodeError
from marin_zephyr.progress import BarProgress, LogProgress


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger="marin_zephyr.progress")
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_line_at_the_end_has_steps_items_and_speed(lines):
    progress = LogProgress()
    progress.start("tokenize", steps="documents", items="tokens", total=2000, done=1500)
    for _ in range(500):
        progress.advance(items=3)
    progress.finish()
    (line,) = lines()
    assert line.startswith("tokenize: 2,000/2,000 documents, 1,500 tokens, ")
    assert line.endswith(" tokens/s")


def test_without_a_total_only_what_is_done_is_told(lines):
    progress = LogProgress()
    progress.start("tokenize", steps="documents", items="tokens", total=None)
    progress.finish()
    assert lines()[0].startswith("tokenize: 0 documents, 0 tokens, ")


def test_a_bar_gives_the_terminal_back_when_the_work_fails():
    from rich.console import Console

    progress = BarProgress()
    out = io.StringIO()
    progress._bar.live.console = Console(file=out, force_terminal=True)
    with Session(backend="inline", progress=progress) as session, pytest.raises(UserCodeError):
        session.count(Dataset.from_rows([{"n": 0}]).map(lambda row: {"n": 1 // row["n"]}))
    assert out.getvalue().rindex("\x1b[?25h") > out.getvalue().rindex("\x1b[?25l")


def test_refused_rows_are_told_with_the_stage(lines, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"n":1}\nbad\n')
    with Session(backend="inline") as session:
        session.count(Dataset.from_files(tmp_path / "a.jsonl", on_error="skip"))
    assert "2 rows, 1 rejected, " in lines()[-1]
