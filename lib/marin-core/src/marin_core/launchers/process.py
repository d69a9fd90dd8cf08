"""The process launcher: bodies in Pythons of their own, each its own session, that die when the driver dies.

The driver holds the write end of a pipe, the lifeline, for each worker. The worker forks a watchdog before it does
anything else, which blocks on the read end. However the driver ends, SIGKILL included, the kernel closes the pipe,
the watchdog wakes and kills the whole process group, so that grandchildren (a body's own pool of workers) go as well.
A thread in the worker could not promise that: a body may hold the interpreter lock for minutes. When a worker has
ended, the driver closes the pipe and kills the group itself, which clears away whatever its body left behind. Those who
left the group the worker kills as it ends (`descendants`, on Linux), and the driver when it ends a worker. Only the
descendants that left the group of a worker that was itself killed from outside are out of reach.

A Python takes a twentieth of a second to start, so a worker that a body left as good as new (`residue` has the rule)
takes the next one, if that is of the same run, asks for no accelerator, and would find the same environment variables,
working directory, ``sys.path`` and script in a fresh process. Sources stand still meanwhile: a step whose sources
were touched since the plan gets a fresh process, and the plan is older than every worker of its run, so no worker has
an older module loaded than the one it is asked to run.
"""

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from marin_core.launchers import Job, JobStatus
from marin_core.launchers.descendants import kill_descendants
from marin_core.launchers.worker import END

LIFELINE = "MARIN_LIFELINE"
"""Environment variable with the number of the inherited read end."""
CHANNEL = "MARIN_CHANNEL"
"""Environment variable with the number of the inherited socket, in a worker that may get more than one body."""


@dataclass(eq=False)
class _Body:
    name: str
    notify: Callable[[str], None]
    pid: int = 0
    ended: threading.Event = field(default_factory=threading.Event)
    exit_code: int | None = None


@dataclass(eq=False)
class _Worker:
    process: subprocess.Popen[bytes]
    lifeline: int
    key: Any
    channel: socket.socket | None
    body: _Body | None
    """The body it runs; None while it is idle."""
    reusable: bool = True
    """False once it was told to end."""
    threads: list[threading.Thread] = field(default_factory=list)


