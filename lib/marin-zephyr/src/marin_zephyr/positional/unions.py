"""Union: the rows of several datasets, one after the other.

Shards stay as they are, so nothing is moved. A stage has one chain of operations; so datasets to which operations have
been applied are kept as block files first, unless the same ones were applied to all. What is refused from here on is
refused as all agree; one that sets no `max_bad` takes that of the others.
"""

from __future__ import annotations

from dataclasses import replace

from marin_zephyr.errors import UsageError
from marin_zephyr.fingerprints import fingerprint
from marin_zephyr.inputs import PartitionInput
from marin_zephyr.nodes import Union
from marin_zephyr.outputs import Kept
from marin_zephyr.planning import Builder, Open


def expand(builder: Builder, node: Union) -> Open:
    """The shards of all, in order.

    Raises:
        UsageError: the datasets would treat bad records in different ways from here on.
    """
    parts = [builder.open(upstream) for upstream in node.upstreams]
    if len({fingerprint(part.ops) for part in parts}) > 1:
        parts = [_kept(builder, part) if part.ops else part for part in parts]
    policies = sorted({part.on_error for part in parts})
    if len(policies) > 1:
        raise UsageError(f"union: on_error is {' in one dataset and '.join(policies)} in another; give all the same")
    limits = {part.max_bad for part in parts if part.max_bad is not None}
    if len(limits) > 1:
        shown = " in one dataset and ".join(map(str, sorted(limits)))
        raise UsageError(f"union: max_bad is {shown} in another; give all the same")
    return replace(
        parts[0],
        max_bad=next(iter(limits), None),
        inputs=tuple(task_input for part in parts for task_input in part.inputs),
        origin=fingerprint([part.origin for part in parts]),
        weight=sum(part.weight for part in parts),
    )


def _kept(builder: Builder, part: Open) -> Open:
    stage = builder.close(part, "union-rows", Kept())
    inputs = tuple(
        PartitionInput(files=(rows,), partition=0, weight=task_input.weight)
        for rows, task_input in zip(stage.rows_files, part.inputs, strict=True)
    )
    return replace(part, inputs=inputs, origin=stage.fingerprint, ops=())
