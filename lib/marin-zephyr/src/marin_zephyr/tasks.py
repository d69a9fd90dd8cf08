"""One task: read one input, run the chain of operations, write one output, and commit a record of it.

A task writes into its stage's staging directory under names that are its own, and then its record ``task-00003.json``,
by rename, as its last act: a task without a record has not happened, and its files are overwritten by the next try. A
record names each file with size and modification time, so that what lies there can be told from what was meant.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

from marin_zephyr.counters import RowCounts, check_chain, collecting
from marin_zephyr.durability import replace_file, writing
from marin_zephyr.formats import reader
from marin_zephyr.formats.rejects import Desk
from marin_zephyr.formats.writers import part_name, part_writer
from marin_zephyr.frames import batches_of_rows
from marin_zephyr.operations import KEY_SCHEMA, Frames, TaskContext, require, run_chain
from marin_zephyr.shuffle import BlockWriter, key_digests, partitions, read_blocks
from marin_zephyr.specs import (
    Counted,
    FilesInput,
    Kept,
    KeptWithKeys,
    PartitionInput,
    Parts,
    RowsInput,
    Scattered,
    StageSpec,
    SurvivorsInput,
    TaskInput,
    blocks_path,
    rows_path,
)


@dataclass(frozen=True, kw_only=True)
class TaskFile:
    """A file that a task wrote, relative to the stage's directory."""

    name: str
    size: int
    mtime_ns: int
    rows: int
    schema: str | None = None
    """For parquet: the Arrow schema, serialised, base64."""

    def is_in(self, directory: Path) -> bool:
        """Whether exactly this file lies there."""
        try:
            stat = (directory / self.name).stat()
        except FileNotFoundError:
            return False
        return (stat.st_size, stat.st_mtime_ns) == (self.size, self.mtime_ns)


@dataclass(frozen=True, kw_only=True)
class TaskRecord:
    """What a task did. It has happened exactly when this lies in its stage's directory."""

    index: int
    files: tuple[TaskFile, ...]
    operations: tuple[tuple[str, dict[str, int]], ...]
    counters: dict[str, int]
    absent: dict[str, bool]
    rejects: int

    @property
    def rows_in(self) -> int:
        """Rows that the task read, refused ones included."""
        return self.operations[0][1]["rows_in"]

    def save(self, home: Path) -> None:
        """Commits the record by rename."""
        replace_file(record_path(home, self.index), json.dumps(asdict(self), sort_keys=True).encode(), durable=False)

    @classmethod
    def load(cls, home: Path, index: int) -> TaskRecord | None:
        """The record of a task that has happened, or None."""
        try:
            data = json.loads(record_path(home, index).read_text())
        except (OSError, ValueError):  # never written, or cut by a power cut
            return None
        files = tuple(TaskFile(**f) for f in data.pop("files"))
        operations = tuple((name, counts) for name, counts in data.pop("operations"))
        return cls(files=files, operations=operations, **data)


def record_path(home: Path, index: int) -> Path:
    """Where a task's record lies."""
    return home / f"task-{index:05d}.json"


def run_task(spec: StageSpec, index: int, task_input: TaskInput) -> TaskRecord:
    """Runs one task to its committed record.

    Raises:
        ZephyrError: as readers, operations and writers raise it.
    """
    with writing(Path(spec.output.path) if isinstance(spec.output, Parts) else spec.home):
        desk = Desk(spec.on_error, spec.home / "rejects" / f"{spec.name}-{index:05d}.jsonl")
        context = TaskContext(desk)
        with collecting() as counters:
            frames = run_chain(_source(task_input, desk, context.counter("read")), spec.ops, spec.labels, context)
            files = _Output(spec, index, context).write(frames)
        desk.close()
    check_chain(context.counts)
    if desk.path.exists():
        files.append(task_file(desk.path, spec.home, rows=desk.count))
    record = TaskRecord(
        index=index,
        files=tuple(files),
        operations=tuple((name, counts.to_json()) for name, counts in context.counts),
        counters=counters,
        absent=context.absent,
        rejects=desk.count,
    )
    record.save(spec.home)
    return record


def _source(task_input: TaskInput, desk: Desk, counts: RowCounts) -> Frames:
    """The input as frames, counted as the operation ``read``."""
    match task_input:
        case FilesInput():
            frames = _read_files(task_input, desk)
        case RowsInput():
            frames = batches_of_rows(task_input.rows)
        case PartitionInput():
            frames = (frame for path in task_input.files for frame in read_blocks(path, task_input.partition))
        case SurvivorsInput():
            yield from _survivors(task_input, counts)
            return
    for frame in frames:
        counts.rows_in += frame.height
        counts.passed += frame.height
        yield frame
    counts.rows_in += desk.num_records
    counts.rejected += desk.num_records


