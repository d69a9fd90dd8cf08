"""A signal asks a run to stop: it is heard between two steps, and a second one acts as it would have without us."""

import logging
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

logger = logging.getLogger(__name__)


@contextmanager
def stop_signals() -> Generator[threading.Event]:
    """Sets an event on the first SIGTERM or SIGINT; a second one acts as it would have without us."""
    stop = threading.Event()
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
