"""Prefetching: one thread makes the next items while the device computes; order and content are untouched.

One thread and not several: reading a batch is memory-mapped copying, far faster than a step, and on a two-core
machine every further thread is taken from the matrix multiplications.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self


class Prefetch[T](Iterator[T]):
    """Iterates ``make(start), ..., make(stop - 1)``, holding at most ``depth`` of them ahead.

    A context manager: leaving it drops what was not asked for and joins the thread, also when the body raised.
    What ``make`` raises comes out of ``next`` at the item it belongs to.

    Args:
        make: a pure function of the index; called in the background thread.
        start: the first index.
        stop: one past the last index.
        depth: items kept ready; 2 hides a slow read without holding much memory.
    """

    def __init__(self, make: Callable[[int], T], *, start: int, stop: int, depth: int = 2) -> None:
        self._make, self._next, self._stop, self._depth = make, start, stop, depth
        self._ready: deque[Future[T]] = deque()
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch")

    def __enter__(self) -> Self:
        self._fill()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __next__(self) -> T:
        self._fill()
        if not self._ready:
            raise StopIteration
        item = self._ready.popleft().result()
        self._fill()
        return item

    def _fill(self) -> None:
        while len(self._ready) < self._depth and self._next < self._stop:
            self._ready.append(self._pool.submit(self._make, self._next))
            self._next += 1
