"""Labels: functions and operations by name, for people: in plans, counts, reports and errors."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

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
from marin_zephyr.specs import KeyedOp


def label(fn: Any) -> str:
    """A function's name for people: ``clean``, ``<lambda> at experiment.py:12``."""
    if isinstance(fn, functools.partial):
        return label(fn.func)
    name = getattr(fn, "__qualname__", type(fn).__qualname__).rsplit("<locals>.", 1)[-1]
    code = getattr(fn, "__code__", None)
    if name == "<lambda>" and code is not None:
        return f"<lambda> at {Path(code.co_filename).name}:{code.co_firstlineno}"
    return name


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
