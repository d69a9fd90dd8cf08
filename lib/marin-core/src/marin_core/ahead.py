"""Reading ahead: many small operations on a store side by side, because one by one a remote store takes hours.

A store 50 ms away answers 10,000 questions one after another in eight minutes and in eight seconds 64 at a time. What
is asked for is known before anything is decided, so `side_by_side` asks it all at once and gives the answers in the
order of the questions: how many travel together changes no answer, and no decision that rests on them.
"""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from marin_core.store import Store

_LOCAL = 8
_REMOTE = 96
_SAMPLE = 32
"""Operations on a local disk that are timed before threads are thought of."""
_WAITING = 0.5e-3
"""Seconds an operation above which a local disk (spinning, or a network's) is waited for, rather than computed with."""


def concurrency(store: Store) -> int:
    """Operations that a store serves side by side: its own hint, or else by whether it is a local disk."""
    return getattr(store, "concurrency", 0) or (_REMOTE if store.local is None else _LOCAL)


def side_by_side[T, R](store: Store, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """The results of ``work`` on each item, in the order of the items.

    Args:
        store: what ``work`` asks, which says how much at a time.
        work: called from several threads; it waits for the store more than it computes.
        items: what to call it with.

    Raises:
        BaseException: what ``work`` raised first; what had not begun by then is not asked.
    """
    todo = list(items)
    if store.local is None:
        return _threaded(store, work, todo)
    # A warm cache answers faster than threads take turns.
    results, times = [], [time.monotonic()]
    for item in todo[:_SAMPLE]:
        results.append(work(item))
        times.append(time.monotonic())
    rest, took = todo[_SAMPLE:], sorted(b - a for a, b in itertools.pairwise(times))
    if not rest or took[len(took) // 2] < _WAITING:  # the median: a busy machine holds up a few of them
        return results + [work(item) for item in rest]
    return results + _threaded(store, work, rest)


def _threaded[T, R](store: Store, work: Callable[[T], R], todo: list[T]) -> list[R]:
    threads = min(concurrency(store), len(todo))
    if threads <= 1:
        return [work(item) for item in todo]
    results: dict[int, R] = {}
    remaining = deque(enumerate(todo))  # popleft is atomic; a future for each item would cost more than a read

    def drain(_thread: int) -> None:
        while (taken := _next(remaining)) is not None:
            i, item = taken
            results[i] = work(item)

    with ThreadPoolExecutor(threads, thread_name_prefix="marin-ahead") as pool:
        try:
            list(pool.map(drain, range(threads)))
        finally:
            remaining.clear()  # after an error, or an interrupt, the threads end with what they have begun
    return [results[i] for i in range(len(todo))]


def _next[T](remaining: deque[T]) -> T | None:
    try:
        return remaining.popleft()
    except IndexError:
        return None
