"""How parameters are moved: the optimizer, its learning rate by step, and what guards a run against bad steps."""

from dataclasses import dataclass
from typing import Literal

from marin_train.configs.checks import COUNTED_ON_DEVICE, choices, fraction, no_effect, not_negative, positive
from marin_train.errors import ConfigError

_ADAM = ("beta1", "beta2", "eps")
_READ = {
    "adamw": _ADAM,
    "adamc": _ADAM,
    "lion": ("beta1", "beta2"),
    "adafactor": (),
    "muon": (*_ADAM, "adam_learning_rate", "momentum", "ns_steps"),
    "soap": (*_ADAM, "adam_learning_rate", "refresh_steps"),
    "adamh": (*_ADAM, "adam_learning_rate"),
    "muonh": (*_ADAM, "adam_learning_rate", "momentum", "ns_steps"),
}
"""What each rule reads beside the fields that all of them do."""
_READ_BY_SOME = frozenset(name for names in _READ.values() for name in names)


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The update rule. `marin_train.optim` says which roles of parameters each rule moves, and how the others are."""

    name: Literal["adamw", "adamc", "lion", "adafactor", "muon", "soap", "adamh", "muonh"] = "adamw"
    """The rule."""
    learning_rate: float = 3e-3
    """Peak of the schedule; under ``adamh`` and ``muonh`` the angle, in radians, by which a matrix turns."""
    adam_learning_rate: float | None = None
    """Peak for what the rule leaves to plain Adam (embeddings, gains, ...); None takes ``learning_rate``."""
    beta1: float = 0.9
    """Decay rate of the first moment; under ``lion`` the momentum's share in the direction."""
    beta2: float = 0.95
    """Decay rate of the second moment; under ``lion`` of the momentum."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.1
    """Relative to the learning rate; 0 under ``adamh`` and ``muonh``, which hold every matrix at its norm."""
    clip_norm: float | None = 1.0
    """Gradients are scaled to this norm, over all leaves together, where theirs is larger; None leaves them."""
    momentum: float = 0.95
    """Of ``muon`` and ``muonh``, in Nesterov's form."""
    ns_steps: int = 5
    """Newton-Schulz iterations of ``muon`` and ``muonh``."""
    refresh_steps: int = 10
    """``soap`` turns its eigenbases every so many updates."""
    cautious: bool = False
    """Whether the parts of a direction against the present gradient are left out (Liang et al. 2024)."""

    def __post_init__(self) -> None:
        choices(self)
        for name in ("learning_rate", "eps", "ns_steps", "refresh_steps"):
            positive(self, name, bits=COUNTED_ON_DEVICE)
        for name in ("clip_norm", "adam_learning_rate"):
            if getattr(self, name) is not None:
                positive(self, name)
        not_negative(self, "weight_decay")
        for name in ("beta1", "beta2", "momentum"):
            fraction(self, name)
        no_effect(self, _READ_BY_SOME - set(_READ[self.name]), when=f"under name={self.name!r}")
        if self.name in ("adamh", "muonh") and self.weight_decay:
            raise ConfigError(
                f"OptimizerConfig.weight_decay={self.weight_decay} changes nothing under name={self.name!r}, which "
                f"holds every matrix at its norm; set OptimizerConfig.weight_decay=0"
            )


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The learning rate over a run: a warm-up, what follows it, and a decay to ``final_ratio`` of the peak.

    ``wsd`` stays at the peak between the two; ``cosine`` and ``linear`` decay from the warm-up's end on, whatever
    ``decay`` is by default; ``inverse_sqrt`` falls with the root of the updates done, and decays from there;
    ``constant`` never decays.
    """

    name: Literal["wsd", "cosine", "linear", "inverse_sqrt", "constant"] = "wsd"
    """What follows the warm-up; see above."""
    warmup: float = 0.1
    """Up to 1 a share of the run's (of each cycle's) updates, above it their number."""
    decay: float = 0.2
    """As ``warmup``, counted from the end."""
    decay_shape: Literal["linear", "cosine", "sqrt"] = "linear"
    """How ``wsd`` and ``inverse_sqrt`` decay; ``sqrt`` is 1 minus the root of the share of the decay that is done."""
    final_ratio: float = 0.0
    """The rate that the decay ends at, over the peak."""
    cycles: int = 1
    """How often the whole is gone through, each time over an equal share of the run."""
    rewarmups: tuple[int, ...] = ()
    """Updates (counted from 0) at which the warm-up begins anew while everything else goes on."""

    def __post_init__(self) -> None:
        choices(self)
        for name in ("warmup", "decay"):
            not_negative(self, name)
            value = getattr(self, name)
            if value > 1 and value != round(value):
                raise ConfigError(
                    f"ScheduleConfig.{name}={value} is neither a share of the run, up to 1, nor a number of updates"
                )
        decays = self.name in ("wsd", "inverse_sqrt")
        if not decays:
            ignored = {"decay", "decay_shape"} | ({"final_ratio"} if self.name == "constant" else set())
            no_effect(self, ignored, when=f"under name={self.name!r}")
        if decays and self.warmup <= 1 and self.decay <= 1 and self.warmup + self.decay > 1:
            raise ConfigError(
                f"ScheduleConfig.warmup={self.warmup} and decay={self.decay} are fractions whose sum is at most 1"
            )
        not_negative(self, "final_ratio")
        positive(self, "cycles", bits=COUNTED_ON_DEVICE)
        if any(not 1 <= step <= 2**COUNTED_ON_DEVICE for step in self.rewarmups):
            raise ConfigError(
                f"ScheduleConfig.rewarmups={self.rewarmups} must each be at least 1, and at most 2**{COUNTED_ON_DEVICE}"
            )
        if not self.warmup:
            no_effect(self, {"rewarmups"}, when="without a warmup")


@dataclass(frozen=True, kw_only=True)
class GuardConfig:
    """What becomes of a step whose loss or gradient is out of line; decided on the device, before the update."""

    skip_sigma: float | None = None
    """A step whose loss or gradient norm lies so many standard deviations above the mean of the last ``window`` ones
    changes nothing but the step number; None never skips."""
    window: int = 128
    """Finite steps that ``skip_sigma`` measures against."""
    max_nonfinite: int = 0
    """So many steps in a row with an infinite or NaN loss or gradient change nothing; one more ends the run."""

    def __post_init__(self) -> None:
        if self.skip_sigma is not None:
            positive(self, "skip_sigma")
        else:
            no_effect(self, {"window"}, when="without skip_sigma")
        positive(self, "window", bits=COUNTED_ON_DEVICE)
        if self.skip_sigma is not None and self.window < 2:
            raise ConfigError(
                f"GuardConfig.window={self.window} must be at least 2 with a skip_sigma: one value has no deviation"
            )
        not_negative(self, "max_nonfinite", bits=COUNTED_ON_DEVICE)
