"""What a careful task notes, what survives of it, and what follows for a row."""

import itertools
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr.backends.care import Care, Note, read_note, shared_page
from marin_zephyr.backends.pool import Death
from marin_zephyr.backends.verdicts import Trial
from marin_zephyr.context import TaskContext
from marin_zephyr.counters import check_chain
from marin_zephyr.errors import MemoryLimitError, RejectRow, WorkerDiedError
from marin_zephyr.formats.rejects import Desk
from marin_zephyr.nodes import FilterRows, FlatMap, Map, MapBatches
from marin_zephyr.operations import run_chain

plain = st.none() | st.integers() | st.floats() | st.text(max_size=400) | st.binary()
anything = plain | st.lists(plain) | st.dictionaries(st.text(), plain)


@given(name=st.text(max_size=500), row=st.dictionaries(st.text(max_size=100), anything, max_size=5))
@settings(max_examples=30)
def test_a_note_holds_whatever_the_row(name, row):
    with shared_page() as page:
        care = Care(page, {})
        seen = []
        call = care.row_function(lambda _: seen.append(read_note(page)), operation=3, name=name)
        call(row)
        call(row)
        after = read_note(page)
    assert [note.position for note in seen] == [(3, 0), (3, 1)]
    assert all(note.held > 0 and note.operation == name[:300] for note in seen)
    assert after is not None
    assert after.position is None


def test_a_note_of_a_huge_row_is_short_and_says_where_the_row_came_from():
    with shared_page() as page:
        notes = []
        call = Care(page, {}).row_function(lambda _: notes.append(read_note(page)), operation=0, name="map(f)")
        call({"text": "x" * (1 << 20), "raw": b"\xff" * (1 << 20), "list": list(range(10**5))})
        call({"source": "a.jsonl", "source_row": 1234, "source_offset": None})
    assert len(notes[0].what) <= 300
    assert notes[1].what == "row 1, a.jsonl, row 1,234"


def test_a_condemned_row_is_refused_without_a_call():
    with shared_page() as page:
        call = Care(page, {(2, 1): "poison"}).row_function(lambda row: row, operation=2, name="map(f)")
        assert call("a") == "a"
        with pytest.raises(RejectRow, match="poison"):
            call("b")
        assert call("c") == "c"


OPS = (
    FlatMap(lambda row: [row, {**row, "half": 1}]),
    FilterRows(lambda row: row["n"] % 3),
    MapBatches(lambda frame: frame.reverse(), batch_rows=None, batch_format="polars"),
    Map(lambda row: {**row, "m": row["n"] * 2}),
)


def refusing(op: Any, numbers: set[int]) -> Any:
    """The operation, whose function itself refuses the rows of these numbers."""
    counter = itertools.count()

    def fn(row: Any) -> Any:
        if next(counter) in numbers:
            raise RejectRow("poison")
        return op.fn(row)

    return op if isinstance(op, MapBatches) else type(op)(fn)


def outcome(ops: tuple[Any, ...], care: Care | None) -> tuple[Any, ...]:
    """Every batch that comes out of a chain over two batches, and what was counted."""
    context = TaskContext(desk=Desk("skip", Path("none")), index=0, home=Path("none"), care=care)
    frames = iter([pl.DataFrame({"n": range(7)}), pl.DataFrame({"n": range(7, 10)})])
    made = [frame.to_dicts() for frame in run_chain(frames, ops, ["a", "b", "c", "d"], context)]
    return made, context.counts, context.desk.num_rows


@given(st.sets(st.tuples(st.sampled_from([0, 1, 3]), st.integers(0, 12))))
@settings(max_examples=50)
def test_a_chain_with_condemned_rows_gives_the_batches_of_one_whose_functions_refuse_them(condemned):
    numbers = {op: {row for where, row in condemned if where == op} for op in range(len(OPS))}
    plain = outcome(tuple(refusing(op, numbers[i]) for i, op in enumerate(OPS)), None)
    with shared_page() as page:
        careful = outcome(OPS, Care(page, dict.fromkeys(condemned, "poison")))
    assert careful == plain
    check_chain(careful[1])


def test_a_note_outlives_a_process_that_is_killed():
    with shared_page() as page:
        script = (
            "import os, signal; from marin_zephyr.backends.care import Care; "
            "die = lambda _: os.kill(os.getpid(), signal.SIGKILL); "
            f"Care({page}, {{}}).row_function(die, operation=1, name='map(f)')({{}})"
        )
        done = subprocess.run([sys.executable, "-c", script], pass_fds=(page,))
        note = read_note(page)
    assert done.returncode == -signal.SIGKILL
    assert note is not None
    assert (note.operation, note.position) == ("map(f)", (1, 0))


def test_a_page_on_which_nothing_was_written_holds_no_note():
    with shared_page() as page:
        assert read_note(page) is None


def note(row: int, *, held: int = 100, idle: int = 50) -> Note:
    return Note(operation="map(f)", what=f"row {row}", position=(0, row), held=held, idle=idle)


CRASH = Death(returncode=-signal.SIGSEGV, held=100, ceiling=None)
KILLED = Death(returncode=-signal.SIGKILL, held=100, ceiling=None)
TOO_MUCH = Death(returncode=-signal.SIGKILL, held=300, ceiling=250)


def test_a_row_that_crashes_its_worker_is_condemned_up_to_a_hundred_times():
    trial = Trial("task 0", "skip")
    for row in range(100):
        trial.judge(CRASH, note(row))
    assert trial.condemned == {(0, row): "killed the worker: SIGSEGV" for row in range(100)}
    with pytest.raises(WorkerDiedError, match=r"map\(f\) on row 100.*100 rows are left out already"):
        trial.judge(CRASH, note(100))


def test_a_kill_by_others_is_blamed_on_a_row_only_if_it_happens_there_twice():
    trial = Trial("task 0", "skip")
    trial.judge(KILLED, note(5))
    assert not trial.condemned
    trial.judge(KILLED, note(5))
    assert trial.condemned == {(0, 5): "killed the worker: SIGKILL"}
    elsewhere = Trial("task 0", "skip")
    elsewhere.judge(KILLED, note(1))
    elsewhere.judge(KILLED, note(2))
    with pytest.raises(WorkerDiedError, match="killed by SIGKILL"):
        elsewhere.judge(KILLED, note(3))
    assert not elsewhere.condemned


@given(idle=st.integers(0, 300), held=st.integers(0, 300))
@settings(max_examples=50)
def test_a_row_is_blamed_for_memory_that_came_mostly_in_its_call(idle, held):
    trial = Trial("task 0", "quarantine")
    idle, held = sorted([idle, held])
    mostly = TOO_MUCH.held - held >= held - idle
    if mostly:
        trial.judge(TOO_MUCH, note(1, held=held, idle=idle))
    else:
        with pytest.raises(MemoryLimitError, match=r"map\(f\) on row 1 \(it held"):
            trial.judge(TOO_MUCH, note(1, held=held, idle=idle))
    assert bool(trial.condemned) == mostly


def test_nobody_is_left_out_for_a_death_outside_of_row_functions():
    batch = Note(operation="map_batches(g)", what="a batch of 9 rows, 1 MiB")
    for death, kind in [(CRASH, WorkerDiedError), (TOO_MUCH, MemoryLimitError)]:
        with pytest.raises(kind, match=r"in map_batches\(g\) on a batch of 9 rows"):
            Trial("task 0", "skip").judge(death, batch)
        with pytest.raises(kind, match="2 times"):
            Trial("task 0", "skip").judge(death, None)
