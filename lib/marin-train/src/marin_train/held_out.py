"""The loss on what a run's own mixture holds out, component by component, packed as the run's training data are.

`HeldOutScorer` compiles one program, of one batch's shape, for all components; the training loop asks it every so many
steps (`TrainConfig.eval_steps`), and `evaluate_held_out` asks it of a checkpoint.

Sequences cut documents where they end, so that the bytes of what is held out are not known to the byte: bits/byte is
nats a token times the tokens a byte of the component's whole store.
"""

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from marin_train.batches import place, take_rows
from marin_train.checkpoints import load_model
from marin_train.configs import TrainConfig
from marin_train.data.mixture import Mixture
from marin_train.data.packing import Sequences
from marin_train.errors import ConfigError, DivergedError

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from marin_train.policy import Policy


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


class HeldOutScorer:
    """Scores models of one configuration on what its mixture holds out.

    Args:
        config: the run.
        policy: how its products are computed.
        mesh: the devices.
        mixture: the run's.
        batch_size: sequences at a time; the mesh's data shares must divide it.

    Raises:
        ConfigError: no component holds anything out.
    """

    def __init__(
        self, config: TrainConfig, *, policy: "Policy", mesh: "Mesh", mixture: Mixture, batch_size: int
    ) -> None:
        import jax

        from marin_train.losses import Batch, token_losses
        from marin_train.mesh import in_context, sharding

        self._names = [component.name for component in config.data.components if component.validation]
        if not self._names:
            raise ConfigError("no component of the mixture holds anything out; set Component.validation")
        self._mixture, self._batch_size, self._mesh = mixture, batch_size, mesh

        def score(model: Any, batch: Batch) -> "jax.Array":
            with in_context(mesh):
                return token_losses(model, batch, config=config.model, policy=policy)

        # Whole on every device, so that every process can read all of it.
        self._score = jax.jit(score, out_shardings=sharding(mesh, ()))

    @property
    def digest(self) -> str:
        """sha256 of what is scored: equal digests make losses comparable."""
        facts = {name: [self._mixture.stores[name].digest, self._count(name)] for name in self._names}
        how = asdict(self._mixture.config.packing) | {"seq_len": self._mixture.config.seq_len}
        return hashlib.sha256(json.dumps([facts, how], sort_keys=True).encode()).hexdigest()

    def score(self, model: Any) -> list[HeldOut]:
        """The model's loss on each component.

        Raises:
            ConfigError: a component holds out nothing that counts in the loss.
            DivergedError: a loss is not finite.
        """
        return [self._score_component(model, name) for name in self._names]

    def _score_component(self, model: Any, name: str) -> HeldOut:
        held_out, total, num_tokens = self._mixture.validation(name), 0.0, 0
        for index in range(-(-held_out.num_sequences // self._batch_size)):
            sequences = _filled(held_out.batch(index, self._batch_size), self._batch_size)
            losses = np.asarray(self._score(model, self._placed(sequences)), np.float64)
            total += float(losses.sum(where=sequences.loss_mask))
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

    def _placed(self, sequences: Sequences) -> Any:
        return place(self._mesh, len(sequences.tokens), partial(take_rows, sequences))

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
    from marin_train.configs import MeshConfig
    from marin_train.mesh import make_mesh

    if batch_size < 1:
        raise ConfigError(f"evaluate_held_out(batch_size={batch_size}): must be positive")
    trained = load_model(checkpoint)
    config = trained.config
    mixture = Mixture.open(config.data, batch_size=1, vocab_size=config.model.vocab_size)
    held_out = [mixture.validation(part.name).num_sequences for part in config.data.components if part.validation]
    batch_size, mesh = min(batch_size, max(held_out, default=1)), make_mesh(MeshConfig(data=1))
    scorer = HeldOutScorer(config, policy=trained.policy, mesh=mesh, mixture=mixture, batch_size=batch_size)
    return scorer.score(trained.model)


def _filled(sequences: Sequences, batch_size: int) -> Sequences:
    """With rows of padding up to so many, none of which counts: one program serves all batches."""
    missing = batch_size - len(sequences.tokens)
    if not missing:
        return sequences
    return Sequences(*(None if x is None else np.pad(x, [(0, missing), (0, 0)]) for x in sequences))  # pyrefly: ignore