def _read_files(task_input: FilesInput, desk: Desk) -> Frames:
    for file in task_input.files:
        yield from reader(file.format)(file, task_input.options, desk)


def _survivors(task_input: SurvivorsInput, counts: RowCounts) -> Frames:
    decided = [frame for path in task_input.decisions for frame in read_blocks(path, task_input.shard)]
    kept = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *(f.get_column("row").to_numpy() for f in decided)]))
    start = 0
    for frame in read_blocks(task_input.rows):
        low, high = np.searchsorted(kept, [start, start + frame.height])
        made = frame[kept[low:high] - start]
        counts.rows_in += frame.height
        counts.passed += made.height
        counts.consumed += frame.height - made.height
        start += frame.height
        yield made


class _Output:
    """Writes a task's rows where the stage's output says."""

    def __init__(self, spec: StageSpec, index: int, context: TaskContext) -> None:
        self._spec = spec
        self._index = index
        self._context = context

    def write(self, frames: Frames) -> list[TaskFile]:
        """Drains ``frames``; the files written."""
        output = self._spec.output
        match output:
            case Parts():
                return [self._part(frames, output)]
            case Kept():
                return [self._blocks(frames)]
            case Counted():
                for _ in frames:
                    pass
                return []
            case KeptWithKeys():
                return self._rows_and_keys(frames, output)
            case Scattered():
                return [self._scattered(frames, output)]

    def _part(self, frames: Frames, output: Parts) -> TaskFile:
        path = self._spec.home / part_name(self._index, output.format, output.compression)
        writer = part_writer(path, output.format, output.compression)
        rows = 0
        for frame in _nonempty(frames):
            writer.write(frame)
            rows += frame.height
        schema = writer.close()
        return task_file(path, self._spec.home, rows=rows, schema=schema)

    def _blocks(self, frames: Frames) -> TaskFile:
        writer = BlockWriter(rows_path(self._spec.home, self._index), 1)
        for frame in frames:
            writer.write(frame)
        writer.close()
        return task_file(rows_path(self._spec.home, self._index), self._spec.home, rows=writer.rows)

    def _rows_and_keys(self, frames: Frames, output: KeptWithKeys) -> list[TaskFile]:
        home = self._spec.home
        rows = BlockWriter(rows_path(home, self._index), 1)
        keys = BlockWriter(blocks_path(home, self._index), output.num_partitions)
        for frame in _nonempty(frames):
            frame = require(frame, output.on or (), self._context)
            digests = key_digests(frame, output.on)
            positions = {
                "high": digests[:, 0],
                "low": digests[:, 1],
                "shard": np.full(frame.height, self._index, dtype=np.int64),
                "row": np.arange(rows.rows, rows.rows + frame.height),
            }
            keys.scatter(pl.DataFrame(positions, schema=KEY_SCHEMA), partitions(digests, output.num_partitions))
            rows.write(frame)
        rows.close()
        keys.close()
        written = [(rows_path(home, self._index), rows.rows), (blocks_path(home, self._index), keys.rows)]
        return [task_file(path, home, rows=n) for path, n in written]

    def _scattered(self, frames: Frames, output: Scattered) -> TaskFile:
        path = blocks_path(self._spec.home, self._index)
        writer = BlockWriter(path, output.num_partitions)
        for frame in _nonempty(frames):
            if output.column is not None:
                where = frame.get_column(output.column).to_numpy()
            else:
                where = partitions(key_digests(frame, output.on), output.num_partitions)
            writer.scatter(frame, where)
        writer.close()
        return task_file(path, self._spec.home, rows=writer.rows)


def _nonempty(frames: Frames) -> Iterator[pl.DataFrame]:
    return (frame for frame in frames if frame.height)


def task_file(path: Path, home: Path, *, rows: int, schema: pa.Schema | None = None) -> TaskFile:
    """The entry of a file that has just been written."""
    stat = path.stat()
    text = None if schema is None else base64.b64encode(schema.serialize()).decode()
    name = path.relative_to(home).as_posix()
    return TaskFile(name=name, size=stat.st_size, mtime_ns=stat.st_mtime_ns, rows=rows, schema=text)


def schema_of(file: TaskFile) -> pa.Schema | None:
    """The Arrow schema of a part, if its format has one."""
    return None if file.schema is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(file.schema)))
