"""A step's routing as rows for people and services: figures over all layers, of each layer, and every expert's load.

A row of ``metrics.jsonl`` has the figures over layers at every step, by names like ``routing/max_vio``, and every
``log_every`` steps those of each layer, ``routing/<layer>/max_vio``; layers have their numbers in the model, from 0.
Loads are as many as a layer's experts times its layers and go to a file of their own, ``routing.jsonl``, in at most
`MAX_LOAD_ROWS` rows or so, evenly spread over the run: it stays small however long a run and however large its model.

Where layers differ, the worst one is told: one that is out of balance is lost in a mean over 48.

    routing.jsonl    {"step": 20, "first_layer": 0, "load": [[routes to each expert] of each layer]}
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from marin_train.configs import TrainConfig

FILE = "routing.jsonl"
"""Its name in a run's directory."""

MAX_LOAD_ROWS = 200
"""Rows of loads a run, beside the first and the last step's."""

PREFIX = "routing/"
"""How the names of all figures begin."""


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


OVER_LAYERS: dict[str, Callable[[Sequence[float]], float]] = {
    "max_vio": max,
    "load_entropy": min,
    "router_entropy": _mean,
    "dead": sum,
    "dropped_by_sender": _mean,
    "dropped_by_receiver": _mean,
    "padding": _mean,
    "bias_drift": max,
}
"""Each figure of a layer, as `marin_train.moe.metrics.RoutingMetrics` has them, and what is told of all layers."""


class RoutingRows:
    """What is told of a run's routing, and at which steps.

    Args:
        config: the run, of a model with experts.
    """

    def __init__(self, config: TrainConfig) -> None:
        assert config.model.moe is not None
        self._config, self._first_layer = config, config.model.moe.num_dense_layers

    def figures(self, step: int, routing: Any) -> dict[str, float | None]:
        """What a step's row has of its routing.

        Args:
            step: counted from 1.
            routing: a `marin_train.moe.metrics.RoutingMetrics`, on the host.
        """
        layers = {name: getattr(routing, name).tolist() for name in OVER_LAYERS}
        row = {PREFIX + name: _number(over(layers[name])) for name, over in OVER_LAYERS.items()}
        if self._is_due(step, every=self._config.log_every):
            for name, values in layers.items():
                for layer, value in enumerate(values, self._first_layer):
                    row[f"{PREFIX}{layer}/{name}"] = _number(value)
        return row

    def loads(self, step: int, routing: Any) -> Mapping[str, Any] | None:
        """The step's row of ``routing.jsonl``; None where it has none."""
        if not self._is_due(step, every=max(self._config.log_every, math.ceil(self._config.steps / MAX_LOAD_ROWS))):
            return None
        return {"step": step, "first_layer": self._first_layer, "load": routing.load.tolist()}

    def _is_due(self, step: int, *, every: int) -> bool:
        return step % every == 0 or step in (1, self._config.steps)


def _number(value: float) -> float | None:
    """What JSON has a word for."""
    return value if math.isfinite(value) else None
