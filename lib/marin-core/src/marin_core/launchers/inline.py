"""The inline launcher: the body runs in the driver's own process and thread, one step at a time.

For debuggers and for very cheap steps. It cannot outlive the driver, so nothing is ever adopted, and it shares the
driver's memory, so a body that crashes the interpreter ends the run, and one that calls ``os._exit(0)`` ends it without
a word and with exit code 0. What a body starts in processes of its own is not ended with it. What the body prints goes
to the log and to stderr. A time limit interrupts what Python runs in the main thread; a body in another thread, or in C
code, is not interrupted by one.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TextIO

from marin_core.launchers import Job, JobStatus
from marin_core.launchers.worker import execute


class Timeout(BaseException):
    """A body ran past its time limit. No `Exception`, so that a body's own handlers let it through."""


class _Tee:
    """A text stream that writes to a log and to the terminal's error stream."""

    def __init__(self, *streams: TextIO) -> None:
        self._streams = streams
        self.encoding = "utf-8"

    def write(self, text: str) -> int:
        for stream in self._streams:
            stream.write(text)
        return len(text)

    def flush(self) -> None:
        for stream in self._streams:
            stream.flush()

    def isatty(self) -> bool:
        return False


@contextlib.contextmanager
def _limited(seconds: float | None) -> Generator[None]:
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: object) -> None:
        raise Timeout(f"the body ran past its {seconds:g} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class InlineLauncher:
    """Runs each body within `launch`."""

    blocking = True
    notifies = True

    def __init__(self) -> None:
        self._ended: dict[str, JobStatus] = {}

    def launch(self, job: Job, *, notify: Callable[[str], None]) -> None:
        """Runs the body to its end, then notifies."""
        with Path(job.log).open("a", encoding="utf-8", buffering=1) as log:
            stream = _Tee(log, sys.stderr)
            with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):  # type: ignore[type-var]
                code = execute(job.request, handle_interrupts=False, limited=_limited(job.timeout_seconds))
        self._ended[job.name] = JobStatus(running=False, exit_code=code)
        notify(job.name)

    def poll(self, name: str) -> JobStatus | None:
        """A job has ended as soon as it is known."""
        return self._ended.get(name)

    def cancel(self, name: str, *, grace: float = 3.0) -> None:
        """Nothing to do: no body runs while the driver is able to ask."""

    def adopt(self, name: str, *, notify: Callable[[str], None]) -> bool:
        """Never: a body dies with its driver."""
        return False
