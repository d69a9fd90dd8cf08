"""Leases and commits under every interleaving of requests, with stores that lie and holders that sleep.

At most one commit an epoch, epochs that only rise, nothing of an epoch once a later one has begun, no partial output,
no fence taken for a commit, and no holder told "rejected" whose commit stands.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from marin_core import leases
from marin_core.errors import LeaseLostError, PrefixError
from marin_core.leases import Holding, Witness
from marin_core.records import committed
from marin_core.store import Store
from marin_core.store.objects import ObjectStore

from .simulation import (
    ADDRESS,
    FAILURES,
    POINTER,
    Bucket,
    Client,
    Crashed,
    GuardedStore,
    Ledger,
    Runner,
    ViolationError,
    output_key,
    pointer,
)

_numbers = itertools.count()
TERM = 10.0
RUNNERS = st.integers(0, 1)


class Interleavings(RuleBasedStateMachine):
    """Two runners want one step; `store_of` says on which kind of store."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.ledger = Ledger()
        self.bucket = Bucket(self.ledger)
        self.url = f"memory://interleavings-{next(_numbers)}"
        self.nonces = (f"n{i}" for i in itertools.count())
        self.runners: list[Runner] = []
        self.stores: list[Store] = []
        self.witnesses: list[Witness] = []
        self.holdings: list[Holding | None] = []
        for _ in range(2):
            self.runners.append(Runner(f"r{len(self.runners)}"))
            self.stores.append(self.store_of(self.runners[-1]))
            self.witnesses.append(Witness(clock=lambda: self.now))
            self.holdings.append(None)

    def store_of(self, runner: Runner) -> Store:
        raise NotImplementedError

    def teardown(self) -> None:
        for runner in self.runners:
            runner.close()

    # What a runner may set out to do

    @rule(who=RUNNERS)
    def wake(self, who: int) -> None:
        if self.runners[who].at is None and self.holdings[who] is None:
            self._start(who, lambda: self._acquire(who))

    @rule(who=RUNNERS, what=st.sampled_from(["commit", "commit", "renew", "release", "update"]))
    def act(self, who: int, what: str) -> None:
        holding = self.holdings[who]
        if self.runners[who].at is None and holding is not None:
            self._start(who, lambda: getattr(self, f"_{what}")(who, holding))

    def _start(self, who: int, task: Callable[[], Any]) -> None:
        self.runners[who].start(task)
        self._settle(who)

    def _acquire(self, who: int) -> None:
        holding = leases.acquire(
            self.stores[who],
            ADDRESS,
            run_id=str(who),
            witness=self.witnesses[who],
            term=TERM,
            nonce=lambda: next(self.nonces),
        )
        if holding is not None:
            self.ledger.begun = max(self.ledger.begun, holding.epoch)
            self.holdings[who] = holding

    def _commit(self, who: int, holding: Holding) -> None:
        store, nonce = self.stores[who], holding.lease.nonce
        self._put(store, output_key(nonce), b"partial")
        self._put(store, output_key(nonce), b"whole")
        settled = True
        try:
            leases.commit(store, ADDRESS, holding, pointer(holding.epoch, nonce))
            if (holding.epoch, nonce) not in self.ledger.commits:
                raise ViolationError(f"epoch {holding.epoch} was told that it is committed, and is not")
        except LeaseLostError:
            if (holding.epoch, nonce) in self.ledger.commits:
                raise ViolationError(f"epoch {holding.epoch} was told that it is void, and is committed") from None
            self.ledger.rejected.add(nonce)
        except PrefixError:
            settled = False
        self.holdings[who] = None
        if settled:
            leases.release(store, ADDRESS, holding)

    def _put(self, store: Store, key: str, data: bytes) -> None:
        found = store.read_versioned(key)
        store.swap(key, data, expected=found.version if found else None)

    def _renew(self, who: int, holding: Holding) -> None:
        leases.renew(self.stores[who], ADDRESS, holding)

    def _update(self, who: int, holding: Holding) -> None:
        leases.update(self.stores[who], ADDRESS, holding, body=None)

    def _release(self, who: int, holding: Holding) -> None:
        self.holdings[who] = None
        leases.release(self.stores[who], ADDRESS, holding)

    # What befalls them

    @rule(who=RUNNERS)
    def go_on(self, who: int) -> None:
        self._go_on(who, "ok")

    @rule(who=RUNNERS)
    def finish(self, who: int) -> None:
        while self.runners[who].at is not None:
            self._go_on(who, "ok")

    @rule(who=RUNNERS)
    def take(self, who: int) -> None:
        """Waits a term, if it must, and goes on until it holds the step."""
        for _ in range(2):
            self.wake(who)
            self.finish(who)
            self.now += TERM + 1

    @rule(who=RUNNERS, outcome=st.sampled_from(["stop", *FAILURES]), times=st.sampled_from([1, 100]))
    def write_the_pointer(self, who: int, outcome: str, times: int) -> None:
        """Goes on until its next request would write the pointer, to commit or to fence, and fails there, once or for
        as long as it tries."""
        self.act(who, "commit")
        while self.runners[who].at not in (None, f"put {POINTER}"):
            self._go_on(who, "ok")
        while outcome != "stop" and times and self.runners[who].at == f"put {POINTER}":
            times -= 1
            self._go_on(who, outcome)
            if self.runners[who].at == f"get {POINTER}":
                self._go_on(who, "ok")

    @rule(who=RUNNERS, outcome=st.sampled_from(FAILURES))
    def fail(self, who: int, outcome: str) -> None:
        self._go_on(who, outcome)

    @rule(who=RUNNERS, outcome=st.sampled_from(FAILURES))
    def fail_for_long(self, who: int, outcome: str) -> None:
        while self.runners[who].at is not None:
            self._go_on(who, outcome)

    @precondition(lambda self: any(runner.at for runner in self.runners))
    @rule(who=RUNNERS)
    def crash(self, who: int) -> None:
        self._go_on(who, "crash")
        self.holdings[who] = None

    @rule(seconds=st.sampled_from([1.0, TERM / 2, TERM + 1]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.bucket.late)
    @rule(which=st.integers(0, 3))
    def a_late_write_lands(self, which: int) -> None:
        self.bucket.land(which % len(self.bucket.late))

    def _go_on(self, who: int, outcome: str) -> None:
        runner = self.runners[who]
        if runner.at is not None:
            runner.go_on(outcome)
            self._settle(who)

    def _settle(self, who: int) -> None:
        """Takes note of a task that is over: errors that a runner lives with, and those that end it."""
        runner = self.runners[who]
        if runner.at is not None:
            return
        result, runner.result = runner.result, None
        if isinstance(result, LeaseLostError | PrefixError | Crashed):
            self.holdings[who] = None
        elif isinstance(result, BaseException):
            raise result

    @invariant()
    def a_reader_sees_nothing_or_the_last_commit(self) -> None:
        record = committed(self.pointer(), where=POINTER)
        seen = None if record is None else (record.epoch, record.output_digest)
        assert seen == (self.ledger.commits[-1] if self.ledger.commits else None)

    def pointer(self) -> bytes | None:
        return self.bucket.objects.get(POINTER)


class OnObjects(Interleavings):
    """A store that cannot look at the lease and write the pointer at once."""

    def store_of(self, runner: Runner) -> Store:
        client = Client(self.bucket, runner.arrive)

        def sleep(seconds: float) -> None:
            self.now += seconds

        return ObjectStore("s3://bucket", client=client, bulk=client, clock=lambda: self.now, sleep=sleep)


class OnGuarded(Interleavings):
    """A store that can."""

    def store_of(self, runner: Runner) -> Store:
        return GuardedStore(self.url, self.ledger, runner.arrive)

    def pointer(self) -> bytes | None:
        import fsspec

        files = fsspec.filesystem("memory")
        path = f"{self.url.removeprefix('memory:/')}/{POINTER}"
        return files.cat_file(path) if files.exists(path) else None


EXAMPLES = settings(max_examples=200, stateful_step_count=30, deadline=None, derandomize=True)

TestOnGuarded = OnGuarded.TestCase
TestOnGuarded.settings = EXAMPLES


@pytest.fixture(scope="module")
def _obstore() -> None:
    pytest.importorskip("obstore")


@pytest.mark.usefixtures("_obstore")
class TestOnObjects(OnObjects.TestCase):
    settings = EXAMPLES


@pytest.fixture
def objects(_obstore: None) -> Iterator[OnObjects]:
    machine = OnObjects()
    yield machine
    machine.a_reader_sees_nothing_or_the_last_commit()
    machine.teardown()


def test_a_sleeper_on_the_brink_of_its_commit_is_fenced_off(objects: OnObjects) -> None:
    objects.take(0)
    objects.write_the_pointer(0, "stop", 1)
    objects.take(1)
    objects.finish(0)
    assert objects.ledger.rejected == {"n0"}
    objects.act(1, "commit")
    objects.finish(1)
    assert objects.ledger.commits == [(2, "n1")]


def test_a_commit_that_lands_after_its_holder_gave_up_is_fenced_off(objects: OnObjects) -> None:
    objects.take(0)
    objects.write_the_pointer(0, "late", 100)
    objects.finish(0)
    objects.take(1)
    objects.a_late_write_lands(0)
    assert objects.ledger.commits == []


def test_a_commit_whose_answer_was_lost_is_no_conflict(objects: OnObjects) -> None:
    objects.take(0)
    objects.write_the_pointer(0, "lost answer", 1)
    objects.finish(0)
    assert objects.ledger.commits == [(1, "n0")]


def test_a_commit_that_came_just_before_the_fence_stands(objects: OnObjects) -> None:
    objects.take(0)
    objects.write_the_pointer(0, "stop", 1)
    objects.wake(1)
    objects.finish(1)
    objects.time_passes(TERM + 1)
    objects.wake(1)
    while objects.runners[1].at not in (None, f"put {POINTER}"):
        objects.go_on(1)
    objects.finish(0)
    objects.finish(1)
    assert objects.ledger.commits == [(1, "n0")]
    assert objects.holdings[1] is not None
    objects.act(1, "commit")
    objects.finish(1)
    assert objects.ledger.commits == [(1, "n0"), (2, "n1")]
