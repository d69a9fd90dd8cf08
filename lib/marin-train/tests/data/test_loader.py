import threading

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
