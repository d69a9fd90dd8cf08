"""Lion: the sign of an interpolated momentum, so that every component moves equally far.

See: Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms" (arXiv 2302.06675).
"""

import optax

from marin_train.optim.adamw import DECAYED, decay_roles
from marin_train.optim.cautious import make_cautious
from marin_train.parameters import ParameterTable


def make_lion(
    schedule: optax.Schedule,
    table: ParameterTable,
    *,
    beta1: float,
    beta2: float,
    weight_decay: float,
    cautious: bool = False,
) -> optax.GradientTransformation:
    """optax's Lion, with the decay of `marin_train.optim.adamw`.

    Args:
        schedule: learning rate by number of updates done.
        table: the parameters and their roles.
        beta1: the momentum's share in the direction.
        beta2: decay rate of the momentum.
        weight_decay: relative to the learning rate.
        cautious: whether the direction is made cautious.
    """
    return optax.chain(
        make_cautious(optax.scale_by_lion(b1=beta1, b2=beta2), enabled=cautious),
        decay_roles(weight_decay, table, roles=DECAYED),
        optax.scale_by_learning_rate(schedule),
    )
