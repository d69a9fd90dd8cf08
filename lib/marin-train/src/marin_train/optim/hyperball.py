"""Hyperball: a matrix moves on the sphere of its own norm, and the learning rate is the angle of a step.

With R the norm of W and u any direction, ``W' = W - rate * R * u / |u|`` and W becomes ``R * W' / |W'|``. The direction
is Adam's (AdamH) or Muon's (MuonH); decay has no use. Where a matrix's output is normalised its norm says nothing but
how fast it turns, which the rate then says alone.

R is the norm at the start, kept in the state: taken anew from each step's matrix, it would drift with the rounding of
every step. Each matrix of a stack, layer or expert, has its own; scaling W by 3 scales R and so every update by 3.

See: "Hyperball" (arXiv 2606.16899).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from marin_train.errors import ConfigError
from marin_train.optim.muon import matrix_norm
from marin_train.parameters import dotted

_LEAST_NORM = 1e-10
"""A direction of a smaller norm counts as this, so that none at all moves nothing."""


class HyperballState(NamedTuple):
    """The steps done, and the norm of every matrix at the start (..., 1, 1)."""

    schedule: optax.ScaleByScheduleState
    radius: Any


def scale_by_hyperball(schedule: optax.Schedule) -> optax.GradientTransformation:
    """Turns directions into updates that hold each matrix at its norm.

    Args:
        schedule: the angle by number of updates done, radians.

    Raises:
        ConfigError: a matrix is zero when the state is drawn from values; it has no sphere to move on.
    """

    def init(params: Any) -> HyperballState:
        radius = jax.tree.map(matrix_norm, params)
        for path, norm in jax.tree_util.tree_leaves_with_path(radius):
            if not isinstance(norm, jax.core.Tracer) and not jnp.all(norm > 0):
                raise starts_at_zero(dotted(path))
        return HyperballState(optax.ScaleByScheduleState(count=jnp.zeros((), jnp.int32)), radius)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, HyperballState]:
        angle = schedule(state.schedule.count)

        def step(
            direction: Float[Array, "... in out"],
            matrix: Float[Array, "... in out"],
            radius: Float[Array, "... 1 1"],
        ) -> Float[Array, "... in out"]:
            moved = matrix - angle * radius * direction / jnp.maximum(matrix_norm(direction), _LEAST_NORM)
            return radius * moved / matrix_norm(moved) - matrix

        moves = jax.tree.map(step, updates, params, state.radius)
        count = optax.safe_increment(state.schedule.count)
        return moves, HyperballState(optax.ScaleByScheduleState(count=count), state.radius)

    return optax.GradientTransformation(init, update)


def starts_at_zero(path: str) -> ConfigError:
    """The error of a matrix that has no sphere to move on."""
    return ConfigError(
        f"{path} starts at zero, and a hyperball optimizer holds a matrix at the norm that it starts with; draw it "
        f"from a Normal, or choose another OptimizerConfig.name"
    )
