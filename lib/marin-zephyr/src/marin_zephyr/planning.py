"""From nodes to stages: operations between two exchanges are fused into one stage, and each stage is cut into tasks.

A stage is one input per task, a chain of operations, and an output. Keyed and positional work ends a stage: each such
node has a module in `marin_zephyr.keyed` or `marin_zephyr.positional` that knows which stages it becomes. What only a
reader can leave out (columns that nothing looks at, rows that a filter drops at once) is pushed down into it when a
stage is closed (`pushdown`).

Everything here is pure: it lists input files and computes fingerprints, and runs nothing. The number of tasks and
partitions follows from the inputs alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

from marin_zephyr.dataset import Dataset
from marin_zephyr.durability import writing
from marin_zephyr.errors import UsageError
from marin_zephyr.fingerprints import fingerprint, library_versions
from marin_zephyr.formats.files import STAGING, list_files, shards
from marin_zephyr.hub import files_of
from marin_zephyr.inputs import ArrowInput, FilesInput, PartitionInput, RowsInput
from marin_zephyr.nodes import (
    Apply,
    ArrowSource,
    Distinct,
    FileSource,
    GroupBy,
    HubSource,
    Join,
    Node,
    OnError,
    Reduce,
    Repartition,
    RowSource,
    Sink,
    Sort,
    Take,
    Union,
)
from marin_zephyr.outputs import Counted, Kept, Parts
from marin_zephyr.pushdown import push_down
from marin_zephyr.reporting.labels import describe
from marin_zephyr.shuffle.keys import PARTITION_FUNCTION
from marin_zephyr.specs import Output, Stage, StageOp, StageSpec, TaskInput

_PARTITION_BYTES = 64 << 20
_MAX_PARTITIONS = 256
_SCHEMA = 3

# Node -> the module whose ``expand(builder, node)`` opens its last stage. Imported when a plan has such a node.
_EXPANSIONS: dict[type, str] = {
    Union: "positional.unions",
    Repartition: "positional.repartitioning",
    Take: "positional.taking",
    Distinct: "keyed.distinct",
    GroupBy: "keyed.grouping",
    Reduce: "keyed.reducing",
    Join: "keyed.joining",
    Sort: "keyed.sorting",
}


@dataclass(frozen=True)
class Plan:
    """Stages in the order in which they run; the last one holds the result."""

    stages: tuple[Stage, ...]


def plan(dataset: Dataset, *, output: Kept | Counted | None, work_dir: Path) -> Plan:
    """Fuses a dataset into stages.

    Args:
        dataset: what to run.
        output: where the rows go if the dataset ends in no sink.
        work_dir: where intermediate stages live.

    Raises:
        InputError: inputs that are missing or empty.
        OutputError: the sink's path can be no directory's.
        UsageError: the sink would replace parts that the dataset is read from.
    """
    builder = Builder(work_dir)
    node = dataset.node
    if isinstance(node, Sink):
        # A function may change the working directory before the parts are published.
        out = Path(node.path).absolute()
        with writing(out):
            out.exists()  # a name that can be no file's
        output_of_sink = Parts(path=str(out), format=node.format, compression=node.compression)
        builder.close(builder.open(node.upstream), "write", output_of_sink)
        _check_apart(builder.stages, out)
    else:
        assert output is not None
        builder.close(builder.open(node), "rows" if isinstance(output, Kept) else "count", output)
    return Plan(tuple(builder.stages))


@dataclass(frozen=True, kw_only=True)
class Open:
    """A stage under construction: its inputs and the operations fused so far.

    Attributes:
        inputs: one a task.
        origin: the fingerprint of what the inputs hold.
        weight: estimated bytes of all inputs.
        on_error: what becomes of bad records and refused rows.
        max_bad: how many of them the stage bears.
        ops: the chain of operations.
    """

    inputs: tuple[TaskInput, ...]
    origin: str
    weight: int
    on_error: OnError
    max_bad: float | None = None
    ops: tuple[StageOp, ...] = ()


class Builder:
    """Opens and closes stages; keyed nodes use it to expand.

    Attributes:
        stages: those that are closed, in the order in which they run.
    """

    def __init__(self, work_dir: Path) -> None:
        self.stages: list[Stage] = []
        self._work_dir = work_dir

    def open(self, node: Node) -> Open:
        """The open stage whose rows are those of ``node``; closes earlier stages on the way."""
        match node:
            case FileSource():
                return _open_files(node)
            case RowSource():
                return _open_rows(node)
            case ArrowSource():
                return _open_arrow(node)
            case HubSource():
                return _open_files(files_of(node))
            case Apply():
                upstream = self.open(node.upstream)
                return replace(upstream, ops=(*upstream.ops, node.op))
        return import_module(f"marin_zephyr.{_EXPANSIONS[type(node)]}").expand(self, node)

    def close(self, stage: Open, name: str, output: Output, *, internal: bool = False) -> Stage:
        """Ends a stage with an output.

        Args:
            stage: the stage.
            name: what it does, for people and for its directory.
            output: where its rows go.
            internal: whether its rows are not the caller's.
        """
        labels = tuple(map(describe, stage.ops))
        ingredients = {
            "engine": fingerprint((_SCHEMA, PARTITION_FUNCTION, library_versions())),
            "inputs": stage.origin,
            **{f"{i}:{name}": fingerprint(op) for i, (name, op) in enumerate(zip(labels, stage.ops, strict=True))},
            "output": fingerprint(replace(output, path="") if isinstance(output, Parts) else output),
            "on_error": stage.on_error,
        }
        digest = fingerprint(list(ingredients.values()))  # a label holds a line number, which does not count
        for before in self.stages:
            if before.fingerprint == digest:  # one dataset may feed another twice
                return before
        numbered = f"{len(self.stages)}-{name}"
        if isinstance(output, Parts):
            home = Path(output.path).absolute() / f"{STAGING}{digest[:16]}"
        else:
            home = self._work_dir / f"{numbered}-{digest[:16]}"
        inputs, ops = push_down(stage.inputs, stage.ops, output)
        spec = StageSpec(
            name=numbered,
            ops=ops,
            labels=labels[len(labels) - len(ops) :],  # what is pushed down is taken from the front
            output=output,
            on_error=stage.on_error,
            home=home,
        )
        closed = Stage(
            spec=spec,
            inputs=inputs,
            ingredients=ingredients,
            fingerprint=digest,
            internal=internal,
            max_bad=stage.max_bad,
        )
        self.stages.append(closed)
        return closed


def num_partitions(stage: Open) -> int:
    """How many partitions an exchange of these rows has: one for every 64 MiB, and not too many."""
    return max(1, min(_MAX_PARTITIONS, -(-stage.weight // _PARTITION_BYTES)))


def partition_inputs(stage: Stage, num_partitions: int, *, weight: int) -> tuple[PartitionInput, ...]:
    """The inputs of the stage that reads what ``stage`` has scattered, of so many estimated bytes in all."""
    files, each = stage.blocks_files, weight // num_partitions
    return tuple(PartitionInput(files=files, partition=p, weight=each) for p in range(num_partitions))


def _check_apart(stages: list[Stage], out: Path) -> None:
    for task_input in (task_input for stage in stages for task_input in stage.inputs):
        for file in task_input.files if isinstance(task_input, FilesInput) else ():
            path = Path(file.url)
            if path.parent == out:  # parts among the inputs would be read as such by the next run
                raise UsageError(f"{out}: is read and written by one dataset; write to another directory")


def _open_files(source: FileSource) -> Open:
    files = list_files(source)
    groups = shards(files, source.options, shard_bytes=source.shard_bytes)
    return Open(
        inputs=tuple(FilesInput(files=group, options=source.options) for group in groups),
        origin=fingerprint(([[f.identity for f in group] for group in groups], source.options)),
        weight=sum(f.weight for f in files),
        on_error=source.on_error,
        max_bad=source.max_bad,
    )


def _open_rows(source: RowSource) -> Open:
    n, k = len(source.rows), source.num_shards
    inputs = tuple(RowsInput(rows=source.rows[n * i // k : n * (i + 1) // k]) for i in range(k))
    origin = fingerprint((source.rows, k))
    return Open(inputs=inputs, origin=origin, weight=sum(i.weight for i in inputs), on_error=source.on_error)


def _open_arrow(source: ArrowSource) -> Open:
    inputs = tuple(ArrowInput(stream=stream) for stream in source.streams)
    origin = fingerprint([hashlib.sha256(stream).hexdigest() for stream in source.streams])
    return Open(inputs=inputs, origin=origin, weight=sum(i.weight for i in inputs), on_error=source.on_error)