class ProcessLauncher:
    """Runs each job in a process group on this host. `close` ends the idle workers, as leaving a ``with`` does."""

    notifies = True

    def __init__(self) -> None:
        self._bodies: dict[str, _Body] = {}
        self._workers: set[_Worker] = set()
        self._lock = threading.Lock()
        """Held to tie a worker to a body or part them, so that what is meant for one body never meets the next."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def launch(self, job: Job, *, notify: Callable[[str], None]) -> None:
        """Hands the job to an idle worker, or starts one; threads wait for its end and notify."""
        body = self._bodies[job.name] = _Body(job.name, notify)
        key = _key_of(job)
        with self._lock:
            idle = [w for w in self._workers if w.body is None and w.reusable]
            worker = next((w for w in idle if key is not None and w.key == key), None)
            if worker is not None:
                worker.body, body.pid = body, worker.process.pid
                if _sent(worker, job):
                    return
                worker.body, worker.reusable = None, False
            # Whatever is idle now was made for other circumstances; one of them ends for each that is started.
            for other in idle[:1]:
                self._end(other)
            try:
                self._start(job, body, key)
            except BaseException:
                del self._bodies[job.name]
                raise

    def _start(self, job: Job, body: _Body, key: Any) -> None:
        ours, theirs = socket.socketpair() if key is not None else (None, None)
        read_end, write_end = map(_above_streams, os.pipe())
        inherited = {LIFELINE: read_end}
        if theirs is not None:
            inherited[CHANNEL] = _above_streams(theirs.detach())
        try:
            with Path(job.log).open("ab") as log:
                process = subprocess.Popen(
                    job.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=os.environ | job.environment | {k: str(v) for k, v in inherited.items()},
                    pass_fds=tuple(inherited.values()),
                    start_new_session=True,
                )
        except BaseException:
            os.close(write_end)
            if ours is not None:
                ours.close()
            raise
        finally:
            for descriptor in inherited.values():
                os.close(descriptor)
        body.pid = process.pid
        worker = _Worker(process, write_end, key, ours, body)
        self._workers.add(worker)
        for target in (self._wait, self._listen) if ours is not None else (self._wait,):
            worker.threads.append(threading.Thread(target=target, args=(worker,), daemon=True))
            worker.threads[-1].start()

    def _wait(self, worker: _Worker) -> None:
        """Waits for the end of the process, which is the end of the body it had, and ends what is left of its group:
        the watchdog may be dead. The group has its number for sure as long as the process is a zombie."""
        with contextlib.suppress(ChildProcessError, ProcessLookupError, PermissionError):
            os.waitid(os.P_PID, worker.process.pid, os.WEXITED | os.WNOWAIT)
            os.killpg(worker.process.pid, signal.SIGKILL)
        code = worker.process.wait()
        os.close(worker.lifeline)
        with self._lock:
            self._workers.discard(worker)
            worker.reusable = False
            body, worker.body = worker.body, None
        _finish(body, code)

    def _listen(self, worker: _Worker) -> None:
        """Waits for the word that a body has ended and its process has not."""
        assert worker.channel is not None
        with worker.channel as channel, contextlib.suppress(OSError):
            while channel.recv(1):
                with self._lock:
                    body, worker.body = worker.body, None
                _finish(body, 0)

    def poll(self, name: str) -> JobStatus | None:
        """The state of a job of this driver."""
        body = self._bodies.get(name)
        if body is None:
            return None
        return JobStatus(running=not body.ended.is_set(), exit_code=body.exit_code, pid=body.pid)

    def cancel(self, name: str, *, grace: float = 3.0) -> None:
        """SIGTERM to the worker, then SIGKILL to its whole group."""
        body = self._bodies.get(name)
        if body is None:
            return
        self._signal(body, lambda worker: worker.process.terminate())
        if not body.ended.wait(grace):
            self._signal(body, self._end)
            body.ended.wait()

    def _signal(self, body: _Body, send: Callable[[_Worker], None]) -> None:
        """Does something to the worker that runs this body, if there still is one; it gets no other after that."""
        with self._lock:
            worker = next((w for w in self._workers if w.body is body), None)
            if worker is not None:
                worker.reusable = False
                send(worker)

    def _end(self, worker: _Worker) -> None:
        """Kills a worker's group, and what its body has started outside of it. An idle worker has nothing left to
        write: that is why it was kept."""
        worker.reusable = False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if worker.body is not None:
                os.kill(worker.process.pid, signal.SIGSTOP)
                kill_descendants(worker.process.pid)
            os.killpg(worker.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Ends the idle workers. The launcher can be used on; what runs is not touched."""
        with self._lock:
            idle = [w for w in self._workers if w.body is None]
            for worker in idle:
                self._end(worker)
        for worker in idle:
            for thread in worker.threads:
                thread.join()

    def adopt(self, name: str, *, notify: Callable[[str], None]) -> bool:
        """Never: a body dies with its driver."""
        return False


def _finish(body: _Body | None, code: int) -> None:
    if body is not None:
        body.exit_code = code
        body.ended.set()
        body.notify(body.name)


def _sent(worker: _Worker, job: Job) -> bool:
    """Hands a worker its next body; False if it has died meanwhile."""
    assert worker.channel is not None
    try:
        worker.channel.sendall(b"".join(os.fsencode(path) + END for path in (job.request, job.log)))
    except OSError:
        return False
    return True


def _key_of(job: Job) -> Any:
    """What a worker and its next body must agree on; None for a body that takes a process for itself."""
    if not job.shareable or job.environment or job.resources.accelerators is not None:
        return None
    try:
        return job.run_id, job.script, os.getcwd(), tuple(sys.path), dict(os.environ)  # noqa: PTH109
    except FileNotFoundError:  # the working directory is gone
        return None


def _above_streams(descriptor: int) -> int:
    """The descriptor under a number above the standard streams', one of which a driver may have closed."""
    if descriptor > 2:
        return descriptor
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(descriptor)
    return moved
