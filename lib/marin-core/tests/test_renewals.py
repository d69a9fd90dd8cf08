"""Renewal: a lease is kept as long as it can be, and given up before anyone else can have it."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from marin_core import leases
from marin_core.errors import PrefixError
from marin_core.leases import Holding, Witness
from marin_core.renewals import Keeper
from marin_core.store import Store, open_store

TERM = 60.0


class AtOnce(Executor):
    """Runs a task when it is submitted, or, while the store hangs, never."""

    hangs = False

    def submit(self, task: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if not self.hangs:
            try:
                future.set_result(task(*arguments, **keywords))
            except Exception as e:
                future.set_exception(e)
        return future


class Desk:
    """A lease that is held, its keeper, a clock to turn, and what was lost."""

    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.lost, self.executor, self.fails = 1000.0, [], AtOnce(), False
        self.store: Store = open_store(url)
        self.witness, self.other = (Witness(clock=lambda: self.now) for _ in range(2))
        self.holding = self.take(self.witness)
        assert self.holding is not None
        held = [("a/1", self.holding)]
        self.keeper = Keeper(
            self.store,
            lambda: held,
            lost=lambda address, error: self.lost.append((self.now, str(error))),
            term=TERM,
            executor=self.executor,
            clock=lambda: self.now,
        )
        real = leases.renew

        def renew(*arguments: Any) -> None:
            if self.fails:
                raise PrefixError("the store does not answer")
            real(*arguments)

        monkeypatch.setattr(leases, "renew", renew)

    def take(self, witness: Witness) -> Holding | None:
        return leases.acquire(self.store, "a/1", run_id="r", witness=witness, term=TERM)

    def beat(self) -> int:
        lease = leases.read(self.store, "a/1")
        assert lease is not None
        return lease.beat

    def pass_time(self, seconds: float, *, step: float = 2.5) -> None:
        for _ in range(int(seconds / step)):
            self.now += step
            self.keeper.look()


@pytest.fixture
def desk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(f"memory://{request.node.name}", monkeypatch)


def test_a_lease_is_renewed_six_times_a_term_and_nobody_else_gets_it(desk: Desk) -> None:
    for _ in range(20):
        desk.pass_time(30)
        assert desk.take(desk.other) is None
    assert desk.beat() == 60
    assert desk.lost == []


def test_a_renewal_that_failed_is_tried_again_soon(desk: Desk) -> None:
    desk.fails = True
    desk.pass_time(12.5)
    desk.fails = False
    desk.pass_time(2.5)
    assert desk.beat() == 1
    assert desk.lost == []


@pytest.mark.parametrize("how", ["answers with errors", "hangs"])
def test_a_lease_that_cannot_be_renewed_is_given_up_before_anyone_else_gets_it(desk: Desk, how: str) -> None:
    desk.pass_time(30)
    assert desk.take(desk.other) is None
    desk.fails, desk.executor.hangs = how == "answers with errors", how == "hangs"
    while not desk.lost:
        desk.pass_time(2.5)
        assert desk.take(desk.other) is None
    ((at, message),) = desk.lost
    assert 45 <= at - 1030 <= 50
    assert "the lease of epoch 1 is given up: it could not be renewed for 45 s" in message
    desk.pass_time(60)
    assert len(desk.lost) == 1
    assert desk.take(desk.other) is not None


def test_a_sleeper_that_nobody_overtook_goes_on(desk: Desk) -> None:
    desk.now += 100_000
    desk.keeper.look()
    assert (desk.beat(), desk.lost) == (1, [])
    desk.pass_time(60)
    assert desk.lost == []


def test_a_sleeper_that_was_overtaken_is_told_at_its_first_look(desk: Desk) -> None:
    assert desk.take(desk.other) is None
    desk.now += TERM + 1
    assert desk.take(desk.other) is not None
    desk.keeper.look()
    ((_, message),) = desk.lost
    assert "the lease of epoch 1 is lost to run r" in message


def test_a_sleeper_that_gets_no_answer_gives_up_within_a_beat(desk: Desk) -> None:
    desk.executor.hangs = True
    desk.now += 100_000
    desk.keeper.look()
    assert desk.lost == []
    desk.pass_time(10)
    assert len(desk.lost) == 1
