"""How parameters are moved: the optimizer, its learning rate by step, and what guards a run against bad steps."""

from dataclasses import dataclass
from typing import Literal

from marin_train.configs.checks import fraction, not_negative, positive
from marin_train.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The update rule. `marin_train.optim` says which roles of parameters each rule moves, and how the others are."""

    name: Literal["adamw"] = "adamw"
    learning_rate: float = 3e-3
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float | None = 1.0
    """Gradients are scaled to this norm, over all leaves together, where theirs is larger; None leaves them."""

    def __post_init__(self) -> None:
        positive(self, "learning_rate")
        positive(self, "eps")
        if self.clip_norm is not None:
            positive(self, "clip_norm")
        not_negative(self, "weight_decay")
        fraction(self, "beta1")
        fraction(self, "beta2")


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Warm-up, stable, decay (WSD): fractions of the run's steps; linear to ``final_ratio`` of the peak."""

    name: Literal["wsd"] = "wsd"
    warmup: float = 0.1
    decay: float = 0.2
    final_ratio: float = 0.0

    def __post_init__(self) -> None:
        if not (self.warmup >= 0 and self.decay >= 0 and self.warmup + self.decay <= 1):
            raise ConfigError(
                f"ScheduleConfig.warmup={self.warmup} and decay={self.decay} are fractions whose sum is at most 1"
            )
        not_negative(self, "final_ratio")


@dataclass(frozen=True, kw_only=True)
class GuardConfig:
    """What becomes of a step whose loss or gradient is out of line; decided on the device, before the update."""

    skip_sigma: float | None = None
    """A step whose loss or gradient norm lies so many standard deviations above the mean of the last ``window`` ones
    changes nothing but the step number; None never skips."""
    window: int = 128
    max_nonfinite: int = 0
    """So many steps in a row with an infinite or NaN loss or gradient change nothing; one more ends the run."""

    def __post_init__(self) -> None:
        if self.skip_sigma is not None:
            positive(self, "skip_sigma")
        positive(self, "window")
        not_negative(self, "max_nonfinite")
