"""One task: read one input, run the chain of operations, write one output, and commit a record of it."""

from __future__ import annotations

import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from marin_zephyr.context import MEMORY, TaskContext
from marin_zephyr.counters import check_chain, check_written, collecting
from marin_zephyr.durability import writing
from marin_zephyr.formats.files import REJECTS
from marin_zephyr.formats.rejects import Desk
from marin_zephyr.operations import run_chain
from marin_zephyr.outputs import Kept, Parts
from marin_zephyr.records import TaskRecord, task_file
from marin_zephyr.specs import StageSpec, TaskInput

if TYPE_CHECKING:
    from marin_zephyr.backends.care import Care


def run_task(
    spec: StageSpec, index: int, task_input: TaskInput, *, memory: int = MEMORY, care: Care | None = None
) -> TaskRecord:
    """Runs one task to its committed record.

    Args:
        spec: what the stage's tasks do.
        index: the task's number.
        task_input: what this one reads.
        memory: bytes that it may hold in external merges.
        care: notes what it is at, if it has killed a worker before.

    Raises:
        ZephyrError: as readers, operations and writers raise it.
    """
    began = time.monotonic()
    with writing(Path(spec.output.path) if isinstance(spec.output, Parts) else spec.home):
        desk = Desk(spec.on_error, spec.home / REJECTS / f"{spec.name}-{index:05d}.jsonl")
        context = TaskContext(desk=desk, index=index, home=spec.home, memory=memory, care=care)
        with collecting() as counters:
            frames = task_input.frames(context, context.counter("read"))
            made = run_chain(frames, spec.ops, spec.labels, context)
            if care is not None:
                made = care.batches(made, "the output")
            files = spec.output.write(made, context)
            for generator in (made, frames):  # an operation may have had enough
                cast("Generator[Any]", generator).close()
        desk.close()
    check_chain(context.counts)
    if isinstance(spec.output, Parts) or (isinstance(spec.output, Kept) and not spec.output.aside):
        check_written(context.counts, sum(file.rows for file in files))
    if desk.path.exists():
        files.append(task_file(desk.path, spec.home, rows=desk.count))
    record = TaskRecord(
        index=index,
        files=tuple(files),
        operations=tuple((name, counts.to_json()) for name, counts in context.counts),
        counters=counters,
        absent=context.absent,
        rejects=desk.count,
        frequent=tuple(context.frequent),
        clashes=context.clashes,
        refused=desk.refused,
        seconds=round(time.monotonic() - began, 4),
    )
    record.save(spec.home)
    return record
