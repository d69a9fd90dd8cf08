"""Configurations: one frozen dataclass a concern, complete and serialisable, free of jax.

A run is a `TrainConfig` and an output directory; nothing else changes the result. Importing this module costs no
jax, so that experiments can state, digest and plan a run without paying for the runtime. Every check that needs
only the configuration happens in ``__post_init__`` and names field, value and fix.
"""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from marin_train.errors import ConfigError
from marin_train.policy import by_name


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer. ``head_dim`` is free: it need not be ``hidden_dim / num_heads``."""

    vocab_size: int
    hidden_dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_dim: int
    max_seq_len: int
    family: str = "llama"
    rope_theta: float = 500_000.0
    norm_eps: float = 1e-5
    tie_embeddings: bool = False

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_dim",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "mlp_dim",
            "max_seq_len",
        ):
            _positive(self, name)
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(f"ModelConfig.num_kv_heads={self.num_kv_heads} must divide num_heads={self.num_heads}")
        if self.head_dim % 2:
            raise ConfigError(f"ModelConfig.head_dim={self.head_dim} must be even: rotary embeddings turn pairs")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW (Loshchilov and Hutter 2019); decay touches the matrices and the head, not gains and embeddings."""

    name: Literal["adamw"] = "adamw"
    learning_rate: float = 3e-3
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        _positive(self, "learning_rate")
        _positive(self, "eps")
        _positive(self, "clip_norm")
        _not_negative(self, "weight_decay")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"OptimizerConfig.{name}={getattr(self, name)} must be at least 0 and below 1")


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
        _not_negative(self, "final_ratio")


@dataclass(frozen=True, kw_only=True)
class Component:
    """One token store in a mixture. ``name`` keys its permutation, so it outlives a move of ``path``."""

    name: str
    path: str
    """A directory, or any URL that fsspec knows."""
    weight: float = 1.0
    """Its share of the draws relative to the others', until a stage says otherwise; 0 while it waits for one."""
    max_epochs: float | None = None
    """How often it may be gone through; once it has been, its share goes to the others."""
    validation: int = 0
    """Sequences held out: never trained on, whatever the seed, and asked for by ``Mixture.validation``."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError(f"Component.name of {self.path!r} is empty; its order is keyed by its name, so give one")
        _not_negative(self, "weight")
        _not_negative(self, "validation")
        if self.weight == math.inf:
            raise ConfigError(f"Component.weight={self.weight} of {self.name!r} must be finite")
        if self.max_epochs is not None:
            _positive(self, "max_epochs")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Weights from step ``start`` on (steps are counted from 0); a component that is not named has weight 0."""

    start: int
    weights: dict[str, float]

    def __post_init__(self) -> None:
        _positive(self, "start")
        for name, weight in self.weights.items():
            if not 0 <= weight < math.inf:
                raise ConfigError(
                    f"Stage.weights[{name!r}]={weight} from step {self.start} on must be finite and not negative"
                )
        if not any(self.weights.values()):
            raise ConfigError(
                f"Stage.weights from step {self.start} on has no weight above 0; there would be nothing to train on"
            )


@dataclass(frozen=True, kw_only=True)
class SimulatedEpoching:
    """A small run repeats its data as often as the large run it stands for will.

    Every component is cut to ``experiment_tokens / target_tokens`` of its sequences.
    """

    experiment_tokens: int
    target_tokens: int

    def __post_init__(self) -> None:
        _positive(self, "experiment_tokens")
        _positive(self, "target_tokens")
        if self.experiment_tokens > self.target_tokens:
            raise ConfigError(
                f"SimulatedEpoching.experiment_tokens={self.experiment_tokens} exceeds "
                f"target_tokens={self.target_tokens}; there is nothing to simulate"
            )


@dataclass(frozen=True, kw_only=True)
class PackingConfig:
    """How documents become sequences.

    ``contiguous`` cuts the stream of all documents; ``documents`` keeps documents whole and apart (segment ids), as
    many to a sequence as fit in the store's order.
    """

    kind: Literal["contiguous", "documents"] = "contiguous"
    overlong: Literal["split", "left", "right", "drop"] = "split"
    """Under ``documents``: what becomes of one longer than a sequence.

    It is split, every prediction kept; or cut, ``left`` keeping its beginning and ``right`` its end; or dropped.
    """
    reset_positions: bool = False
    """Whether positions begin anew with each document."""

    def __post_init__(self) -> None:
        if self.kind == "contiguous" and self.overlong != "split":
            raise ConfigError(
                f"PackingConfig.overlong={self.overlong!r} changes nothing under kind='contiguous', which cuts every "
                f"document; set PackingConfig.kind='documents', or leave it out"
            )


