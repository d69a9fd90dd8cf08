"""Jobs from claim to final record."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from marin_rigging import Job, Pool
from marin_rigging.drivers import run_job
from marin_rigging.errors import CommandError
from marin_rigging.jobs import JobStore

Mailbox = tuple[Path, Callable[[int], list[list[str]]]]


def job(script: str, **fields: str) -> Job:
    return Job(name="test", pool="here", command=("/bin/sh", "-c", script), **fields)  # type: ignore[arg-type]


def test_a_job_leaves_a_record_and_a_log_for_each_rank(tmp_path: Path) -> None:
    store = JobStore(tmp_path)
    record = run_job(job("echo $MARIN_JOB $RANK"), Pool(name="here", ranks=3), store=store)
    assert record == store.read("test-1")
    assert (record.state, [e.returncode for e in record.exits]) == ("succeeded", [0, 0, 0])
    assert record.ended_at is not None
    assert record.started_at <= record.ended_at
    assert [store.log(record, r).read_text() for r in range(3)] == [f"test-1 {r}\n" for r in range(3)]


def test_output_is_every_line_of_every_rank(tmp_path: Path) -> None:
    lines: list[tuple[int, str]] = []
    run_job(
        job("for i in 1 2 3; do echo $i; done; printf end"),
        Pool(name="here", ranks=2),
        store=JobStore(tmp_path),
        output=lambda rank, line: lines.append((rank, line)),
    )
    assert sorted(lines) == [(rank, line) for rank in (0, 1) for line in ("1", "2", "3", "end")]


def test_output_comes_while_the_job_runs(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    def answer(rank: int, line: str) -> None:
        if line == "first":
            gate.write_text("second\n")

    # The rank waits until its first line has been handed on: without following, this would not end.
    script = f"echo first; read line < {gate}; echo $line"
    record = run_job(job(script), Pool(name="here"), store=JobStore(tmp_path), output=answer)
    assert record.state == "succeeded"


def test_an_interrupt_stops_the_ranks_and_is_recorded(tmp_path: Path) -> None:
    def interrupt(rank: int, line: str) -> None:
        raise KeyboardInterrupt

    store = JobStore(tmp_path)
    script = "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 1000 & wait; done"
    record = run_job(job(script), Pool(name="here"), store=store, output=interrupt, grace_s=30)
    assert store.read("test-1") == record
    assert (record.state, record.exits[0].returncode) == ("stopped", 0)
    assert store.log(record, 0).read_text() == "ready\nsaved\n"


def test_what_ranks_write_while_they_are_stopped_is_handed_on(tmp_path: Path) -> None:
    lines: list[str] = []

    def interrupt(rank: int, line: str) -> None:
        lines.append(line)
        if line == "ready":
            raise KeyboardInterrupt

    script = "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 1000 & wait; done"
    run_job(job(script), Pool(name="here"), store=JobStore(tmp_path), output=interrupt, grace_s=30)
    assert lines == ["ready", "saved"]


def test_an_error_while_it_runs_kills_the_ranks_and_is_recorded(tmp_path: Path) -> None:
    def fail(rank: int, line: str) -> None:
        raise LookupError

    store = JobStore(tmp_path)
    with pytest.raises(LookupError):
        run_job(job("trap '' TERM; echo ready; sleep 1000"), Pool(name="here"), store=store, output=fail)
    record = store.read("test-1")
    assert (record.state, record.exits[0].returncode) == ("stopped", -signal.SIGKILL)


def test_a_job_that_cannot_start_keeps_no_record(tmp_path: Path) -> None:
    store = JobStore(tmp_path)
    with pytest.raises(CommandError):
        run_job(Job(name="a", pool="here", command=("no-such-program",)), Pool(name="here"), store=store)
    assert store.list() == ()
