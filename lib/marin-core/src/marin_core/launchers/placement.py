"""Placement: a step's `Resources` as Ray counts them, and whether any node of a cluster could ever have them.

Ray calls what a node has by name: ``CPU``, ``GPU``, ``memory`` in bytes, ``accelerator_type:H100`` for the kind of a
GPU, ``TPU`` for chips, and ``TPU-v5p-16-head`` on the first host of a slice. A body is one process, so it is placed on
one node; a step on a slice of several hosts runs on the first of them and reaches the others itself.

See: https://docs.ray.io/en/latest/ray-core/scheduling/accelerators.html
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from marin_core.errors import UsageError
from marin_core.quantities import format_bytes
from marin_core.steps import Resources

_GPU = re.compile(r"(?P<kind>[a-z][a-z0-9]*(?:-[a-z0-9]+)*)(?::(?P<count>[1-9]\d*))?")
_TPU = re.compile(r"(?:tpu-)?(?P<kind>v\d+[a-z]*)-(?P<size>[1-9]\d*)")
_BY_CHIP = ("v5litepod", "v6e")
"""Generations whose slices are named by chips; the others' by cores, of which a chip has two."""
_KIND_SHARE = 0.001
"""How much of a node's ``accelerator_type`` a body takes: it is a mark of the node and is not used up."""


def request(resources: Resources) -> dict[str, float]:
    """What a body asks of one node: Ray's name of each resource -> amount.

    Raises:
        UsageError: the accelerators are of no known form.
    """
    cpus = resources.cpus
    wanted = {"CPU": cpus if cpus < 1 else math.ceil(cpus)}  # Ray has fractions below one only
    if resources.memory_bytes is not None:
        wanted["memory"] = resources.memory_bytes
    return wanted | (_accelerators(resources.accelerators.lower()) if resources.accelerators else {})


def _accelerators(text: str) -> dict[str, float]:
    if tpu := _TPU.fullmatch(text):
        kind, size = tpu["kind"].replace("v5e", "v5litepod"), int(tpu["size"])
        chips = size if kind in _BY_CHIP else math.ceil(size / 2)
        a_host = 8 if kind in _BY_CHIP and chips <= 8 else 4
        return {"TPU": min(chips, a_host), f"TPU-{kind}-{size}-head": 1}
    if gpu := _GPU.fullmatch(text):
        mark = {} if gpu["kind"] == "gpu" else {f"accelerator_type:{gpu['kind'].upper()}": _KIND_SHARE}
        return {"GPU": int(gpu["count"] or 1)} | mark
    raise UsageError(f"accelerators={text!r}: give a kind and a count as 'h100:8' or 'gpu:1', or a slice as 'v5p-8'")


def options(wanted: Mapping[str, float]) -> dict[str, Any]:
    """A request as the options of a Ray actor."""
    rest = dict(wanted)
    known = {"num_cpus": rest.pop("CPU"), "num_gpus": rest.pop("GPU", 0), "memory": rest.pop("memory", None)}
    return known | {"resources": rest}


def check(wanted: Mapping[str, float], nodes: Sequence[Mapping[str, Any]]) -> None:
    """Raises `UsageError` with the cluster's totals if no node, even an idle one, has what is asked for.

    Args:
        wanted: a `request`.
        nodes: as ``ray.nodes()`` lists them.
    """
    present = [node["Resources"] for node in nodes if node["Alive"]]
    if any(all(node.get(name, 0) >= amount for name, amount in wanted.items()) for node in present):
        return
    totals: dict[str, float] = {}
    for node in present:
        for name, amount in node.items():
            if not name.startswith(("node:", "object_store_memory")):
                totals[name] = totals.get(name, 0) + amount
    count = f"{len(present)} node{'s' if len(present) != 1 else ''}"
    raise UsageError(
        f"it asks for {_said(wanted)}, which no node of the Ray cluster can ever have; the cluster has {count} with "
        f"{_said(totals)} in all; ask for less in resources=, or add a node"
    )


def _said(amounts: Mapping[str, float]) -> str:
    parts = []
    for name, amount in sorted(amounts.items()):
        if name == "memory":
            parts.append(f"{format_bytes(int(amount))} of memory")
        elif name.startswith("accelerator_type:"):
            parts.append(name.removeprefix("accelerator_type:"))
        else:
            parts.append(f"{amount:g} {name}")
    return ", ".join(parts) or "nothing"
