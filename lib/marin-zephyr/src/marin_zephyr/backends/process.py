"""The process backend: a pool of worker processes that live as long as the session.

Workers are fresh interpreters, not forks: nothing is inherited (no threads of Polars or Arrow caught in mid-flight, no
locks), and the running script is not imported again as ``multiprocessing`` would, so a script needs no ``__main__``
guard. They start together on first use and serve every stage after that.

Each has one socket to the driver. The driver sends the stage's functions once and then one task at a time; whoever
dies, the other sees the socket close. A worker that dies takes one task with it, which is run once more on a new
worker; if that dies too, the task is at fault, and the error names it. When a task fails, the workers that are busy are
killed before the error is raised: none goes on writing behind the caller's back.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait

from marin_zephyr.backends.pickling import dumps
from marin_zephyr.errors import WorkerDiedError
from marin_zephyr.records import TaskRecord
from marin_zephyr.specs import StageSpec, TaskInput

_log = logging.getLogger(__name__)

_TRIES = 2
_BOOT = "import sys; sys.path[:] = {path!r}; from marin_zephyr.backends.worker import main; main({fd})"


@dataclass(eq=False)
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection
    spec: str | None = None
    """The stage whose functions it holds."""
    task: int | None = None
    """The task it is running."""

    def kill(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.wait()


@dataclass
class _Stage:
    """What remains of the stage that is running."""

    spec: StageSpec
    blob: bytes
    inputs: dict[int, TaskInput]
    waiting: deque[int]
    deaths: dict[int, int] = field(default_factory=dict)


class ProcessBackend:
    """Runs tasks on ``workers`` processes."""

    def __init__(self, workers: int) -> None:
        self._size = workers
        self._workers: list[_Worker] = []

    def run(self, spec: StageSpec, tasks: Sequence[tuple[int, TaskInput]]) -> Iterator[TaskRecord]:
        """See `marin_zephyr.backends.Backend.run`."""
        stage = _Stage(spec, dumps(spec), dict(tasks), deque(index for index, _ in tasks))
        try:
            while stage.waiting or any(w.task is not None for w in self._workers):
                self._hand_out(stage)
                yield from self._collect(stage)
        finally:
            for worker in [w for w in self._workers if w.task is not None]:
                worker.kill()
                self._workers.remove(worker)

    def close(self) -> None:
        """Closes the sockets; the workers exit."""
        for worker in self._workers:
            worker.connection.close()
        for worker in self._workers:
            try:
                worker.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                worker.kill()
        self._workers.clear()

    def _hand_out(self, stage: _Stage) -> None:
        """Gives each idle worker a task, starting workers while there is work for them."""
        while len(self._workers) < min(self._size, len(stage.waiting)):
            self._workers.append(_start())
        for worker in self._workers:
            if worker.task is not None or not stage.waiting:
                continue
            key = str(stage.spec.home)
            index = stage.waiting.popleft()
            worker.task = index
            try:
                if worker.spec != key:
                    worker.connection.send_bytes(pickle.dumps(("spec", key, stage.blob)))
                    worker.spec = key
                worker.connection.send_bytes(pickle.dumps(("task", key, index, stage.inputs[index])))
            except OSError:
                continue  # it is dead; `_collect` sees the closed socket

    def _collect(self, stage: _Stage) -> Iterator[TaskRecord]:
        """Waits for at least one outcome."""
        busy = {w.connection: w for w in self._workers if w.task is not None}
        for ready in wait(list(busy)):
            worker = busy[ready]  # pyrefly: ignore
            try:
                outcome, value = pickle.loads(worker.connection.recv_bytes())  # noqa: S301  from our own worker
            except (EOFError, OSError):
                self._bury(worker, stage)
                continue
            worker.task = None
            if outcome == "failed":
                raise value
            yield value

    def _bury(self, worker: _Worker, stage: _Stage) -> None:
        """A worker died: its task waits for another, unless it has killed two."""
        index = worker.task
        assert index is not None
        worker.kill()
        self._workers.remove(worker)
        how = _ending(worker.process.returncode)
        stage.deaths[index] = stage.deaths.get(index, 0) + 1
        task = f"task {index} of {stage.spec.name} ({stage.inputs[index].name})"
        if stage.deaths[index] >= _TRIES:
            fix = "give it less at a time (shard_bytes), or look at its input"
            raise WorkerDiedError(f"{task}: its worker {how}, {_TRIES} times; {fix}")
        _log.warning("%s: its worker %s; trying once more", task, how)
        stage.waiting.appendleft(index)


def _start() -> _Worker:
    ours, theirs = Pipe(duplex=True)
    fd = theirs.fileno()
    process = subprocess.Popen(
        [sys.executable, "-c", _BOOT.format(path=sys.path, fd=fd)],
        env={**os.environ, "POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=2,  # what a function prints must not mix with what the driver prints
        pass_fds=(fd,),
    )
    theirs.close()
    return _Worker(process, ours)


def _ending(returncode: int) -> str:
    if returncode >= 0:
        return f"exited with code {returncode}"
    name = signal.Signals(-returncode).name
    return f"was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
