"""The process backend: a pool of worker processes that live as long as the session.

Workers are fresh interpreters, not forks: nothing is inherited (no threads of Polars or Arrow caught in mid-flight, no
locks), and the running script is not imported again as ``multiprocessing`` would, so a script needs no ``__main__``
guard. They start while the first plan is made, and serve every stage after that.

Each has one socket to the driver. The driver sends the stage's functions once and then tasks, the heaviest first, so
that no long one is left for the end; whose tasks are over in no time is sent the next one before it asks. Whoever
dies, the other sees the socket close.

**Memory.** The run's budget is shared out: each worker may hold its share and no more. The driver looks at what the
busy ones hold while it waits, and kills one that passes its share.

**Death.** A task whose worker died is tried again alone: no other worker is there, the whole budget is its ceiling, and
it notes what it is at (`backends.care`). What follows if that worker dies too is decided in `backends.verdicts`: the
row that did it is left out, or the error names it. When a task fails, the workers that are busy are killed before the
error is raised: none goes on writing behind the caller's back.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from time import monotonic
from typing import TYPE_CHECKING

from marin_zephyr.backends.care import read_note, shared_page
from marin_zephyr.backends.memory import Gauge, merge_memory
from marin_zephyr.backends.pickling import dumps
from marin_zephyr.backends.pool import Worker, start_worker
from marin_zephyr.backends.verdicts import Trial
from marin_zephyr.reporting.quantities import shown_memory

if TYPE_CHECKING:  # what is imported here is waited for before the workers start
    from marin_zephyr.records import TaskRecord
    from marin_zephyr.specs import StageSpec, TaskInput

_log = logging.getLogger(__name__)

_STARTED_EARLY = 8
"""Workers that start before it is known how many tasks there are."""
_SHORT_SECONDS = 0.1
_LOOK_SECONDS = 0.05
_LOOK_CLOSELY_SECONDS = 0.01
_DRIVER_SHARE = 4
"""At most one part in so many of the budget is the driver's: what else its process holds is no matter of the run's."""


@dataclass
class _Stage:
    """What remains of the stage that is running."""

    spec: StageSpec
    blob: bytes
    inputs: dict[int, TaskInput]
    waiting: deque[int]
    trials: dict[int, Trial] = field(default_factory=dict)
    """Tasks that have killed a worker, and what is known about each."""

    @property
    def key(self) -> str:
        return str(self.spec.home)

    @property
    def alone_now(self) -> bool:
        """Whether a trial comes next. Where its outcome may end the run, it does not wait for all the other tasks."""
        return bool(self.trials) and (self.spec.on_error == "raise" or not self.waiting)


class ProcessBackend:
    """Runs tasks on worker processes.

    Args:
        workers: how many.
        memory: bytes that they and this process may hold together.
    """

    def __init__(self, workers: int, *, memory: int) -> None:
        self.num_retries = 0
        self._size = workers
        self._memory = memory
        share = memory // workers
        self._workers = [start_worker(memory=share) for _ in range(min(self._size, _STARTED_EARLY))]
        self._own = Gauge(os.getpid())
        self._looked = 0.0
        if not self._own.works:
            _log.warning("memory=%s is not enforced: this system has no /proc", shown_memory(memory))

    def run(self, spec: StageSpec, tasks: Sequence[tuple[int, TaskInput]]) -> Generator[TaskRecord]:
        """See `marin_zephyr.backends.Backend.run`."""
        heaviest_first = sorted(tasks, key=lambda task: -task[1].weight)
        stage = _Stage(spec, dumps(spec), dict(tasks), deque(index for index, _ in heaviest_first))
        try:
            while stage.waiting or stage.trials or self._busy():
                if not stage.alone_now:
                    self._hand_out(stage)
                elif not self._busy():
                    yield self._try_alone(stage)
                    continue
                yield from self._collect(stage)
        finally:
            self._end(self._busy())

    def close(self) -> None:
        """Ends the workers. They are idle, so nothing is lost."""
        self._end(list(self._workers))

    def _busy(self) -> list[Worker]:
        return [w for w in self._workers if w.tasks]

    def _end(self, workers: list[Worker]) -> None:
        for worker in workers:
            worker.end()
            self._workers.remove(worker)

    def _ceiling(self, num_workers: int) -> int:
        """What each of so many workers may hold."""
        return (self._memory - min(self._own.read(), self._memory // _DRIVER_SHARE)) // num_workers

    def _hand_out(self, stage: _Stage) -> None:
        """Gives each idle worker a task, starting workers while there is work for them."""
        while len(self._workers) < min(self._size, len(stage.waiting)):
            self._workers.append(start_worker(memory=self._memory // self._size))
        memory = merge_memory(self._memory // self._size)
        for ahead in (0, 1):  # nobody is sent a second task while another has none
            for worker in self._workers:
                # A task sent ahead cannot go elsewhere any more: near the end it might wait while others idle.
                few_left = len(stage.waiting) <= 2 * len(self._workers)
                if (
                    len(worker.tasks) == ahead
                    and stage.waiting
                    and not (ahead and (few_left or worker.seconds > _SHORT_SECONDS))
                ):
                    index = stage.waiting.popleft()
                    worker.send(stage.key, stage.blob, index, stage.inputs[index], memory=memory)

    def _collect(self, stage: _Stage) -> Iterator[TaskRecord]:
        """Waits until something has happened, with an eye on memory."""
        busy = {w.connection: w for w in self._busy()}
        ready = wait(list(busy), timeout=self._look(list(busy.values()), self._ceiling(self._size)))
        for worker in [busy[c] for c in ready] or [w for w in busy.values() if w.is_dead]:  # pyrefly: ignore
            try:
                outcome, value = worker.receive()
            except (EOFError, OSError):
                self._bury(worker, stage)
                continue
            if outcome == "failed":
                raise value
            yield value

    def _look(self, workers: list[Worker], ceiling: int) -> float:
        """Kills those that hold too much; the seconds until the next look."""
        left = self._looked - monotonic()
        if left > 0:
            return left
        for worker in workers:
            worker.watch(ceiling)
        close = any(w.held > ceiling // 2 for w in workers)
        seconds = _LOOK_CLOSELY_SECONDS if close else _LOOK_SECONDS
        self._looked = monotonic() + seconds
        return seconds

    def _bury(self, worker: Worker, stage: _Stage) -> None:
        """A worker died: the task that it was at gets a trial, the one behind it waits for another worker."""
        index, *behind = worker.tasks
        stage.waiting.extendleft(behind)
        self._workers.remove(worker)
        trial = Trial(f"task {index} of {stage.spec.name} ({stage.inputs[index].name})", stage.spec.on_error)
        stage.trials[index] = trial
        self.num_retries += 1
        _log.warning("%s; it will be tried again alone", trial.first(worker.end()))

    def _try_alone(self, stage: _Stage) -> TaskRecord:
        """Runs a task that has killed its worker, until it is done or the error is known."""
        index = next(iter(stage.trials))
        trial = stage.trials.pop(index)
        self._end(list(self._workers))
        while True:
            with shared_page() as page:
                worker = start_worker(memory=self._memory, descriptors=[page])
                self._workers.append(worker)
                ceiling = self._ceiling(1)
                terms = {"memory": merge_memory(self._memory), "care": (page, trial.condemned)}
                worker.send(stage.key, stage.blob, index, stage.inputs[index], **terms)
                while not wait([worker.connection], timeout=self._look([worker], ceiling)) and not worker.is_dead:
                    pass
                try:
                    outcome, value = worker.receive()
                except (EOFError, OSError):
                    self._workers.remove(worker)
                    trial.judge(worker.end(), read_note(page))
                    continue
            if outcome == "failed":
                raise value
            return value
