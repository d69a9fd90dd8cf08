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

from marin_train.losses import Batch, LossSums, num_routed
from marin_train.mesh import sharding


class LossGradients(NamedTuple):
    """Of a whole batch.

    Args:
        gradients: of the objective, a mean over the unmasked tokens; as the model, float32.
        loss: mean cross-entropy of the unmasked tokens, nats; 0 where there is none.
        num_tokens: the number of unmasked tokens.
        routing: what was counted of the routing, in a model of experts; None elsewhere.
    """

    gradients: Any
    loss: Float[Array, ""]
    num_tokens: Int[Array, ""]
    routing: Any = None


def loss_gradients(
    costs: Callable[[Any, Batch], LossSums],
    model: Any,
    batch: Batch,
    *,
    num_parts: int,
    mesh: Mesh,
    merge: Callable[[Any, Any], Any] | None = None,
) -> LossGradients:
    """Loss and gradients of a batch gone through in so many parts.

    Args:
        costs: what a model costs on a batch or a part of one.
        model: the parameters.
        batch: its rows divide by ``num_parts`` times the mesh's data shares.
        num_parts: 1 goes through it at once.
        mesh: the devices that the batch is spread over.
        merge: what was counted of the routing in two parts, to that in both; None where nothing is.
    """
    num_tokens = jnp.sum(batch.loss_mask, dtype=jnp.int32)
    scale = 1.0 / jnp.maximum(num_tokens, 1).astype(jnp.float32)
    routed_scale = 1.0 / jnp.maximum(num_routed(batch), 1)

    def share(model: Any, part: Batch) -> tuple[Array, tuple[Array, Any]]:
        sums = costs(model, part)
        objective = sums.objective * scale + sums.auxiliary * routed_scale
        return objective, (sums.cross_entropy * scale, sums.routing)

    gradient = jax.grad(share, has_aux=True)
    if num_parts == 1:
        gradients, (loss, routing) = gradient(model, batch)
        return LossGradients(gradients, loss, num_tokens, routing)

    def add(total: Any, part: Batch) -> tuple[Any, None]:
        (gradients, (loss, routing)), (more, (cost, others)) = total, gradient(model, part)
        routing = None if merge is None else merge(routing, others)
        return (jax.tree.map(jnp.add, gradients, more), (loss + cost, routing)), None

    parts = in_parts(batch, num_parts, mesh=mesh)
    nothing = jax.eval_shape(gradient, model, jax.tree.map(lambda rows: rows[0], parts))
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), nothing)
    (gradients, (loss, routing)), _ = jax.lax.scan(add, nothing, parts)
    return LossGradients(gradients, loss, num_tokens, routing)


def in_parts(batch: Batch, num_parts: int, *, mesh: Mesh) -> Batch:
    """The parts of a batch, stacked on a leading dim, each spread over the devices as the batch is."""
    spread = sharding(mesh, ("part", "batch", None))

    def split(rows: Array) -> Array:
        parts = jnp.moveaxis(rows.reshape(-1, num_parts, *rows.shape[1:]), 1, 0)
        return jax.lax.with_sharding_constraint(parts, spread)

    return jax.tree.map(split, batch)
