"""A run's routing from its first step to its last, read back from what it wrote, and in a few numbers.

A capacity is applied only where experts lie on several devices, so that a run on one drops nothing. `overflow` says
what a capacity would have dropped: it is computed from loads over the whole batch, as if one group of devices shared
it.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from marin_train.errors import ConfigError
from marin_train.routing_rows import FILE, OVER_LAYERS, PREFIX
from marin_train.run_record import RECORD, SUMMARY
from marin_train.tracking import read_metrics

CAPACITY = 1.25
"""The room for which `RoutingHistory.summary` says what would be dropped, relative to perfect balance."""


def overflow(load: Int[np.ndarray, "*any experts"], *, capacity: float) -> Float[np.ndarray, "*any"]:
    """The share of routes that find no room where each expert has room for ``capacity`` times the mean load.

    Args:
        load: routes to each expert.
        capacity: 1 is room for perfect balance and no more.
    """
    routes = load.sum(axis=-1, keepdims=True)
    room = np.ceil(capacity * routes / load.shape[-1])
    return np.maximum(load - room, 0).sum(axis=-1) / np.maximum(routes[..., 0], 1)


@dataclass(frozen=True, kw_only=True)
class RoutingHistory:
    """What a run told of its routing.

    Attributes:
        run: its directory.
        experts: its `marin_train.configs.MoEConfig`, as in its record.
        rows: those of ``metrics.jsonl``.
        first_layer: the number of the first layer that has experts.
        load_steps: the steps whose loads were kept.
        loads: routes to each expert at those steps.
    """

    run: Path
    experts: dict[str, Any]
    rows: list[dict[str, Any]]
    first_layer: int
    load_steps: list[int]
    loads: Int[np.ndarray, "rows layers experts"]

    @property
    def layers(self) -> range:
        """The numbers of the layers that have experts."""
        return range(self.first_layer, self.first_layer + self.loads.shape[1])

    def over_layers(self, name: str) -> list[float | None]:
        """A figure over all layers, one a row."""
        return [row[PREFIX + name] for row in self.rows]

    def of_layer(self, layer: int, name: str) -> tuple[list[int], list[float | None]]:
        """The steps that tell a layer's figure, and the figure."""
        key = f"{PREFIX}{layer}/{name}"
        told = [row for row in self.rows if key in row]
        return [row["step"] for row in told], [row[key] for row in told]

    def summary(self) -> dict[str, Any]:
        """The run in numbers: means over its last tenth of steps, so far as it has come."""
        last = self.rows[-math.ceil(len(self.rows) / 10) :]
        recent = [i for i, step in enumerate(self.load_steps) if step >= last[0]["step"]]
        means = {name: _mean(row[PREFIX + name] for row in last) for name in OVER_LAYERS}
        return {
            "run": str(self.run),
            "balance": self.experts["balance"],
            "layers": len(self.layers),
            "num_experts": self.experts["num_experts"],
            "top_k": self.experts["top_k"],
            "step": last[-1]["step"],
            "over_steps": len(last),
            "loss": _mean(row["loss"] for row in last),
            **means,
            f"would_drop_at_{CAPACITY}": float(overflow(self.loads[recent or [-1]], capacity=CAPACITY).mean()),
        }


def read_routing(run: str | Path) -> RoutingHistory:
    """What a run told, finished or not.

    Args:
        run: its directory, or one that holds its ``metrics.jsonl``, ``routing.jsonl`` and record or summary.

    Raises:
        ConfigError: there is no run, it has not begun, or its model has no experts.
    """
    directory = Path(run)
    record = next((directory / name for name in (RECORD, SUMMARY) if (directory / name).is_file()), None)
    if record is None:
        raise ConfigError(f"{directory} holds no run: {RECORD} and {SUMMARY} are absent; name a run's directory")
    experts = json.loads(record.read_text())["config"]["model"].get("moe")
    if experts is None:
        raise ConfigError(
            f"{directory} is the run of a dense model, which routes nothing; name one of a model of experts"
        )
    found = [read_metrics(path) if (path := directory / name).is_file() else [] for name in ("metrics.jsonl", FILE)]
    rows, kept = found
    kept = [row for row in kept if rows and row["step"] <= rows[-1]["step"]]
    if not rows or not kept:
        raise ConfigError(f"{directory} has no step yet; wait for the first, which {FILE} has a row of")
    return RoutingHistory(
        run=directory,
        experts=experts,
        rows=rows,
        first_layer=kept[0]["first_layer"],
        load_steps=[row["step"] for row in kept],
        loads=np.array([row["load"] for row in kept]),
    )


def _mean(values: Any) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None