@dataclass(frozen=True, kw_only=True)
class ShuffleConfig:
    """The order within an epoch: a permutation of all sequences, or of blocks of them for stores that are far away.

    With ``block`` sequences a block, blocks are permuted, then the sequences of ``window`` neighbouring blocks.
    """

    block: int = 0
    window: int = 64

    def __post_init__(self) -> None:
        _not_negative(self, "block")
        _positive(self, "window")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is trained on: a weighted mixture of token stores, cut into sequences of ``seq_len`` predicted tokens."""

    components: tuple[Component, ...]
    seq_len: int
    seed: int = 0
    stages: tuple[Stage, ...] = ()
    packing: PackingConfig = field(default_factory=PackingConfig)
    shuffle: ShuffleConfig = field(default_factory=ShuffleConfig)
    simulated_epoching: SimulatedEpoching | None = None

    def __post_init__(self) -> None:
        _positive(self, "seq_len")
        names = [c.name for c in self.components]
        if not names:
            raise ConfigError("DataConfig.components is empty; name at least one token store")
        if len(set(names)) != len(names):
            raise ConfigError(f"DataConfig.components has a name twice: {sorted(names)}")
        if not any(c.weight for c in self.components):
            raise ConfigError(
                "DataConfig.components has no weight above 0; the first step would have nothing to train on"
            )
        for before, stage in zip((None, *self.stages), self.stages, strict=False):
            if before is not None and stage.start <= before.start:
                raise ConfigError(
                    f"DataConfig.stages: start={stage.start} follows start={before.start}; each stage begins after the "
                    f"one before it"
                )
            if unknown := sorted(stage.weights.keys() - set(names)):
                raise ConfigError(
                    f"DataConfig.stages: the weights from step {stage.start} on name {unknown[0]!r}, which is no "
                    f"component; components are {', '.join(names)}"
                )


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Devices by axis. ``data=-1`` takes all that are there; the batch does not depend on it."""

    data: int = -1


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything that decides a run's result, and its cadence (which does not)."""

    model: ModelConfig
    data: DataConfig
    steps: int
    batch_size: int
    """Sequences a step, over all devices."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    seed: int = 0
    z_loss: float = 0.0
    policy: str = "auto"
    """``auto`` measures the machine once and records what it chose; or a policy's name, to pin it."""
    checkpoint_seconds: float = 30.0
    checkpoint_steps: int = 0
    """A permanent checkpoint every so many steps; 0 keeps only the last ones and the final one."""
    log_every: int = 10

    def __post_init__(self) -> None:
        _positive(self, "steps")
        _positive(self, "batch_size")
        _positive(self, "log_every")
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"TrainConfig.seed={self.seed} must lie between 0 and 2**32 - 1")
        if self.policy != "auto":
            by_name(self.policy)
        for name in ("z_loss", "checkpoint_seconds", "checkpoint_steps"):
            _not_negative(self, name)
        if self.data.seq_len > self.model.max_seq_len:
            raise ConfigError(
                f"DataConfig.seq_len={self.data.seq_len} exceeds ModelConfig.max_seq_len={self.model.max_seq_len}"
            )


def to_dict(config: Any) -> dict[str, Any]:
    """The configuration as plain values that JSON can hold."""
    return dataclasses.asdict(config)


def _positive(config: Any, name: str) -> None:
    value = getattr(config, name)
    if not 0 < value < math.inf:
        raise ConfigError(f"{_told(config, name)} must be positive and finite")
    _countable(config, name)


def _not_negative(config: Any, name: str) -> None:
    value = getattr(config, name)
    if not value >= 0:
        raise ConfigError(f"{_told(config, name)} must not be negative")
    _countable(config, name)


def _countable(config: Any, name: str) -> None:
    """Refuses a count that 64 bits do not hold with room for sums."""
    value = getattr(config, name)
    if isinstance(value, int) and value > 2**62:
        raise ConfigError(f"{_told(config, name)} must not be more than 2**62")


def _told(config: Any, name: str) -> str:
    """A field and its value, and of a component which one."""
    which = f" of {config.name!r}" if isinstance(config, Component) else ""
    return f"{type(config).__name__}.{name}={getattr(config, name)}{which}"
