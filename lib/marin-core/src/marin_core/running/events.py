"""Events of a run: what other threads and signals tell its loop, and what is due at a moment of its own.

One queue, so that what is told in one order is handled in that order; and one wait, which ends at an event or at the
next moment that is due. A loop that waits here uses no processor and needs no sleep.
"""

import contextlib
import heapq
import itertools
import queue
import time
from typing import Any

Event = tuple[str, Any, Any]
"""Kind, subject, detail."""


class Events:
    """The events of one run; `put` may be called by any thread and by a signal's handler."""

    def __init__(self) -> None:
        self._told: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._due: list[tuple[float, int, Event]] = []
        self._count = itertools.count()

    def put(self, kind: str, subject: Any, detail: Any = None) -> None:
        """Something has happened."""
        self._told.put((kind, subject, detail))

    def empty(self) -> bool:
        """Whether nothing was told that has not been handled."""
        return self._told.empty()

    def later(self, seconds: float, kind: str, subject: Any = None) -> None:
        """An event of its own in so many seconds; for the loop's thread alone."""
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._count), (kind, subject, None)))

    def next(self) -> Event:
        """Waits for the next event. What is due comes before what was told, however much that is."""
        while True:
            left = self._due[0][0] - time.monotonic() if self._due else None
            if left is not None and left <= 0:
                return heapq.heappop(self._due)[2]
            with contextlib.suppress(queue.Empty):
                return self._told.get(timeout=left)
