"""The process launcher: a fresh Python for each step, in its own session, that dies when its driver dies.

The driver holds the write end of a pipe, the lifeline, for each body. The worker forks a watchdog before it does
anything else, which blocks on the read end. However the driver ends, SIGKILL included, the kernel closes the pipe,
the watchdog wakes and kills the whole process group, so that grandchildren (a body's own pool of workers) go as well.
A thread in the worker could not promise that: a body may hold the interpreter lock for minutes. When the body has
ended, the driver closes the pipe itself, which clears away whatever the body left behind.
"""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from marin_core.launchers import Job, JobStatus

LIFELINE = "MARIN_LIFELINE"
"""Environment variable with the number of the inherited read end."""


@dataclass
class _Running:
    process: subprocess.Popen[bytes]
    lifeline: int
    ended: threading.Event = field(default_factory=threading.Event)
    exit_code: int | None = None


class ProcessLauncher:
    """Runs each job as its own process group on this host."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Running] = {}

    def launch(self, job: Job, *, notify: Callable[[str], None]) -> None:
        """Starts the worker; a thread waits for it and notifies."""
        read_end, write_end = os.pipe()
        try:
            with Path(job.log).open("ab") as log:
                process = subprocess.Popen(
                    job.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=os.environ | {LIFELINE: str(read_end)},
                    pass_fds=(read_end,),
                    start_new_session=True,
                )
        except BaseException:
            os.close(write_end)
            raise
        finally:
            os.close(read_end)
        running = self._jobs[job.name] = _Running(process, write_end)
        threading.Thread(target=self._wait, args=(job.name, running, notify), daemon=True).start()

    def _wait(self, name: str, running: _Running, notify: Callable[[str], None]) -> None:
        running.exit_code = running.process.wait()
        os.close(running.lifeline)
        running.ended.set()
        notify(name)

    def poll(self, name: str) -> JobStatus | None:
        """The state of a job of this driver."""
        running = self._jobs.get(name)
        if running is None:
            return None
        return JobStatus(running=not running.ended.is_set(), exit_code=running.exit_code, pid=running.process.pid)

    def cancel(self, name: str, *, grace: float = 3.0) -> None:
        """SIGTERM to the worker, then SIGKILL to its whole group."""
        running = self._jobs.get(name)
        if running is None or running.ended.is_set():
            return
        running.process.terminate()
        if not running.ended.wait(grace):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.process.pid, signal.SIGKILL)
            running.ended.wait()

    def adopt(self, name: str, *, notify: Callable[[str], None]) -> bool:
        """Never: a body dies with its driver."""
        return False
