"""Interrupts: SIGINT, SIGTERM and SIGHUP as events of a run, and the end of what runs then.

The first signal is an event like any other: the loop takes it up between two others, asks the bodies to end and kills
those that have not after a grace. A second signal kills at once. From the first one on nothing is committed, which the
loop reads off `Interrupts.number`, so that a result that was ready in the same moment does not turn successful either.

A signal that the driver was told to ignore, as ``nohup`` and a shell's ``&`` do, stays ignored.
"""

import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager

from marin_core.errors import RunInterrupted
from marin_core.launchers import Launcher

GRACE = 3.0
"""Seconds that a body has between being asked to end and being killed."""
_DRAINED_WITHIN = 4.5
"""Seconds after which a run ends, whatever a launcher that cannot end a body says."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """What signals a run has got. Only the main thread gets any, so a run in another thread is never interrupted.

    Args:
        note: told of the first signal.
        kill: ends every body at once; called from a thread of its own, as it waits for them.
    """

    def __init__(self, *, note: Callable[[int], None], kill: Callable[[], None]) -> None:
        self.number: int | None = None
        self._raising = False
        self._note, self._kill = note, kill

    @contextmanager
    def caught(self) -> Generator[None]:
        """Signals come here while this lasts."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {s: signal.getsignal(s) for s in _SIGNALS}
        mine = [s for s, handler in before.items() if handler not in (signal.SIG_IGN, None)]  # None: set up in C
        for s in mine:
            signal.signal(s, self._handle)
        try:
            yield
        finally:
            for s in mine:
                signal.signal(s, before[s])

    @contextmanager
    def raised(self) -> Generator[None]:
        """While a body runs in the main thread itself, a signal leaves it by `RunInterrupted`, as does one that came
        before; otherwise nobody would take it up until the body has ended."""
        self._raising = True
        try:
            if self.number is not None:
                raise RunInterrupted(self.number)
            yield
        finally:
            self._raising = False

    def _handle(self, number: int, _frame: object) -> None:
        again, self.number = self.number is not None, self.number or number
        if again:
            threading.Thread(target=self._kill, daemon=True).start()
        else:
            self._note(number)
        if self._raising:
            raise RunInterrupted(number)


def end_all(launcher: Launcher, names: Iterable[str], *, grace: float) -> None:
    """Ends jobs side by side. Returns when they have ended, or when that takes too long to wait for."""
    enders = [threading.Thread(target=launcher.cancel, args=(n,), kwargs={"grace": grace}, daemon=True) for n in names]
    for ender in enders:
        ender.start()
    deadline = time.monotonic() + _DRAINED_WITHIN
    for ender in enders:
        ender.join(max(0.0, deadline - time.monotonic()))
