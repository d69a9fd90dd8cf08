"""Gradients of a batch gone through in parts, one after the other, so that the activations of one part exist at a time.

The loss of a batch is a sum over its unmasked tokens divided by their number, and that number is known from the masks
before the first part. Each part's share of the loss is its own sum over the number of the *whole* batch, so that shares
and their gradients simply add up: a part without an unmasked token adds nothing, where a mean of the parts' means would
give its silence the weight of the others.

Part p of n holds rows p, p + n, p + 2n, ... A device has a stretch of neighbouring rows, and so its share of every
part: nothing moves between devices, and none is idle while another works.

Invariant: parts change the loss and the gradients by rounding alone.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from marin_train.losses import Batch, LossSums
from marin_train.mesh import sharding


class LossGradients(NamedTuple):
    """Of a whole batch.

    Args:
        gradients: of the objective, a mean over the unmasked tokens; as the model, float32.
        loss: mean cross-entropy of the unmasked tokens, nats; 0 where there is none.
        num_tokens: the number of unmasked tokens.
    """

    gradients: Any
    loss: Float[Array, ""]
    num_tokens: Int[Array, ""]


def loss_gradients(
    costs: Callable[[Any, Batch], LossSums], model: Any, batch: Batch, *, num_parts: int, mesh: Mesh
) -> LossGradients:
    """Loss and gradients of a batch gone through in so many parts.

    Args:
        costs: what a model costs on a batch or a part of one.
        model: the parameters.
        batch: its rows divide by ``num_parts`` times the mesh's data shares.
        num_parts: 1 goes through it at once.
        mesh: the devices that the batch is spread over.
    """
    num_tokens = jnp.sum(batch.loss_mask, dtype=jnp.int32)
    scale = 1.0 / jnp.maximum(num_tokens, 1).astype(jnp.float32)

    def share(model: Any, part: Batch) -> tuple[Array, Array]:
        sums = costs(model, part)
        return sums.objective * scale, sums.cross_entropy * scale

    gradient = jax.grad(share, has_aux=True)
    if num_parts == 1:
        gradients, loss = gradient(model, batch)
        return LossGradients(gradients, loss, num_tokens)

    def add(total: tuple[Any, Array], part: Batch) -> tuple[tuple[Any, Array], None]:
        return jax.tree.map(jnp.add, total, gradient(model, part)), None

    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), model), jnp.zeros(())
    (gradients, loss), _ = jax.lax.scan(add, nothing, in_parts(batch, num_parts, mesh=mesh))
    return LossGradients(gradients, loss, num_tokens)


def in_parts(batch: Batch, num_parts: int, *, mesh: Mesh) -> Batch:
    """The parts of a batch, stacked on a leading dim, each spread over the devices as the batch is."""
    spread = sharding(mesh, ("part", "batch", None))

    def split(rows: Array) -> Array:
        parts = jnp.moveaxis(rows.reshape(-1, num_parts, *rows.shape[1:]), 1, 0)
        return jax.lax.with_sharding_constraint(parts, spread)

    return jax.tree.map(split, batch)
