"""Backends: where tasks run. They differ in speed and in what a crash costs, never in a byte of the result.

- `inline`   in this process, one after another: for tests and debuggers
- `process`  on a pool of worker processes that live as long as the session
- `ray`      on the nodes of a Ray cluster that share a file system (extra ``ray``)

A backend runs the tasks of a stage in any order and yields each record when it is committed.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Protocol

from marin_zephyr.errors import UsageError

if TYPE_CHECKING:
    from marin_zephyr.records import TaskRecord
    from marin_zephyr.specs import StageSpec, TaskInput

NAMES = ("inline", "process", "ray")


class Backend(Protocol):
    """Runs tasks."""

    num_retries: int
    """Tasks that were tried again since the backend was made."""

    def run(self, spec: StageSpec, tasks: Sequence[tuple[int, TaskInput]]) -> Generator[TaskRecord]:
        """Runs the tasks (index, input) of a stage; yields a record for each, in any order.

        Raises:
            ZephyrError: the first failure. No task of the stage is running any more by then.
        """
        ...

    def close(self) -> None:
        """Ends whatever the backend has started."""
        ...


def make_backend(name: str, *, workers: int | None, memory: int | None, ray_address: str | None = None) -> Backend:
    """A backend by name. What takes time to start starts now, and is not waited for.

    Args:
        name: one of `NAMES`.
        workers: tasks at a time; may be None for ``ray``, which has the CPUs of its cluster.
        memory: bytes that a run may hold, all its processes together; may be None for ``ray``.
        ray_address: the cluster, as ``ray.init`` takes it.

    Raises:
        UsageError: no such backend.
        MissingExtraError: Ray is not installed.
    """
    if name == "ray":
        from marin_zephyr.backends.ray import RayBackend

        return RayBackend(ray_address, workers=workers, memory=memory)
    assert workers is not None
    assert memory is not None
    if name == "inline":
        from marin_zephyr.backends.inline import InlineBackend

        return InlineBackend(memory=memory)
    if name == "process":
        from marin_zephyr.backends.process import ProcessBackend

        return ProcessBackend(workers, memory=memory)
    raise UsageError(f"backend={name!r} is not one of {', '.join(NAMES)}")
