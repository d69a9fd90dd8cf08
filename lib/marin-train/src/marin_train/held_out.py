"""The loss on what a run's own mixture holds out, component by component, packed as the run's training data are."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from marin_train.checkpoints import load_model
from marin_train.data.mixture import Mixture
from marin_train.errors import ConfigError, DivergedError


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """A model's loss on one component's held-out sequences.

    Attributes:
        component: its name.
        loss: nats a token.
        num_tokens: predictions that count.
        num_sequences: sequences held out.
    """

    component: str
    loss: float
    num_tokens: int
    num_sequences: int

    def to_dict(self) -> dict[str, Any]:
        """The loss as JSON-able values."""
        return asdict(self)


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
    import jax

    from marin_train.losses import Batch, token_losses

    if batch_size < 1:
        raise ConfigError(f"evaluate_held_out(batch_size={batch_size}): must be positive")
    trained = load_model(checkpoint)
    config = trained.config
    names = [component.name for component in config.data.components if component.validation]
    if not names:
        raise ConfigError(f"{trained.path}: no component of its mixture holds anything out; set Component.validation")
    mixture = Mixture.open(config.data, batch_size=batch_size, vocab_size=config.model.vocab_size)
    score = jax.jit(lambda model, batch: token_losses(model, batch, config=config.model, policy=trained.policy))
    results = []
    for name in names:
        held_out, total, num_tokens = mixture.validation(name), 0.0, 0
        for index in range(-(-held_out.num_sequences // batch_size)):
            sequences = held_out.batch(index, batch_size)
            losses = np.asarray(score(trained.model, Batch(**sequences._asdict())), np.float64)
            total += float(losses.sum(where=sequences.loss_mask))
            num_tokens += int(sequences.loss_mask.sum())
        if not math.isfinite(total):
            raise DivergedError(f"{trained.path} gives a loss of {total} on {name!r}; use an earlier checkpoint")
        if not num_tokens:
            raise ConfigError(
                f"the {held_out.num_sequences} sequences held out of {name!r} have no token that counts in the loss; "
                f"raise Component.validation"
            )
        loss = total / num_tokens
        results.append(HeldOut(component=name, loss=loss, num_tokens=num_tokens, num_sequences=held_out.num_sequences))
    return results
