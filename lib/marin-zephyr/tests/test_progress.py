"""Progress: what is said, and that it ends whatever ends the work."""

import contextlib
import io
import logging
import os
import pty
import signal
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr import Dataset, Session
from marin_zephyr.errors import UserCodeError
from marin_zephyr.progress import BarProgress, LogProgress, Work
from marin_zephyr.reporting.quantities import cut, shown_bytes, shown_duration


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger="marin_zephyr.progress")
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_line_at_the_end_has_steps_items_and_speed(lines):
    progress = LogProgress()
    progress.start(Work(name="tokenize", steps="documents", items="tokens", total=2000, done=1500))
    for _ in range(500):
        progress.advance(items=3)
    progress.finish()
    (line,) = lines()
    assert line.startswith("tokenize: 2,000/2,000 documents, 1,500 tokens, ")
    assert line.endswith(" tokens/s")


def test_without_a_total_only_what_is_done_is_told(lines):
    progress = LogProgress()
    progress.start(Work(name="tokenize", steps="documents", items="tokens", total=None))
    progress.finish()
    assert lines() == ["tokenize: 0 documents, 0 tokens"]


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


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is told otherwise."""
    now = [100.0]
    monkeypatch.setattr("marin_zephyr.progress.time.monotonic", lambda: now[0])
    return now


def test_what_is_left_is_told_by_bytes_and_only_of_this_runs_speed(lines, clock):
    progress = LogProgress()
    progress.start(Work(name="clean", steps="shards", items="rows", total=4, done=1, num_bytes=2000, done_bytes=1000))
    clock[0] += 10
    progress.advance(items=500, num_bytes=900)  # one shard of three, and nine tenths of the bytes
    assert lines() == ["clean: 2/4 shards, 500 rows, 50 rows/s, 90 B/s, 0:01 left"]


def test_without_bytes_what_is_left_is_told_by_steps(lines, clock):
    progress = LogProgress()
    progress.start(Work(name="clean", steps="shards", items="rows", total=4))
    clock[0] += 10
    progress.advance(items=500)
    assert lines()[0].endswith("50 rows/s, 0:30 left")


def test_refused_and_retried_are_told(lines, clock):
    progress = LogProgress()
    progress.start(Work(name="clean", steps="shards", items="rows", total=2))
    clock[0] += 1
    progress.advance(items=5, rejected=2, retried=1)
    progress.finish()
    assert lines() == ["clean: 1/2 shards, 5 rows, 2 rejected, 1 retried, 5 rows/s, 0:01 left"]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_bar_fits_its_line_and_tells_what_matters_most_first(width, clock):
    from rich.console import Console

    progress = BarProgress()
    out = io.StringIO()
    progress._bar.live.console = Console(file=out, force_terminal=True, width=width, color_system=None)
    name = "a-rather-long-name-of-a-script 2/3 distinct-pick"
    progress.start(Work(name=name, steps="shards", items="rows", total=9, num_bytes=9 * 10**9))
    clock[0] += 5
    progress.advance(items=123_456, rejected=77, num_bytes=10**9, retried=1)
    progress.finish()
    last = out.getvalue().rpartition("\x1b[2K")[2].partition("\n")[0]
    assert len(last) < width
    told = ("1/9 shards", "0:40 left", "77 rejected", "1 retried", "24,691 rows/s", "200 MB/s")
    shown = [text for text in told if text in last]
    assert shown == list(told[: len(shown)])
    assert len(shown) >= {40: 0, 80: 3, 120: 5}[width]


def test_an_interrupt_ends_a_bar_cleanly_and_tells_how_to_go_on(tmp_path):
    script = tmp_path / "clean.py"
    script.write_text(
        "import time\nfrom marin_zephyr import Dataset\n"
        "def wait(row):\n    time.sleep(60)\n    return row\n"
        f"dataset = Dataset.from_rows([{{'n': 1}}]).map(wait).write_jsonl({str(tmp_path / 'out')!r})\n"
    )
    terminal, theirs = pty.openpty()
    command = [sys.executable, "-m", "marin_zephyr.cli", "run", str(script), "--workers", "1"]
    process = subprocess.Popen(command, stderr=theirs, stdout=theirs, env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    seen = b""
    while b"0/1 shards" not in seen:
        seen += os.read(terminal, 4096)
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(OSError):  # how a terminal says that nobody holds it any more
        while piece := os.read(terminal, 4096):
            seen += piece
    os.close(terminal)
    assert process.wait() == 1
    text = seen.decode()
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    last = "zephyr: interrupted; committed work is kept, the same command goes on from there"
    assert text.splitlines()[-1].endswith(last)
    assert "Traceback" not in text


def test_stages_are_numbered_and_a_reused_one_keeps_its_number(lines, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"n":1}\n')
    dataset = Dataset.from_files(tmp_path / "a.jsonl").distinct(on="n")
    with Session(backend="inline", work_dir=tmp_path / "work") as session:
        session.run(dataset.write_jsonl(tmp_path / "one"), name="clean")
        assert [line.split(":")[0] for line in lines()] == [
            "clean 1/3 distinct-keys",
            "clean 2/3 distinct-pick",
            "clean 3/3 write",
        ]
        session.run(dataset.write_jsonl(tmp_path / "two"), name="clean")
    assert [line.split(":")[0] for line in lines()[3:]] == ["clean 3/3 write"]


@settings(max_examples=50)
@given(st.floats(0, 10**14), st.floats(0, 10**6), st.text(max_size=60), st.integers(1, 40))
def test_quantities_are_short(size, seconds, text, width):
    assert len(shown_bytes(size)) <= 9
    assert len(shown_duration(seconds)) <= 9
    shown = cut(text, width)
    assert len(shown) <= width
    assert text.endswith(shown.removeprefix("…"))
