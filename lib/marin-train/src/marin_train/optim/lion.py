"""Lion: the sign of an interpolated momentum, so that every component moves equally far.

See: Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms" (arXiv 2302.06675).
"""

import optax

from marin_train.optim.adamw import DECAYED, decay_roles
from marin_train.optim.cautious import cautious
from marin_train.parameters import ParameterTable


def lion(
    schedule: optax.Schedule,
    table: ParameterTable,
    *,
    beta1: float,
    beta2: float,
    weight_decay: float,
    careful: bool = False,
) -> optax.GradientTransformation:
    """optax's Lion, with the decay of `marin_train.optim.adamw`.

    Args:
        schedule: learning rate by number of updates done.
        table: the parameters and their roles.
        beta1: the momentum's share in the direction.
        beta2: decay rate of the momentum.
        weight_decay: relative to the learning rate.
        careful: whether the direction is made cautious.
    """
    return optax.chain(
        cautious(optax.scale_by_lion(b1=beta1, b2=beta2), enabled=careful),
        decay_roles(weight_decay, table, roles=DECAYED),
        optax.scale_by_learning_rate(schedule),
    )
