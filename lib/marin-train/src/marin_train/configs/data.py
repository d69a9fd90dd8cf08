"""What is trained on: a mixture of token stores, its stages, and how documents become sequences."""

import math
from dataclasses import dataclass, field
from typing import Literal

from marin_train.configs.checks import COUNTED_ON_DEVICE, choices, no_effect, not_negative, positive
from marin_train.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Component:
    """One token store in a mixture. ``name`` keys its permutation, so it outlives a move of ``path``."""

    name: str
    """What its order, and the rows that tell of it, are known by."""
    path: str
    """A directory, or any URL that fsspec knows."""
    weight: float = 1.0
    """Its share of the draws relative to the others', until a stage says otherwise; 0 while it waits for one."""
    max_epochs: float | None = None
    """How often it may be gone through; once it has been, its share goes to the others."""
    validation: int = 0
    """Sequences held out, never trained on whatever the seed, and asked for by ``Mixture.validation``."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError(f"Component.name of {self.path!r} is empty; its order is keyed by its name, so give one")
        not_negative(self, "weight")
        not_negative(self, "validation")
        if self.max_epochs is not None:
            positive(self, "max_epochs")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Weights from step ``start`` on (steps are counted from 0); a component that is not named has weight 0."""

    start: int
    """The first step that they hold for."""
    weights: dict[str, float]
    """Component name -> its share of the draws, relative to the others'."""

    def __post_init__(self) -> None:
        positive(self, "start")
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
    """Tokens that this run trains on."""
    target_tokens: int
    """Tokens that the large run will."""

    def __post_init__(self) -> None:
        positive(self, "experiment_tokens")
        positive(self, "target_tokens")
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
    """Whether documents are cut where sequences end, or kept whole."""
    overlong: Literal["split", "left", "right", "drop"] = "split"
    """Under ``documents``, what becomes of one longer than a sequence.

    It is split, every prediction kept; or cut, ``left`` keeping its beginning and ``right`` its end; or dropped.
    """
    reset_positions: bool = False
    """Whether positions begin anew with each document."""

    def __post_init__(self) -> None:
        choices(self)
        if self.kind == "contiguous":
            no_effect(self, {"overlong"}, when="under kind='contiguous', which cuts every document")


@dataclass(frozen=True, kw_only=True)
class ShuffleConfig:
    """The order within an epoch: a permutation of all sequences, or of blocks of them for stores that are far away.

    With ``block`` sequences a block, blocks are permuted, then the sequences of ``window`` neighbouring blocks.
    """

    block: int = 0
    """Neighbouring sequences that stay together when blocks are permuted; 0 permutes sequences."""
    window: int = 64
    """Blocks whose sequences are permuted among each other."""

    def __post_init__(self) -> None:
        not_negative(self, "block")
        positive(self, "window")
        if not self.block:
            no_effect(self, {"window"}, when="without blocks")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is trained on: a weighted mixture of token stores, cut into sequences of ``seq_len`` predicted tokens."""

    components: tuple[Component, ...]
    """The token stores that are mixed."""
    seq_len: int
    """Predicted tokens a sequence; one more is read."""
    seed: int = 0
    """Of the order within components."""
    stages: tuple[Stage, ...] = ()
    """Other weights from later steps on."""
    packing: PackingConfig = field(default_factory=PackingConfig)
    """How documents become sequences."""
    shuffle: ShuffleConfig = field(default_factory=ShuffleConfig)
    """The order within an epoch."""
    simulated_epoching: SimulatedEpoching | None = None
    """Cuts components, so that they repeat as often as in a larger run; None leaves them."""

    def __post_init__(self) -> None:
        positive(self, "seq_len", bits=COUNTED_ON_DEVICE)
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
