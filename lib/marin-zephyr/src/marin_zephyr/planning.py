"""From nodes to stages: operations between two exchanges are fused into one stage, and each stage is cut into tasks.

A stage is one input per task, a chain of operations, and an output. Keyed work ends a stage:

``distinct`` never moves a row. Its first stage keeps each shard's rows in a block file and sends only (digest, shard,
position) through the exchange; the second picks the survivors of each key and sends their positions back to their
shard; the third reads the kept rows in order and goes on. So rows keep their order, wide rows cost no shuffle, and one
hot key costs 32 bytes a row.

``group_by`` aggregates each shard first and sends one row a key and shard; the second stage combines them.

Everything here is pure: it lists input files and computes fingerprints, and runs nothing. The number of tasks and
partitions follows from the inputs alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from marin_zephyr.dataset import Dataset
from marin_zephyr.errors import UsageError
from marin_zephyr.fingerprints import fingerprint, label, library_versions
from marin_zephyr.formats.files import PART, STAGING, list_files, shards
from marin_zephyr.nodes import (
    Apply,
    Distinct,
    FileSource,
    FilterExpr,
    FilterRows,
    FlatMap,
    GroupBy,
    Map,
    MapBatches,
    Node,
    OnError,
    RejectWhere,
    RowSource,
    Select,
    Sink,
)
from marin_zephyr.specs import (
    Counted,
    FilesInput,
    FinalAggregate,
    Kept,
    KeptWithKeys,
    Output,
    PartialAggregate,
    PartitionInput,
    Parts,
    PickSurvivors,
    RowsInput,
    Scattered,
    Stage,
    StageOp,
    StageSpec,
    SurvivorsInput,
    TaskInput,
    blocks_path,
    rows_path,
)

_PARTITION_BYTES = 64 << 20
_MAX_PARTITIONS = 256
_BYTES_A_ROW = 256
_SCHEMA = 1


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
        UsageError: the sink would replace parts that the dataset is read from.
    """
    builder = _Builder(work_dir)
    node = dataset.node
    if isinstance(node, Sink):
        output_of_sink = Parts(path=node.path, format=node.format, compression=node.compression)
        builder.close(builder.open(node.upstream), "write", output_of_sink)
        _check_apart(builder.stages, Path(node.path).absolute())
    else:
        assert output is not None
        builder.close(builder.open(node), "rows" if isinstance(output, Kept) else "count", output)
    return Plan(tuple(builder.stages))


@dataclass(frozen=True, kw_only=True)
class _Open:
    """A stage under construction: its inputs and the operations fused so far."""

    inputs: tuple[TaskInput, ...]
    origin: str
    weight: int
    on_error: OnError
    ops: tuple[StageOp, ...] = ()


class _Builder:
    def __init__(self, work_dir: Path) -> None:
        self.stages: list[Stage] = []
        self._work_dir = work_dir

    def open(self, node: Node) -> _Open:
        """The open stage whose rows are those of ``node``; closes earlier stages on the way."""
        match node:
            case FileSource():
                return _open_files(node)
            case RowSource():
                return _open_rows(node)
            case Apply():
                upstream = self.open(node.upstream)
                return replace(upstream, ops=(*upstream.ops, node.op))
            case Distinct():
                return self._distinct(node)
            case GroupBy():
                return self._group_by(node)
        raise AssertionError(node)

    def close(self, stage: _Open, name: str, output: Output) -> Stage:
        """Ends a stage with an output."""
        labels = tuple(map(describe, stage.ops))
        ingredients = {
            "engine": fingerprint((_SCHEMA, library_versions())),
            "inputs": stage.origin,
            **{f"{i}:{name}": fingerprint(op) for i, (name, op) in enumerate(zip(labels, stage.ops, strict=True))},
            "output": fingerprint(replace(output, path="") if isinstance(output, Parts) else output),
            "on_error": stage.on_error,
        }
        digest = fingerprint(list(ingredients.values()))  # a label holds a line number, which does not count
        numbered = f"{len(self.stages)}-{name}"
        if isinstance(output, Parts):
            home = Path(output.path).absolute() / f"{STAGING}{digest[:16]}"
        else:
            home = self._work_dir / f"{numbered}-{digest[:16]}"
        spec = StageSpec(name=numbered, ops=stage.ops, labels=labels, output=output, on_error=stage.on_error, home=home)
        self.stages.append(Stage(spec=spec, inputs=stage.inputs, ingredients=ingredients, fingerprint=digest))
        return self.stages[-1]

    def _distinct(self, node: Distinct) -> _Open:
        upstream = self.open(node.upstream)
        num_shards, num_partitions = len(upstream.inputs), _num_partitions(upstream)
        keys = self.close(upstream, "distinct-keys", KeptWithKeys(on=node.on, num_partitions=num_partitions))
        exchange = _Open(
            inputs=_partitions(keys, num_shards, num_partitions),
            origin=keys.fingerprint,
            weight=upstream.weight,
            on_error=upstream.on_error,
            ops=(PickSurvivors(keep=node.keep),),
        )
        picks = self.close(exchange, "distinct-pick", Scattered(column="shard", num_partitions=num_shards))
        decisions = tuple(blocks_path(picks.spec.home, task) for task in range(num_partitions))
        inputs = tuple(
            SurvivorsInput(rows=rows_path(keys.spec.home, shard), decisions=decisions, shard=shard)
            for shard in range(num_shards)
        )
        return replace(upstream, inputs=inputs, origin=picks.fingerprint, ops=())

    def _group_by(self, node: GroupBy) -> _Open:
        upstream = self.open(node.upstream)
        num_shards, num_partitions = len(upstream.inputs), _num_partitions(upstream)
        partial = PartialAggregate(keys=node.keys, aggregates=node.aggregates)
        upstream = replace(upstream, ops=(*upstream.ops, partial))
        output = Scattered(on=node.keys, num_partitions=num_partitions)
        exchange = self.close(upstream, "group-partial", output)
        return _Open(
            inputs=_partitions(exchange, num_shards, num_partitions),
            origin=exchange.fingerprint,
            weight=upstream.weight,
            on_error=upstream.on_error,
            ops=(FinalAggregate(keys=node.keys, aggregates=node.aggregates),),
        )


