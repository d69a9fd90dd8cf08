"""Leases: one holder, a rising epoch, and a fence that rejects whoever was overtaken."""

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marin_core import leases
from marin_core.errors import LeaseLostError, NewerRecordError
from marin_core.handles import Work
from marin_core.leases import TERM, Process, Witness
from marin_core.store import Store, open_store


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return open_store(str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}{request.node.name}")


def take(store: Store, witness: Witness | None = None) -> Any:
    return leases.acquire(store, "a/1", run_id="r", witness=witness or Witness())


def read(store: Store) -> Any:
    return leases.read(store, "a/1")


def pretend(store: Store, **changes: Any) -> leases.Lease:
    """Rewrites the lease as if another process had taken it."""
    lease = replace(read(store), nonce="other", **changes)
    store.write("a/1/lease.json", leases._json(lease))
    return lease


def holding(lease: leases.Lease) -> leases.Holding:
    return leases.Holding(lease=lease, pointer=None, asked_at=0.0)


def test_a_held_lease_is_not_given_twice_and_a_released_one_is(store: Store) -> None:
    first = take(store)
    assert take(store) is None
    leases.release(store, "a/1", first)
    assert take(store).epoch == first.epoch + 1


def test_a_dead_holder_on_this_host_is_overtaken_at_once(store: Store) -> None:
    take(store)
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    dead = Process(pid=child.pid, started=1)
    child.wait()
    pretend(store, holder=dead)
    assert take(store).epoch == 2


def test_a_recycled_pid_is_not_taken_for_the_holder() -> None:
    me = Process.of(os.getpid())
    assert me.alive()
    assert not replace(me, started=me.started + 1).alive()


def test_the_body_of_a_dead_holder_is_killed_first(store: Store) -> None:
    take(store)
    body = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    reaper = threading.Thread(target=body.wait)
    reaper.start()
    pretend(store, holder=Process(pid=2**22 + 1, started=1), body=Process.of(body.pid))
    assert take(store).epoch == 2
    reaper.join()
    assert body.returncode == -9


def test_a_holder_elsewhere_is_judged_by_the_witness_clock_alone(store: Store) -> None:
    now = [1000.0]
    witness = Witness(clock=lambda: now[0])
    take(store)
    lease = pretend(store, host="elsewhere")
    assert take(store, witness) is None
    now[0] += TERM - 1
    leases.renew(store, "a/1", holding(lease))
    assert take(store, witness) is None
    now[0] += TERM - 1
    assert take(store, witness) is None
    now[0] += 1
    assert take(store, witness).epoch == 2


def test_a_living_holder_on_this_host_is_judged_by_its_own_term(store: Store) -> None:
    now = [1000.0]
    witness = Witness(clock=lambda: now[0])
    leases.acquire(store, "a/1", run_id="r", witness=Witness(), term=2.0)
    assert take(store, witness) is None
    now[0] += 1.9
    assert take(store, witness) is None
    now[0] += 0.2
    assert take(store, witness).epoch == 2


def test_an_overtaken_holder_can_neither_renew_nor_commit(store: Store) -> None:
    first = take(store)
    pretend(store, epoch=2)
    with pytest.raises(LeaseLostError, match="epoch 1 is lost"):
        leases.renew(store, "a/1", first)
    with pytest.raises(LeaseLostError):
        leases.commit(store, "a/1", first, b"{}")
    assert store.read("a/1/step.json") is None
    leases.release(store, "a/1", first)
    assert read(store).held


def test_a_lost_lease_goes_on_from_the_epochs_of_the_attempts(store: Store) -> None:
    for number, epoch in ((1, 4), (2, 7)):
        store.write(f"a/1/attempts/{number}/attempt.json", json.dumps({"epoch": epoch}).encode())
    store.write("a/1/attempts/3/attempt.json", b"{")
    store.write("a/1/lease.json", b"")
    assert take(store).epoch == 8


def test_a_lease_of_a_later_version_is_respected(store: Store) -> None:
    take(store)
    fields = json.loads(store.read("a/1/lease.json") or b"")
    store.write("a/1/lease.json", json.dumps(fields | {"later": 1}).encode())
    assert take(store) is None


@pytest.mark.parametrize("key", ["a/1/lease.json", "a/1/attempts/1/attempt.json"])
def test_a_step_that_a_later_version_works_on_is_refused_and_left_as_it_is(store: Store, key: str) -> None:
    lease = take(store)
    leases.release(store, "a/1", lease)
    newer = json.dumps({"schema": 2, "epoch": {"new": "shape"}}).encode()
    store.write(key, newer)
    before = store.read("a/1/lease.json")
    with pytest.raises(NewerRecordError, match=f"{key}: schema 2 is newer than 1; upgrade marin-core"):
        take(store)
    assert (store.read(key), store.read("a/1/lease.json")) == (newer, before)
    if key == "a/1/lease.json":
        with pytest.raises(LeaseLostError):
            leases.commit(store, "a/1", lease, b"{}")


def test_a_process_known_by_its_pid_alone_is_not_killed(store: Store) -> None:
    take(store)
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    pretend(store, holder=Process(pid=2**22 + 1, started=1), body=Process(pid=stranger.pid, started=0))
    assert take(store).epoch == 2
    stranger.communicate(b"\n")
    assert stranger.returncode == 0


def test_work_is_fenced_by_epoch(tmp_path: Path) -> None:
    old, new = Work(str(tmp_path / "w"), epoch=1), Work(str(tmp_path / "w"), epoch=2)
    old.claim()
    with old.open("state", "w") as f:
        f.write("1")
    new.claim()
    assert old.open("state").read() == "1"
    with pytest.raises(LeaseLostError, match="overtaken by epoch 2"):
        old.open("state", "w")
    with pytest.raises(LeaseLostError):
        old.local()
    with new.open("state", "w") as f:
        f.write("2")


def test_work_is_emptied_for_a_fresh_start_and_older_attempts_stay_fenced_out(tmp_path: Path) -> None:
    old, new = Work(str(tmp_path / "w"), epoch=1), Work(str(tmp_path / "w"), epoch=2)
    old.claim()
    with old.open("checkpoints/3/state", "w") as f:
        f.write("1")
    (tmp_path / "w.cleared").mkdir()
    (tmp_path / "w.cleared" / "left").touch()
    new.claim()
    new.clear()
    assert [p.name for p in tmp_path.rglob("*")] == ["w", ".epoch"]
    with pytest.raises(LeaseLostError, match="overtaken by epoch 2"):
        old.open("state", "w")


def test_a_lease_that_is_nested_garbage_is_none(prefix: str) -> None:
    store = open_store(prefix)
    store.write("a/lease.json", b"[" * 100_000)
    assert leases.read(store, "a") is None
