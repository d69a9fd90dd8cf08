"""The loss of every prediction of a batch, brought to the host: what evaluations are sums of, and blame is laid by.

A scorer is one program over a mesh. It is compiled when the first batch comes, and again for a batch of another shape;
so those who score batches of one shape side by side share one.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from marin_train.batches import place, take_rows
from marin_train.configs import ModelConfig
from marin_train.data.packing import Sequences

if TYPE_CHECKING:
    from jax.sharding import Mesh
    from jaxtyping import Array, Float

    from marin_train.losses import Batch
    from marin_train.policy import Policy

Scorer = Callable[[Any, Sequences], np.ndarray]
"""A model and a batch to the loss of each prediction, masked or not: nats, Float64[batch, seq]."""


def make_scorer(config: ModelConfig, *, policy: "Policy", mesh: "Mesh | None" = None) -> Scorer:
    """Scores models of this shape.

    Args:
        config: the models' shape.
        policy: how their products are computed.
        mesh: the devices that they lie on, whose data shares must divide a batch's rows; by default the first alone.
    """
    import jax

    from marin_train.losses import token_losses
    from marin_train.mesh import in_context, one_device, sharding

    where = one_device() if mesh is None else mesh

    def losses(model: Any, batch: "Batch") -> "Float[Array, 'batch seq']":
        with in_context(where):
            return token_losses(model, batch, config=config, policy=policy)

    # Whole on every device, so that every process can read all of it.
    program = jax.jit(losses, out_shardings=sharding(where, ()))

    def score(model: Any, sequences: Sequences) -> np.ndarray:
        batch = place(where, len(sequences.tokens), partial(take_rows, sequences))
        return np.asarray(program(model, batch), np.float64)

    return score
