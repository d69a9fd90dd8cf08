"""What an attempt leaves in its record, whichever way it ends."""

import getpass
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from marin_core import run
from marin_core.provenance import repository
from marin_core.provenance.facts import Gathering
from marin_core.records import AttemptRecord, from_json
from marin_core.store import open_store

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


def test_a_patch_that_is_known_and_kept_is_not_made_again(
    tmp_path: Path, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    for command in (["init", "--quiet"], [*identity, "commit", "--quiet", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", "-C", str(repo), *command], check=True)
    (repo / "job.py").write_text("x = 1\n")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(repo / "job.py"))
    monkeypatch.setattr(repository, "_SETTLED_NS", -(10**12))  # as if all had been written long ago
    made: list[Path] = []
    real = repository._diff

    def diff(root: Path, untracked: Any, **options: Any) -> bytes:
        made.append(root)
        return real(root, untracked, **options)

    monkeypatch.setattr(repository, "_diff", diff)

    def patch() -> bytes:
        origin = Gathering(open_store(prefix)).settled({})
        assert origin.patch
        return Path(prefix, "objects", origin.patch).read_bytes()

    first = patch()
    assert b"+x = 1" in first
    assert (patch(), len(made)) == (first, 1)
    (repo / "job.py").write_text("x = 2\n")
    assert b"+x = 2" in patch()
    assert len(made) == 2
    shutil.rmtree(Path(prefix, "objects"))
    assert b"+x = 2" in patch()
    assert len(made) == 3
