"""Optimizers: optax transformations whose groups follow the roles of the parameter table.

Each file here holds one rule as an ``optax.GradientTransformation``; `marin_train.optim.groups` gives each role its
rule; `make_optimizer` puts the whole behind the clip that all share.
"""

import optax

from marin_train.configs import TrainConfig
from marin_train.optim.adamw import make_adamw
from marin_train.optim.groups import make_update
from marin_train.optim.schedules import make_schedule, wsd
from marin_train.parameters import ParameterTable

__all__ = ["make_adamw", "make_optimizer", "make_schedule", "wsd"]


def make_optimizer(config: TrainConfig, table: ParameterTable) -> optax.GradientTransformation:
    """The run's optimizer: gradients clipped to a norm over all leaves together, then the configured update.

    Raises:
        ConfigError: the schedule does not fit into the run, or a matrix starts at zero that may not.
        ParameterError: a parameter's role has no rule.
    """
    clip_norm = config.optimizer.clip_norm
    return optax.chain(
        optax.identity() if clip_norm is None else optax.clip_by_global_norm(clip_norm), make_update(config, table)
    )
