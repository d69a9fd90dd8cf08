"""What a task is: an input, a chain of operations, an output. The planner writes these, a worker runs them.

Three unions, and nothing else passes between driver and worker: `TaskInput` (one a task), `StageOp` and `Output` (one a
stage, in its `StageSpec`). The names of the files that tasks exchange follow from the stage's home and the task's
number, so a plan knows them before anything has run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from marin_zephyr.columns import Aggregate
from marin_zephyr.formats.files import InputFile
from marin_zephyr.nodes import OnError, Op, ReadOptions, Row


@dataclass(frozen=True, kw_only=True)
class FilesInput:
    """Read these files, in this order."""

    files: tuple[InputFile, ...]
    options: ReadOptions


@dataclass(frozen=True, kw_only=True)
class RowsInput:
    """These rows, by value."""

    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class PartitionInput:
    """One partition of an exchange: its blocks in each of the files, in order."""

    files: tuple[Path, ...]
    partition: int


@dataclass(frozen=True, kw_only=True)
class SurvivorsInput:
    """The rows of one shard that a `distinct` has kept."""

    rows: Path
    decisions: tuple[Path, ...]
    shard: int


type TaskInput = FilesInput | RowsInput | PartitionInput | SurvivorsInput


def describe_input(task_input: TaskInput) -> str:
    """What a task reads, for people."""
    if isinstance(task_input, FilesInput):
        more = f" and {len(task_input.files) - 1} more" if len(task_input.files) > 1 else ""
        return task_input.files[0].url + more
    return type(task_input).__name__


@dataclass(frozen=True, kw_only=True)
class PickSurvivors:
    """Internal operation: of each digest keeps the first or the last position."""

    keep: str


@dataclass(frozen=True, kw_only=True)
class PartialAggregate:
    """Internal operation: one row a key of this shard."""

    keys: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]


@dataclass(frozen=True, kw_only=True)
class FinalAggregate:
    """Internal operation: one row a key of this partition, from partial ones."""

    keys: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Output: one part file a task."""

    path: str
    format: str
    compression: str | None


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Output: the rows, in a block file of the work directory."""


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Output: nothing but the counts."""


@dataclass(frozen=True, kw_only=True)
class KeptWithKeys:
    """Output: the rows in one block file, and their keys' digests scattered over another."""

    on: tuple[str, ...] | None
    num_partitions: int


@dataclass(frozen=True, kw_only=True)
class Scattered:
    """Output: each row in the partition of its key, or, with ``column``, in the partition that the column says."""

    on: tuple[str, ...] | None = None
    column: str | None = None
    num_partitions: int = 1


type Output = Parts | Kept | Counted | KeptWithKeys | Scattered
type StageOp = Op | PickSurvivors | PartialAggregate | FinalAggregate


@dataclass(frozen=True, kw_only=True)
class StageSpec:
    """What every task of a stage does; with a `TaskInput` it is a whole task."""

    name: str
    ops: tuple[StageOp, ...]
    labels: tuple[str, ...]
    """The operations for people. Made here: a worker knows a function by value, not where it was written."""
    output: Output
    on_error: OnError
    home: Path
    """Where tasks write: a directory of the work directory or, for a sink, hidden in the output directory."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage: its spec, one input a task, and what its result depends on."""

    spec: StageSpec
    inputs: tuple[TaskInput, ...]
    ingredients: dict[str, str]
    """Name of an ingredient -> its fingerprint, so that a later run can say what changed."""
    fingerprint: str


def rows_path(home: Path, task: int) -> Path:
    """The block file in which a task keeps its rows."""
    return home / f"rows-{task:05d}.blocks"


def blocks_path(home: Path, task: int) -> Path:
    """The block file through which a task feeds an exchange."""
    return home / f"exchange-{task:05d}.blocks"
