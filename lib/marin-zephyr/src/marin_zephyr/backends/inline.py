"""The inline backend: tasks run in this process, one after another, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from marin_zephyr.records import TaskRecord
from marin_zephyr.specs import StageSpec, TaskInput
from marin_zephyr.tasks import run_task


class InlineBackend:
    """Runs tasks where the session is."""

    def run(self, spec: StageSpec, tasks: Sequence[tuple[int, TaskInput]]) -> Iterator[TaskRecord]:
        """See `marin_zephyr.backends.Backend.run`."""
        for index, task_input in tasks:
            yield run_task(spec, index, task_input)

    def close(self) -> None:
        """Nothing was started."""
