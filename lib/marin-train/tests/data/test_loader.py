import gc
import os
import signal
import subprocess
import sys
import threading
import weakref

import pytest

from marin_train.data.loader import Prefetch


def test_items_come_in_order_and_end() -> None:
    with Prefetch(lambda i: i * i, start=3, stop=9) as items:
        assert list(items) == [9, 16, 25, 36, 49, 64]


def test_no_more_than_depth_items_are_made_ahead() -> None:
    asked: list[int] = []
    with Prefetch(lambda i: asked.append(i) or i, start=0, stop=100, depth=3) as items:
        assert [next(items) for _ in range(4)] == [0, 1, 2, 3]
    # Four were taken and three may be ready behind them.
    assert len(asked) <= 7
    assert asked == list(range(len(asked)))


def test_the_next_item_is_made_while_this_one_is_used() -> None:
    made = threading.Event()

    def make(i: int) -> int:
        if i == 1:
            made.set()
        return i

    with Prefetch(make, start=0, stop=5) as items:
        next(items)
        assert made.wait(timeout=30)


def test_an_error_comes_out_at_its_item() -> None:
    with Prefetch(lambda i: 6 // (2 - i), start=0, stop=5) as items:
        assert [next(items), next(items)] == [3, 6]
        with pytest.raises(ZeroDivisionError):
            next(items)


def test_leaving_early_joins_the_thread() -> None:
    before = set(threading.enumerate())

    def take_one_and_fail() -> None:
        with Prefetch(lambda i: i, start=0, stop=10**9) as items:
            next(items)
            raise RuntimeError("the body")

    with pytest.raises(RuntimeError, match="the body"):
        take_one_and_fail()
    assert set(threading.enumerate()) == before


def test_several_threads_keep_the_order_and_make_items_at_a_time() -> None:
    together = threading.Barrier(4, timeout=30)

    def make(i: int) -> int:
        together.wait()  # passes only when four items are being made at once
        return i

    with Prefetch(make, start=0, stop=40, depth=8, num_threads=4) as items:
        assert list(items) == list(range(40))


def test_an_error_does_not_end_the_items_after_it() -> None:
    with Prefetch(lambda i: 6 // (2 - i), start=0, stop=4, depth=4, num_threads=2) as items:
        assert [next(items), next(items)] == [3, 6]
        with pytest.raises(ZeroDivisionError):
            next(items)
        assert list(items) == [-6]


def test_a_closed_one_gives_nothing_more() -> None:
    with Prefetch(lambda i: i, start=0, stop=5) as items:
        next(items)
    assert list(items) == []


def test_one_that_is_forgotten_ends_its_thread() -> None:
    before = set(threading.enumerate())
    items = Prefetch(lambda i: i, start=0, stop=10**9)
    assert next(items) == 0
    (thread,) = set(threading.enumerate()) - before
    del items
    thread.join(timeout=30)
    assert not thread.is_alive()


def test_what_was_taken_is_not_held() -> None:
    class Item:
        pass

    with Prefetch(lambda _: Item(), start=0, stop=4, depth=1) as items:
        first = weakref.ref(next(items))
        next(items)  # the thread has gone on to another item
        next(items)
        gc.collect()
        assert first() is None


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_is_told_to_make_its_own() -> None:
    with Prefetch(lambda i: i, start=0, stop=10) as items:
        next(items)
        with items._work._changed:  # as if its thread were at work at the fork
            child = os.fork()
            if not child:
                try:
                    next(items)
                except RuntimeError as error:
                    items.close()
                    os._exit(0 if "after the fork" in str(error) else 1)
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert list(items) == list(range(1, 10))


PROGRAM = """
import threading
from marin_train.data import loader
loader.GRACE_S = 0.1
entered = threading.Event()
def make(i):
    if i == 1:
        entered.set()
        {blocks}
    return i
items = loader.Prefetch(make, start=0, stop=5)
assert next(items) == 0
assert entered.wait(30)
{then}
"""


STUCK = "threading.Event().wait()"


@pytest.mark.parametrize("blocks", ["pass", STUCK], ids=["made", "stuck"])
@pytest.mark.parametrize("then", ["pass", "raise RuntimeError('the body')", "raise KeyboardInterrupt"])
def test_a_program_ends_whatever_its_threads_do(blocks: str, then: str) -> None:
    program = PROGRAM.format(blocks=blocks, then=then)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode != 0) == then.startswith("raise")
    assert done.stderr.count("Traceback") == then.startswith("raise")


def test_waiting_for_an_item_can_be_interrupted() -> None:
    program = PROGRAM.format(blocks=STUCK, then="print('waiting', flush=True)\nnext(items)")
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "waiting\n"
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)
    assert running.returncode == -signal.SIGINT
    assert "\nKeyboardInterrupt\n" in said
