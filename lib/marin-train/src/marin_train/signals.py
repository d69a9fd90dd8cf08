"""What asks a run to stop: a signal, or the notice that its machine will be taken away; heard between two steps.

A second signal acts as it would have without us. A notice is a file that appears or changes, at the path that
`MARIN_PREEMPTION_FILE` names, while the run goes on: what keeps watch on the machine writes it, and one that was there
before the run is of an earlier preemption.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

VARIABLE = "MARIN_PREEMPTION_FILE"

_LOOKS_SECONDS = 1.0
"""The least time between two looks at the notice, whose file may lie on a network."""


class StopRequest:
    """Whether the run was asked to stop."""

    def __init__(self) -> None:
        self._heard = threading.Event()
        self._notice = os.environ.get(VARIABLE)
        self._before, self._looked_at = self._state(), time.monotonic()

    def set(self) -> None:
        """Asks it to."""
        self._heard.set()

    def is_set(self) -> bool:
        """Whether a signal was heard, or a notice is there."""
        if not self._heard.is_set() and self._notice and time.monotonic() - self._looked_at >= _LOOKS_SECONDS:
            self._looked_at = time.monotonic()
            if self._state() not in (None, self._before):
                logger.warning("%s is there: saving after this step, then stopping", self._notice)
                self._heard.set()
        return self._heard.is_set()

    def _state(self) -> tuple[int, int] | None:
        """The file's identity and time of change; None where there is no file."""
        try:
            found = Path(self._notice).stat() if self._notice else None
        except OSError:
            return None
        return found and (found.st_ino, found.st_mtime_ns)


@contextmanager
def stop_signals() -> Generator[StopRequest]:
    """Hears the first SIGTERM or SIGINT, and a notice; a second signal acts as it would have without us."""
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # Python delivers signals to the main thread, and lets no other one listen
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def on_signal(number: int, frame: Any) -> None:
        logger.warning("%s: saving after this step, then stopping", signal.Signals(number).name)
        restore()
        stop.set()

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield stop
    finally:
        restore()
