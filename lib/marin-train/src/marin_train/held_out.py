"""The loss on what a run's own mixture holds out, component by component, packed as the run's training data are.

The training loop asks for it every so many steps (`TrainConfig.eval_steps`), `evaluate_held_out` of a checkpoint.
Batches are filled up to one shape, so that one program serves all components.

Sequences cut documents where they end, so that the bytes of what is held out are not known to the byte: bits/byte is
nats a token times the tokens a byte of the component's whole store.
"""

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from marin_train.checkpoints import load_model
from marin_train.configs import TrainConfig
from marin_train.data.mixture import Mixture
from marin_train.data.packing import Sequences
from marin_train.errors import ConfigError, DivergedError
from marin_train.scorer import Scorer, make_scorer


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """A model's loss on one component's held-out sequences.

    Attributes:
        component: its name.
        loss: nats a token.
        bits_per_byte: by the tokens a byte of the component's store.
        num_tokens: predictions that count.
        num_sequences: sequences held out.
    """

    component: str
    loss: float
    bits_per_byte: float
    num_tokens: int
    num_sequences: int

    def to_dict(self) -> dict[str, Any]:
        """The loss as JSON-able values."""
        return asdict(self)


class HeldOutSequences:
    """What the mixture of a run holds out, to score models on.

    Args:
        config: the run.
        mixture: the run's.
        batch_size: sequences at a time.

    Raises:
        ConfigError: no component holds anything out.
    """

    def __init__(self, config: TrainConfig, *, mixture: Mixture, batch_size: int) -> None:
        self._names = [component.name for component in config.data.components if component.validation]
        if not self._names:
            raise ConfigError("no component of the mixture holds anything out; set Component.validation")
        self._mixture, self._batch_size = mixture, batch_size

    @property
    def digest(self) -> str:
        """sha256 of what is scored: equal digests make losses comparable."""
        facts = {name: [self._mixture.stores[name].digest, self._count(name)] for name in self._names}
        how = asdict(self._mixture.config.packing) | {"seq_len": self._mixture.config.seq_len}
        return hashlib.sha256(json.dumps([facts, how], sort_keys=True).encode()).hexdigest()

    def score(self, model: Any, scorer: Scorer) -> list[HeldOut]:
        """The model's loss on each component, by a scorer of its shape.

        Raises:
            ConfigError: a component holds out nothing that counts in the loss.
            DivergedError: a loss is not finite.
        """
        return [self._score_component(name, model, scorer) for name in self._names]

    def _score_component(self, name: str, model: Any, scorer: Scorer) -> HeldOut:
        held_out, total, num_tokens = self._mixture.validation(name), 0.0, 0
        for index in range(-(-held_out.num_sequences // self._batch_size)):
            sequences = _filled(held_out.batch(index, self._batch_size), self._batch_size)
            total += float(scorer(model, sequences).sum(where=sequences.loss_mask))
            num_tokens += int(sequences.loss_mask.sum())
        if not math.isfinite(total):
            raise DivergedError(f"the loss on what is held out of {name!r} is {total}; use an earlier checkpoint")
        if not num_tokens:
            raise ConfigError(
                f"the {held_out.num_sequences} sequences held out of {name!r} have no token that counts in the loss; "
                f"raise Component.validation"
            )
        store, loss = self._mixture.stores[name], total / num_tokens
        return HeldOut(
            component=name,
            loss=loss,
            bits_per_byte=loss / math.log(2) * store.num_tokens / store.num_bytes if store.num_bytes else math.inf,
            num_tokens=num_tokens,
            num_sequences=held_out.num_sequences,
        )

    def _count(self, name: str) -> int:
        return self._mixture.validation(name).num_sequences


def evaluate_held_out(checkpoint: str | Path, *, batch_size: int = 8) -> list[HeldOut]:
    """Scores the sequences that `Component.validation` holds out, of every component that has some.

    Args:
        checkpoint: a checkpoint's directory, or a run's, whose newest checkpoint is taken.
        batch_size: sequences at a time; it changes the speed alone.

    Raises:
        CheckpointError: there is no whole checkpoint.
        ConfigError: ``batch_size`` is not positive, no component holds anything out, or one holds out nothing that
            counts in the loss.
        DivergedError: a loss is not finite.
        TokenStoreError: a store is absent or damaged.
    """
    if batch_size < 1:
        raise ConfigError(f"evaluate_held_out(batch_size={batch_size}): must be positive")
    trained = load_model(checkpoint)
    config = trained.config
    mixture = Mixture.of_run(config)
    sizes = [mixture.validation(part.name).num_sequences for part in config.data.components if part.validation]
    held_out = HeldOutSequences(config, mixture=mixture, batch_size=min(batch_size, max(sizes, default=1)))
    return held_out.score(trained.model, make_scorer(config.model, policy=trained.policy))


def _filled(sequences: Sequences, batch_size: int) -> Sequences:
    """With rows of padding up to so many, none of which counts: one program serves all batches."""
    missing = batch_size - len(sequences.tokens)
    if not missing:
        return sequences
    return Sequences(*(None if x is None else np.pad(x, [(0, missing), (0, 0)]) for x in sequences))  # pyrefly: ignore
