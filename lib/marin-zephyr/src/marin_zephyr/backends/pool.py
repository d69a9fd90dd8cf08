"""The driver's end of a worker: starting it, sending it tasks, reading its outcomes, and knowing how it ended.

A worker is a fresh interpreter with the driver's ``sys.path``. Nothing of the driver but one end of a socket (and, for
a careful try, the page of notes) is open in it.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING, Any

from marin_zephyr.backends.memory import Gauge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from marin_zephyr.specs import TaskInput

# Where memory is plenty: the allocator comes to these by itself once it has freed a block of that size; until then each
# buffer of some megabytes goes back to the system, and the next one is given page after page of zeros. Not in huge
# pages: to clear those costs more than the faults they save.
_PLENTY = 1 << 30
_FAST = {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=67108864"}
_BOOT = "import sys; sys.path[:] = {path!r}; from marin_zephyr.backends.worker import main; main({fd})"

# Where it is scarce, freed buffers go back to the system at once. By default Arrow's allocator and the C library's each
# keep what was the most that they ever held, and a worker would be killed for memory that nothing uses.
_FRUGAL = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}


@dataclass(frozen=True, kw_only=True)
class Death:
    """How a worker ended."""

    returncode: int
    held: int
    """Bytes it was last seen to hold."""
    ceiling: int | None
    """The ceiling it was killed for passing, in bytes; None if it died by itself or by another's hand."""

    def __str__(self) -> str:
        if self.returncode >= 0:
            return f"exited with code {self.returncode}"
        name = signal.Signals(-self.returncode).name
        return f"was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")


@dataclass(eq=False)
class Worker:
    """A worker process."""

    process: subprocess.Popen[bytes]
    connection: Connection
    gauge: Gauge
    stage: str | None = None
    """The stage whose functions it holds."""
    tasks: deque[int] = field(default_factory=deque)
    """What it was given and has not answered, oldest first: it is at work on the first."""
    began: float = 0.0
    """When it took up the first of its tasks, on the monotonic clock."""
    seconds: float = float("inf")
    """How long its last task took."""
    held: int = 0
    """Bytes it was last seen to hold."""
    passed: int | None = None
    """The ceiling that it has passed, for which it was killed."""

    def send(self, stage: str, blob: bytes, index: int, task_input: TaskInput, **terms: Any) -> None:
        """Gives it one more task; the stage's functions go ahead of its first."""
        if not self.tasks:
            self.began = time.monotonic()
        self.tasks.append(index)
        try:
            if self.stage != stage:
                self.connection.send_bytes(pickle.dumps(("spec", blob)))
                self.stage = stage
            self.connection.send_bytes(pickle.dumps(("task", index, task_input, terms)))
        except OSError:
            return  # it is dead; whoever waits for it sees the closed socket

    @property
    def is_dead(self) -> bool:
        """Whether it has ended, though its socket may be held open by a process that it started."""
        return self.process.poll() is not None

    def receive(self) -> tuple[str, Any]:
        """The outcome of its first task.

        Raises:
            EOFError, OSError: it is dead.
        """
        if self.is_dead and not self.connection.poll():
            raise EOFError
        outcome = pickle.loads(self.connection.recv_bytes())  # noqa: S301  from our own worker
        self.tasks.popleft()
        now = time.monotonic()
        self.seconds, self.began = now - self.began, now
        return outcome

    def watch(self, ceiling: int) -> None:
        """Kills it if it holds more than the ceiling; its socket closes, which whoever waits for it sees."""
        if self.passed is not None:
            return
        self.held = self.gauge.read() or self.held
        if self.held > ceiling:
            self.passed = ceiling
            self.process.kill()

    def end(self) -> Death:
        """Makes sure that it is gone."""
        self.connection.close()
        self.gauge.close()
        self.process.kill()
        return Death(returncode=self.process.wait(), held=self.held, ceiling=self.passed)


def start_worker(*, memory: int, descriptors: Sequence[int] = ()) -> Worker:
    """Starts a worker, and does not wait for it to be ready.

    Args:
        memory: bytes that it may hold, about: how its allocators deal with what is freed.
        descriptors: of files that stay open in it, under the same numbers.
    """
    ours, theirs = Pipe(duplex=True)
    fd = theirs.fileno()
    allocator = _FAST if memory >= _PLENTY else _FRUGAL
    process = subprocess.Popen(
        [sys.executable, "-c", _BOOT.format(path=sys.path, fd=fd)],
        env={**allocator, **os.environ, "POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=2,  # what a function prints must not mix with what the driver prints
        pass_fds=(fd, *descriptors),
    )
    theirs.close()
    return Worker(process, ours, Gauge(process.pid))
