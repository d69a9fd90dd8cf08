"""Configurations: one frozen dataclass a concern, complete and serialisable, free of jax.

A run is a `TrainConfig` and an output directory; nothing else changes the result. Importing this package costs no
jax, so that experiments can state, digest and plan a run without paying for the runtime. Every check that needs
only the configuration happens in ``__post_init__`` and names field, value and fix.
"""

import dataclasses
from typing import Any

from marin_train.configs.data import (
    Component,
    DataConfig,
    PackingConfig,
    ShuffleConfig,
    SimulatedEpoching,
    Stage,
)
from marin_train.configs.experts import MoEConfig
from marin_train.configs.model import ModelConfig, RopeScaling
from marin_train.configs.optimization import GuardConfig, OptimizerConfig, ScheduleConfig
from marin_train.configs.run import BatchStage, MeshConfig, TrainConfig

__all__ = [
    "BatchStage",
    "Component",
    "DataConfig",
    "GuardConfig",
    "MeshConfig",
    "MoEConfig",
    "ModelConfig",
    "OptimizerConfig",
    "PackingConfig",
    "RopeScaling",
    "ScheduleConfig",
    "ShuffleConfig",
    "SimulatedEpoching",
    "Stage",
    "TrainConfig",
    "to_dict",
]


def to_dict(config: Any) -> dict[str, Any]:
    """The configuration as plain values that JSON can hold."""
    return dataclasses.asdict(config)
