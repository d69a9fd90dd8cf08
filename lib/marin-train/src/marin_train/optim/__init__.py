"""Optimizers: optax transformations whose groups follow the roles of the parameter table.

Each file here holds one factory that returns an ``optax.GradientTransformation``; `make_optimizer` puts the chosen one
behind the clip that all share.
"""

import optax

from marin_train.configs import TrainConfig
from marin_train.optim.adamw import adamw
from marin_train.optim.schedules import make_schedule, wsd
from marin_train.parameters import ParameterTable

__all__ = ["adamw", "make_optimizer", "make_schedule", "wsd"]


def make_optimizer(config: TrainConfig, table: ParameterTable) -> optax.GradientTransformation:
    """The run's optimizer: gradients clipped to a norm over all leaves together, then the configured update."""
    optimizer = config.optimizer
    return optax.chain(
        optax.identity() if optimizer.clip_norm is None else optax.clip_by_global_norm(optimizer.clip_norm),
        adamw(
            make_schedule(config),
            table,
            beta1=optimizer.beta1,
            beta2=optimizer.beta2,
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
        ),
    )
