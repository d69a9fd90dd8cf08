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
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_core import leases
from marin_core.errors import LeaseLostError, NewerRecordError
from marin_core.handles import Work
from marin_core.leases import EXPIRY, Process, Witness
from marin_core.store import Store


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}{request.node.name}")


def take(store: Store, witness: Witness | None = None) -> Any:
    return leases.acquire(store, "a/1", run_id="r", witness=witness or Witness())


def read(store: Store) -> Any:
    return leases.read(store, "a/1")


def pretend(store: Store, **changes: Any) -> leases.Lease:
    """Rewrites the lease as if another process had taken it."""
    lease = replace(read(store), nonce="other", **changes)
    leases._write(store, "a/1", lease)
    return lease


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
    now[0] += EXPIRY - 1
    leases.renew(store, "a/1", lease)
    assert take(store, witness) is None
    now[0] += EXPIRY - 1
    assert take(store, witness) is None
    now[0] += 1
    assert take(store, witness).epoch == 2


def test_an_overtaken_holder_can_neither_renew_nor_commit(store: Store) -> None:
    first = take(store)
    pretend(store, epoch=2)
    with pytest.raises(LeaseLostError, match="epoch 1 is lost"):
        leases.renew(store, "a/1", first)
    with pytest.raises(LeaseLostError), leases.fenced(store, "a/1", first):
        pytest.fail("the fence let an old epoch in")
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
        with pytest.raises(LeaseLostError), leases.fenced(store, "a/1", lease):
            pytest.fail("the fence let a holder in whose lease is gone")


def test_a_process_known_by_its_pid_alone_is_not_killed(store: Store) -> None:
    take(store)
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    pretend(store, holder=Process(pid=2**22 + 1, started=1), body=Process(pid=stranger.pid, started=0))
    assert take(store).epoch == 2
    stranger.communicate(b"\n")
    assert stranger.returncode == 0


@settings(max_examples=50)
@given(st.lists(st.sampled_from(["acquire", "release", "expire", "commit"]), max_size=25), st.data())
def test_at_most_one_epoch_can_commit_at_any_time(moves: list[str], data: st.DataObject) -> None:
    store = Store(f"memory://{data.draw(st.uuids())}")
    now = [0.0]
    witnesses = {i: Witness(clock=lambda: now[0]) for i in range(3)}
    held: dict[int, leases.Lease] = {}
    committed: list[int] = []
    for move in moves:
        who = data.draw(st.integers(0, 2))
        if move == "acquire":
            got = take(store, witnesses[who])
            if got is not None:
                leases._write(store, "a/1", replace(got, host="elsewhere"))
                held[who] = got
        elif move == "release" and who in held:
            leases.release(store, "a/1", held[who])
        elif move == "expire":
            for witness in witnesses.values():
                lease = read(store)
                if lease is not None:
                    witness.alive("a/1", lease)
            now[0] += EXPIRY
        elif move == "commit" and who in held:
            try:
                with leases.fenced(store, "a/1", held[who]):
                    committed.append(held[who].epoch)
            except LeaseLostError:
                assert read(store).nonce != held[who].nonce or not read(store).held
    assert committed == sorted(committed)
    assert len({lease.epoch for lease in held.values()}) == len(held)


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
