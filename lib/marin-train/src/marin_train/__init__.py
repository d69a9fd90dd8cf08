"""Marin's trainer: language models in JAX, exact, restartable and close to the machine.

    from marin_train import TrainConfig, train, evaluate, generate, presets

    result = train(TrainConfig(model=presets.llama_nano(), ...), out_dir="runs/nano")
    evaluate(result.checkpoint, "stores/validation").bits_per_byte

Stating a run costs nothing: jax is imported when one is trained, evaluated or sampled.
"""

import importlib
from typing import TYPE_CHECKING, Any

from marin_train.configs import (
    BatchStage,
    Component,
    DataConfig,
    GuardConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    PackingConfig,
    RopeScaling,
    ScheduleConfig,
    ShuffleConfig,
    SimulatedEpoching,
    Stage,
    TrainConfig,
)
from marin_train.errors import (
    CheckpointError,
    ConfigError,
    DivergedError,
    ExhaustedError,
    InterruptedRunError,
    MarinTrainError,
    TokenStoreError,
)

if TYPE_CHECKING:
    from marin_train import presets
    from marin_train.evaluation import Evaluation, evaluate
    from marin_train.generation import generate
    from marin_train.loop import TrainResult, train

_LAZY = {
    "Evaluation": "evaluation",
    "evaluate": "evaluation",
    "generate": "generation",
    "TrainResult": "loop",
    "train": "loop",
}

__all__ = [
    "BatchStage",
    "CheckpointError",
    "Component",
    "ConfigError",
    "DataConfig",
    "DivergedError",
    "Evaluation",
    "ExhaustedError",
    "GuardConfig",
    "InterruptedRunError",
    "MarinTrainError",
    "MeshConfig",
    "ModelConfig",
    "OptimizerConfig",
    "PackingConfig",
    "RopeScaling",
    "ScheduleConfig",
    "ShuffleConfig",
    "SimulatedEpoching",
    "Stage",
    "TokenStoreError",
    "TrainConfig",
    "TrainResult",
    "evaluate",
    "generate",
    "presets",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "presets":
        return importlib.import_module("marin_train.presets")
    if name in _LAZY:
        return getattr(importlib.import_module(f"marin_train.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
