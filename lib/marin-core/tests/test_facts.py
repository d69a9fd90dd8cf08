"""What an attempt leaves in its record, whichever way it ends."""

import getpass
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from marin_core import run
from marin_core.records import AttemptRecord, from_json

FLOW = """
import os, signal, sys
from marin_core import Out, step

@step
def body(out: Out, *, end: str) -> int:
    print("said", end)
    if end == "raise":
        raise ValueError("wrong")
    if end == "leave":
        os._exit(7)
    if end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return 1
"""


@pytest.mark.parametrize(
    ("end", "kind", "exit_code"),
    [("raise", "ValueError", 1), ("leave", "Crash", 7), ("kill", "Crash", -9), ("return", None, None)],
)
def test_an_attempt_records_how_and_where_it_ended(
    module: Any, prefix: str, end: str, kind: str | None, exit_code: int | None
) -> None:
    report = run(module(FLOW).body(end=end), prefix=prefix)
    (node,) = report.record.nodes
    key = f"{node.address}/attempts/1/attempt.json"
    record = from_json(AttemptRecord, Path(prefix, key).read_bytes(), where=key)
    assert record.state == ("succeeded" if kind is None else "failed")
    assert (record.user, record.host, record.pid) == (getpass.getuser(), socket.gethostname(), os.getpid())
    assert record.ended_at is not None
    assert record.ended_at >= record.started_at
    assert f"said {end}" in Path(prefix, record.log).read_text()
    if record.failure is None:
        assert kind is None
        return
    assert (record.failure.type, record.failure.process_exit_code) == (kind, exit_code)
    assert ("ValueError: wrong" in record.failure.traceback) == (end == "raise")


def test_a_run_outside_a_repository_records_no_commit_and_still_its_machine(module: Any, prefix: str) -> None:
    record = run(module(FLOW).body(end="return"), prefix=prefix, launcher="inline").record
    assert record.origin is not None
    assert record.environment["packages"]["marin-core"] == record.environment["marin_core"]
    assert record.environment["num_cpus"] >= 1
    assert Path(prefix, "objects", record.origin.machine).is_file()
