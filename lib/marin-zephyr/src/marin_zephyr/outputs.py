"""The outputs of tasks that any plan may have: parts of a sink, kept rows, nothing but counts, and an exchange."""

from __future__ import annotations

from dataclasses import dataclass

from marin_zephyr.context import Frames, TaskContext, nonempty
from marin_zephyr.formats.writers import part_name, part_writer
from marin_zephyr.records import TaskFile, task_file
from marin_zephyr.reporting.skew import Sketch
from marin_zephyr.shuffle.blocks import BlockWriter
from marin_zephyr.shuffle.keys import key_digests, partitions
from marin_zephyr.specs import blocks_path, rows_path


@dataclass(frozen=True, kw_only=True)
class Parts:
    """One part file a task."""

    path: str
    format: str
    compression: str | None

    def write(self, frames: Frames, context: TaskContext) -> list[TaskFile]:
        """Writes the part under its final name, in the stage's home."""
        path = context.home / part_name(context.index, self.format, self.compression)
        writer = part_writer(path, self.format, self.compression)
        rows = 0
        for frame in nonempty(frames):
            writer.write(frame)
            rows += frame.height
        schema = writer.close()
        return [task_file(path, context.home, rows=rows, schema=schema)]


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The rows, in a block file of the work directory."""

    aside: bool = False
    """Whether they are no rows of the result, so that the operation before has given none."""

    def write(self, frames: Frames, context: TaskContext) -> list[TaskFile]:
        """Writes `rows_path`."""
        path = rows_path(context.home, context.index)
        writer = BlockWriter(path, 1)
        for frame in frames:
            writer.write(frame)
        writer.close()
        return [task_file(path, context.home, rows=writer.rows)]


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Nothing but the counts."""

    def write(self, frames: Frames, context: TaskContext) -> list[TaskFile]:
        """Drains the frames."""
        for _ in frames:
            pass
        return []


@dataclass(frozen=True, kw_only=True)
class Scattered:
    """Each row in the partition of its key or, with ``column``, in the partition that the column says."""

    on: tuple[str, ...] | None = None
    column: str | None = None
    num_partitions: int = 1
    watched: bool = False
    """Whether to look for hot keys; the record then names them."""

    def write(self, frames: Frames, context: TaskContext) -> list[TaskFile]:
        """Writes `blocks_path`."""
        path = blocks_path(context.home, context.index)
        writer = BlockWriter(path, self.num_partitions)
        sketch = Sketch(self.on or ())
        for frame in nonempty(frames):
            frame = context.require(frame, self.on or (), "exchange")
            if self.column is not None:
                where = frame.get_column(self.column).to_numpy()
            else:
                digests = key_digests(frame, self.on)
                where = partitions(digests, self.num_partitions)
                if self.watched:
                    sketch.add(frame, digests)
            writer.scatter(frame, where)
        writer.close()
        context.frequent += sketch.entries()
        return [task_file(path, context.home, rows=writer.rows)]
