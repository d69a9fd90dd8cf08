"""Prefetching: the next items are made while the device computes; order and content are untouched.

One thread and not several, where items come from a disk: reading a batch is copying from mapped memory, far faster
than a step, and on a two-core machine every further thread is taken from the matrix multiplications. Where they come
from a network, making one is waiting, and several are waited for at once.

Invariant: nothing here outlives its use or keeps a program from ending. Leaving the ``with`` block, by whatever way,
stops the threads; so does losing the last reference; so does the end of the program. A thread that is stuck in
``make`` is waited for a few seconds and then left behind: threads are daemons, which nothing waits for.
"""

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

logger = logging.getLogger(__name__)

GRACE_S = 5.0
"""How long the end waits for a thread that is still making an item."""


class Prefetch[T](Iterator[T]):
    """Iterates ``make(start), ..., make(stop - 1)``, holding at most ``depth`` of them ahead.

    A context manager: leaving it drops what was not asked for and joins the threads, also when the body raised.
    What ``make`` raises comes out of ``next`` at the item it belongs to.

    Args:
        make: a pure function of the index; called in the background, by several threads if there are several.
        start: the first index.
        stop: one past the last index.
        depth: items kept ready; 2 hides a slow read without holding much memory.
        num_threads: how many items are made at a time.
    """

    def __init__(
        self, make: Callable[[int], T], *, start: int, stop: int, depth: int = 2, num_threads: int = 1
    ) -> None:
        self._work = _Work(make, start=start, stop=stop, depth=depth)
        self._num_threads, self._pid = num_threads, os.getpid()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        if not self._threads:
            # The threads know the work and not this object, which may thus be collected while they wait.
            self._threads = [
                threading.Thread(target=self._work.run, name=f"prefetch-{i}", daemon=True)
                for i in range(self._num_threads)
            ]
            _OPEN.add(self)
            # Last registered, first called: the threads end before what they use, such as a device's runtime.
            atexit.unregister(_close_all)
            atexit.register(_close_all)
            for thread in self._threads:
                thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if self._pid == os.getpid():
            self._work.close()

    def __next__(self) -> T:
        if self._pid != os.getpid():
            raise RuntimeError(
                f"this Prefetch belongs to process {self._pid}, whose threads its forked child {os.getpid()} does not "
                f"have; make a new one after the fork"
            )
        self.__enter__()
        return self._work.take()

    def close(self) -> None:
        """Stops the threads and waits for them, but no longer than `GRACE_S`; ``next`` then says that all is over."""
        if self._pid != os.getpid():
            return  # a lock may be held by a thread that exists in the parent alone
        self._work.close()
        for thread in self._threads:
            thread.join(GRACE_S)
            if thread.is_alive():
                logger.warning("%s is still at work after %g s; leaving it behind", thread.name, GRACE_S)


class _Work[T]:
    """What the threads share: indices to be made from ``_next`` on, and finished items from ``_taken`` on."""

    def __init__(self, make: Callable[[int], T], *, start: int, stop: int, depth: int) -> None:
        self._make, self._stop, self._depth = make, stop, depth
        self._next = self._taken = start
        self._done: dict[int, tuple[T | None, BaseException | None]] = {}
        # Reentrant, as conditions are by default: a collection may close this object in a thread that holds it.
        self._changed, self._closed = threading.Condition(), False

    def run(self) -> None:
        """Makes items until there are no more, or until it is closed."""
        while (index := self._claim()) is not None:
            try:
                made: tuple[T | None, BaseException | None] = self._make(index), None
            except BaseException as error:  # it is the consumer's, whatever it is
                made = None, error
            with self._changed:
                self._done[index] = made
                self._changed.notify_all()
            del made

    def _claim(self) -> int | None:
        """The next index, once there is room for its item."""
        with self._changed:
            while not self._closed and self._next < self._stop and self._next - self._taken >= self._depth:
                self._changed.wait()
            if self._closed or self._next >= self._stop:
                return None
            self._next += 1
            return self._next - 1

    def take(self) -> T:
        """The item that is next in order, once it is there."""
        with self._changed:
            while not self._closed and self._taken < self._stop and self._taken not in self._done:
                self._changed.wait()
            if self._closed or self._taken >= self._stop:
                raise StopIteration
            item, error = self._done.pop(self._taken)
            self._taken += 1
            self._changed.notify_all()
        if error is not None:
            raise error
        return item  # pyrefly: ignore[bad-return]

    def close(self) -> None:
        """Ends all waiting."""
        with self._changed:
            self._closed = True
            self._done.clear()
            self._changed.notify_all()


_OPEN: weakref.WeakSet[Prefetch] = weakref.WeakSet()


def _close_all() -> None:
    for prefetch in list(_OPEN):
        prefetch.close()