def _check_apart(stages: list[Stage], out: Path) -> None:
    for task_input in (task_input for stage in stages for task_input in stage.inputs):
        for file in task_input.files if isinstance(task_input, FilesInput) else ():
            path = Path(file.url)
            if path.parent == out and PART.fullmatch(path.name):
                raise UsageError(f"{out}: is read and written by one dataset; write to another directory")


def describe(op: Any) -> str:
    """An operation for people: ``map(clean)``, ``filter([(col("n")) > (dyn int: 3)])``."""
    match op:
        case Map() | FlatMap() | FilterRows() | MapBatches():
            name = {Map: "map", FlatMap: "flat_map", FilterRows: "filter", MapBatches: "map_batches"}[type(op)]
            return f"{name}({label(op.fn)})"
        case FilterExpr():
            return f"filter({op.expr})"
        case RejectWhere():
            return f"reject({op.reason})"
        case PickSurvivors():
            return f"distinct(keep={op.keep})"
        case PartialAggregate() | FinalAggregate():
            return (
                f"{'partial' if isinstance(op, PartialAggregate) else 'combined'} aggregates of ({', '.join(op.keys)})"
            )
    return f"{'select' if isinstance(op, Select) else 'with_columns'}({', '.join(map(str, op.exprs))})"


def explain(plan: Plan) -> str:
    """A plan as text: one line a stage, one an operation."""
    lines = []
    for stage in plan.stages:
        output = stage.spec.output
        kind = type(output).__name__ if not isinstance(output, Parts) else f"{output.format} parts in {output.path}"
        inputs = type(stage.inputs[0]).__name__ if stage.inputs else "nothing"
        lines.append(f"{stage.spec.name}: {len(stage.inputs)} tasks, from {inputs} to {kind}")
        lines += [f"    {label}" for label in stage.spec.labels]
    return "\n".join(lines)


def _open_files(source: FileSource) -> _Open:
    files = list_files(source)
    groups = shards(files, source.options, shard_bytes=source.shard_bytes)
    return _Open(
        inputs=tuple(FilesInput(files=group, options=source.options) for group in groups),
        origin=fingerprint(([[f.identity for f in group] for group in groups], source.options)),
        weight=sum(f.weight for f in files),
        on_error=source.on_error,
    )


def _open_rows(source: RowSource) -> _Open:
    n, k = len(source.rows), source.num_shards
    inputs = tuple(RowsInput(rows=source.rows[n * i // k : n * (i + 1) // k]) for i in range(k))
    origin = fingerprint((source.rows, k))
    return _Open(inputs=inputs, origin=origin, weight=n * _BYTES_A_ROW, on_error=source.on_error)


def _num_partitions(stage: _Open) -> int:
    return max(1, min(_MAX_PARTITIONS, -(-stage.weight // _PARTITION_BYTES), len(stage.inputs)))


def _partitions(stage: Stage, num_tasks: int, num_partitions: int) -> tuple[PartitionInput, ...]:
    files = tuple(blocks_path(stage.spec.home, task) for task in range(num_tasks))
    return tuple(PartitionInput(files=files, partition=p) for p in range(num_partitions))
