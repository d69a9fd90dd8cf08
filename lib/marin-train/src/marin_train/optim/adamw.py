"""AdamW whose decay touches matrices alone, and AdamC, whose decay of normalised layers follows the schedule.

A layer whose output is normalised settles at a norm that the ratio of learning rate to decay gives; as the rate falls
at a run's end, so does that norm, and its gradient rises. AdamC scales the decay by the rate over its peak. The head
feeds no norm and decays as ever.

See: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization" (arXiv 1711.05101); Defazio 2025, "Why
Gradients Rapidly Increase Near the End of Training" (arXiv 2506.02285).
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from marin_train.optim.cautious import make_cautious
from marin_train.parameters import ParameterTable, map_parameters

NORMALISED = frozenset({"matrix", "expert"})
"""Roles whose output a norm follows."""
DECAYED = NORMALISED | {"head"}
"""Roles that decay. Gains would be pulled from where they start, and a rare token's embedding from what it learnt."""


def make_adamw(
    schedule: optax.Schedule,
    table: ParameterTable,
    *,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    cautious: bool = False,
) -> optax.GradientTransformation:
    """Adam's direction plus ``weight_decay`` times the decayed parameters, scaled by minus the schedule.

    Args:
        schedule: learning rate by number of updates done.
        table: the parameters and their roles.
        beta1: decay rate of the first moment.
        beta2: decay rate of the second moment.
        eps: added to the root of the second moment.
        weight_decay: relative to the learning rate.
        cautious: whether the direction is made cautious.
    """
    return optax.chain(
        make_cautious(optax.scale_by_adam(b1=beta1, b2=beta2, eps=eps), enabled=cautious),
        decay_roles(weight_decay, table, roles=DECAYED),
        optax.scale_by_learning_rate(schedule),
    )


def make_adamc(
    schedule: optax.Schedule,
    table: ParameterTable,
    *,
    peak: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    cautious: bool = False,
) -> optax.GradientTransformation:
    """As `make_adamw`, with the decay of normalised layers scaled by the schedule over its peak.

    Args:
        schedule: learning rate by number of updates done.
        table: the parameters and their roles.
        peak: the schedule's highest value.
        beta1: see `make_adamw`, as for the rest.
        beta2: likewise.
        eps: likewise.
        weight_decay: likewise, at the peak.
        cautious: likewise.
    """
    return optax.chain(
        make_cautious(optax.scale_by_adam(b1=beta1, b2=beta2, eps=eps), enabled=cautious),
        decay_roles(weight_decay, table, roles=DECAYED - NORMALISED),
        optax.masked(
            _decay_by(lambda step: weight_decay / peak * schedule(step)),
            lambda model: _has_role(table, NORMALISED, model),
        ),
        optax.scale_by_learning_rate(schedule),
    )


def decay_roles(weight_decay: float, table: ParameterTable, *, roles: frozenset[str]) -> optax.GradientTransformation:
    """Adds ``weight_decay`` times the parameters of these roles."""
    return optax.add_decayed_weights(weight_decay, mask=lambda model: _has_role(table, roles, model))


def _has_role(table: ParameterTable, roles: frozenset[str], model: Any) -> Any:
    return map_parameters(lambda parameter: parameter.role in roles, table, model)


def _decay_by(schedule: optax.Schedule) -> optax.GradientTransformation:
    """Adds the parameters times a schedule; its state is that of every schedule, so that all are set to one step."""

    def init(params: Any) -> optax.ScaleByScheduleState:
        return optax.ScaleByScheduleState(count=jnp.zeros((), jnp.int32))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        rate = schedule(state.count)
        updates = jax.tree.map(lambda u, w: u + rate * w, updates, params)
        return updates, optax.ScaleByScheduleState(count=optax.safe_increment(state.count))

    return optax.GradientTransformation(init, update)
