"""Records: what a task did, committed by rename as its last act.

A task writes into its stage's home under names that are its own, and then its record ``task-00003.json``: a task
without a record has not happened, and its files are overwritten by the next try. A record names each file with size and
modification time, so that what lies there can be told from what was meant.
"""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyarrow as pa

from marin_zephyr.durability import replace_file
from marin_zephyr.reporting.refusals import Refused


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
    absent: dict[str, dict[str, bool]]
    """Columns that no batch had, by the place in the chain that names them: see `context.TaskContext`."""
    rejects: int
    frequent: tuple[tuple[str, str, int], ...] = ()
    """Frequent keys of what the task sends through an exchange: digest, example, count (at least)."""
    clashes: dict[str, bool] = field(default_factory=dict)
    """Columns of a small right side of a join, and whether the left has them, too."""
    refused: Refused = field(default_factory=dict)
    """What was refused, by the kind of reason."""
    seconds: float = 0.0
    """How long the task took. It differs from run to run and enters no manifest."""

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
        frequent = tuple((digest, key, num) for digest, key, num in data.pop("frequent", ()))
        return cls(files=files, operations=operations, frequent=frequent, **data)


def record_path(home: Path, index: int) -> Path:
    """Where a task's record lies."""
    return home / f"task-{index:05d}.json"


def task_file(path: Path, home: Path, *, rows: int, schema: pa.Schema | None = None) -> TaskFile:
    """The entry of a file that has just been written."""
    stat = path.stat()
    text = None if schema is None else base64.b64encode(schema.serialize()).decode()
    name = path.relative_to(home).as_posix()
    return TaskFile(name=name, size=stat.st_size, mtime_ns=stat.st_mtime_ns, rows=rows, schema=text)


def schema_of(file: TaskFile) -> pa.Schema | None:
    """The Arrow schema of a part, if its format has one."""
    return None if file.schema is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(file.schema)))
