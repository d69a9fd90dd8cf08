"""AdamW whose decay touches matrices alone.

See: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization" (arXiv 1711.05101).
"""

from typing import Any

import optax

from marin_train.parameters import ParameterTable, map_parameters

DECAYED = frozenset({"matrix", "expert", "head"})
"""Roles that decay. Gains would be pulled from where they start, and a rare token's embedding from what it learnt."""


def adamw(
    schedule: optax.Schedule, table: ParameterTable, *, beta1: float, beta2: float, eps: float, weight_decay: float
) -> optax.GradientTransformation:
    """Adam's direction plus ``weight_decay`` times the decayed parameters, scaled by minus the schedule.

    Args:
        schedule: learning rate by number of updates done.
        table: the parameters and their roles.
        beta1: decay rate of the first moment.
        beta2: decay rate of the second moment.
        eps: added to the root of the second moment.
        weight_decay: relative to the learning rate.
    """

    def decayed(model: Any) -> Any:
        return map_parameters(lambda parameter: parameter.role in DECAYED, table, model)

    return optax.chain(
        optax.scale_by_adam(b1=beta1, b2=beta2, eps=eps),
        optax.add_decayed_weights(weight_decay, mask=decayed),
        optax.scale_by_learning_rate(schedule),
    )
