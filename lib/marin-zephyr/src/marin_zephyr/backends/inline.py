"""The inline backend: tasks run in this process, one after another, in order.

Nobody watches what they hold: external merges keep to the budget, the functions of the caller may do as they like.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from marin_zephyr.backends.memory import merge_memory
from marin_zephyr.records import TaskRecord
from marin_zephyr.specs import StageSpec, TaskInput
from marin_zephyr.tasks import run_task


class InlineBackend:
    """Runs tasks where the session is.

    Args:
        memory: bytes that the run may hold.
    """

    def __init__(self, *, memory: int = 4 << 30) -> None:
        self._memory = memory

    def run(self, spec: StageSpec, tasks: Sequence[tuple[int, TaskInput]]) -> Iterator[TaskRecord]:
        """See `marin_zephyr.backends.Backend.run`."""
        for index, task_input in tasks:
            yield run_task(spec, index, task_input, memory=merge_memory(self._memory))

    def close(self) -> None:
        """Nothing was started."""
