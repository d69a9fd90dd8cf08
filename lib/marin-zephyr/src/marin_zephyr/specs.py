"""What a task is: an input, a chain of operations, an output. The planner writes these, a worker runs them.

Three protocols, and nothing else passes between driver and worker: a `TaskInput` (one a task) gives frames, a `StageOp`
changes them, an `Output` writes them (operations and output are the stage's, in its `StageSpec`). Whoever adds a keyed
operation writes its own inputs, operations and outputs beside its expansion, and nothing here changes. The names of the
files that tasks exchange follow from the stage's home and the task's number, so a plan knows them before anything has
run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from marin_zephyr.nodes import OnError, Op

if TYPE_CHECKING:
    from marin_zephyr.context import Frames, TaskContext
    from marin_zephyr.counters import RowCounts
    from marin_zephyr.records import TaskFile


class TaskInput(Protocol):
    """Where a task's rows come from. A frozen dataclass: it is pickled and sent."""

    @property
    def weight(self) -> int:
        """Estimated bytes, so that heavy tasks are handed out first."""
        ...

    @property
    def name(self) -> str:
        """What it is, for errors."""
        ...

    def frames(self, context: TaskContext, counts: RowCounts) -> Frames:
        """The rows, counted as the operation ``read``: a generator, closed by a task that has had enough."""
        ...


@runtime_checkable
class KeyedOp(Protocol):
    """An operation that a keyed or positional node expands into; it brings its own implementation."""

    @property
    def label(self) -> str:
        """The operation for people."""
        ...

    def apply(self, frames: Frames, name: str, counts: RowCounts, context: TaskContext) -> Frames:
        """The frames changed, every row of them counted."""
        ...


type StageOp = Op | KeyedOp


class Output(Protocol):
    """Where a task's rows go. A frozen dataclass: it is pickled, sent and fingerprinted."""

    def write(self, frames: Frames, context: TaskContext) -> list[TaskFile]:
        """Drains ``frames`` into files under ``context.home``; the files written."""
        ...


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
    internal: bool = False
    """Whether its rows are not the caller's: keys and positions that an exchange sends about."""
    max_bad: float | None = None
    """How many records may be refused, or which share of them (see `Dataset.from_files`). It changes no byte."""

    @property
    def rows_files(self) -> tuple[Path, ...]:
        """The block files in which its tasks keep their rows, in order."""
        return tuple(rows_path(self.spec.home, task) for task in range(len(self.inputs)))

    @property
    def blocks_files(self) -> tuple[Path, ...]:
        """The block files through which its tasks feed an exchange, in order."""
        return tuple(blocks_path(self.spec.home, task) for task in range(len(self.inputs)))


_EXCHANGE = "exchange-"
HOME_MANIFEST = "manifest.json"
"""In the home of an intermediate stage: the manifest that makes it count."""


def rows_path(home: Path, task: int) -> Path:
    """The block file in which a task keeps its rows."""
    return home / f"rows-{task:05d}.blocks"


def blocks_path(home: Path, task: int) -> Path:
    """The block file through which a task feeds an exchange."""
    return home / f"{_EXCHANGE}{task:05d}.blocks"


def is_exchanged(name: str) -> bool:
    """Whether a file of a stage, named relative to its home, is one through which it feeds an exchange."""
    return name.startswith(_EXCHANGE)


def is_kept(name: str) -> bool:
    """Whether a file is one of `rows_path`, or of a run of it."""
    return name.startswith("rows-")
