"""A tracker told from a thread of its own, so that one that is slow, hangs or fails costs a run nothing but its rows.

Rows wait in a queue. One that does not move for so long that the queue fills, or that raises, is given up with one
warning, and the run goes on without it: `metrics.jsonl` has every row in any case.
"""

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from marin_train.tracking import Tracker

logger = logging.getLogger(__name__)

_ROOM = 10_000
"""Rows that wait at most."""

_LAST_SECONDS = 30.0
"""What a service has at the end of a run to take what still waits."""


class Background:
    """A `Tracker` around another one.

    Args:
        tracker: the one that is told.
        name: of it, for messages.
        room: rows that wait at most.
        last_seconds: how long `finish` waits for it.
    """

    def __init__(self, tracker: Tracker, *, name: str, room: int = _ROOM, last_seconds: float = _LAST_SECONDS) -> None:
        self._tracker, self._name, self._last_seconds = tracker, name, last_seconds
        self._calls: queue.Queue[Callable[[], None] | None] = queue.Queue(room)
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)

    def start(self, record: Mapping[str, Any], *, step: int) -> None:
        self._thread.start()
        self._put(partial(self._tracker.start, record, step=step))

    def log(self, row: Mapping[str, Any]) -> None:
        self._put(partial(self._tracker.log, row))

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._put(partial(self._tracker.finish, summary))
        self.close()

    def close(self) -> None:
        """Waits until all is told, but not for ever; also right after a run that did not finish."""
        if self._given_up.is_set() or not self._thread.is_alive():
            return
        self._put(None)
        self._thread.join(self._last_seconds)
        if self._thread.is_alive():
            self._give_up(f"it does not answer, {self._calls.qsize()} rows wait")

    def _put(self, call: Callable[[], None] | None) -> None:
        if self._given_up.is_set():
            return
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            self._give_up(f"it does not answer, {self._calls.qsize()} rows wait")

    def _work(self) -> None:
        while (call := self._calls.get()) is not None and not self._given_up.is_set():
            try:
                call()
            except Exception as error:  # whatever a client raises, the run is not its business
                self._give_up(f"{type(error).__name__}: {error}")

    def _give_up(self, reason: str) -> None:
        if not self._given_up.is_set():
            self._given_up.set()
            logger.warning("tracker %s is told no more of this run (%s); metrics.jsonl goes on", self._name, reason)
