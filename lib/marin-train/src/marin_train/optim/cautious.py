"""Cautious directions: what would move against the present gradient is left out, the rest scaled up to make up for it.

Momentum points where past gradients did; a component whose sign the present one contradicts would raise the loss to
first order. It applies to a base's direction, before decay, so that decay and norms stay the base's own. An entry that
has neither a gradient nor a direction is none of the share: what pads a vocabulary would else make others move further.

See: Liang et al. 2024, "Cautious Optimizers: Improving Training with One Line of Code" (arXiv 2411.16085).
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

_LEAST = 1e-3
"""The share that is kept counts as no less, so that a lone component is not blown up."""


def make_cautious(direction: optax.GradientTransformation, *, enabled: bool = True) -> optax.GradientTransformation:
    """That direction where it agrees in sign with the gradient, over the share of each matrix where it does."""
    if not enabled:
        return direction

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        directions, state = direction.update(updates, state, params)
        return jax.tree.map(_agreeing, directions, updates), state

    return optax.GradientTransformation(direction.init, update)


def _agreeing(update: Float[Array, "..."], gradient: Float[Array, "..."]) -> Float[Array, "..."]:
    axes = tuple(range(max(update.ndim - 2, 0), update.ndim))
    agrees, counts = update * gradient > 0, (update != 0) | (gradient != 0)
    kept, of = (jnp.sum(which.astype(update.dtype), axis=axes, keepdims=True) for which in (agrees, counts))
    return update * agrees / jnp.maximum(kept / jnp.maximum(of, 1), _LEAST)
