"""Plans and operations as text for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from marin_zephyr.fingerprints import label
from marin_zephyr.nodes import (
    Explode,
    FilterExpr,
    FilterRows,
    FlatMap,
    Map,
    MapBatches,
    MapShards,
    RejectWhere,
    Sample,
    Select,
    Window,
)
from marin_zephyr.outputs import Parts
from marin_zephyr.specs import KeyedOp

if TYPE_CHECKING:
    from marin_zephyr.planning import Plan


def describe(op: Any) -> str:
    """An operation for people: ``map(clean)``, ``filter([(col("n")) > (dyn int: 3)])``."""
    if isinstance(op, KeyedOp):
        return op.label
    match op:
        case Map() | FlatMap() | FilterRows() | MapBatches():
            name = {Map: "map", FlatMap: "flat_map", FilterRows: "filter", MapBatches: "map_batches"}[type(op)]
            return f"{name}({label(op.fn)})"
        case FilterExpr():
            return f"filter({op.expr})"
        case RejectWhere():
            return f"reject({op.reason})"
        case Explode():
            return f"explode({op.column})"
        case Sample():
            return f"sample({op.fraction:g}, seed={op.seed})"
        case Window():
            return f"window({op.size}, {label(op.fn)})"
        case MapShards():
            return f"map_shards({label(op.fn)})"
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
