"""Adafactor: second moments as the product of a row's and a column's, so that a matrix costs a vector of state.

Its rate is relative: an update is scaled by its parameter's root mean square. Both that and the clip of an update are
over a whole leaf, all layers of a stack together and what pads a vocabulary too: under this rule alone
``vocab_multiple`` changes what is learnt, by about the share that is padding.

See: Shazeer and Stern 2018, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost" (arXiv 1804.04235).
"""

import optax

from marin_train.optim.adamw import DECAYED, decay_roles
from marin_train.optim.cautious import make_cautious
from marin_train.parameters import ParameterTable


def make_adafactor(
    schedule: optax.Schedule, table: ParameterTable, *, weight_decay: float, cautious: bool = False
) -> optax.GradientTransformation:
    """optax's Adafactor without momentum, with the decay of `marin_train.optim.adamw`.

    Args:
        schedule: relative learning rate by number of updates done.
        table: the parameters and their roles.
        weight_decay: relative to the learning rate.
        cautious: whether the direction is made cautious.
    """
    direction = optax.chain(
        optax.scale_by_factored_rms(), optax.clip_by_block_rms(1.0), optax.scale_by_param_block_rms()
    )
    return optax.chain(
        make_cautious(direction, enabled=cautious),
        decay_roles(weight_decay, table, roles=DECAYED),
        optax.scale_by_learning_rate(schedule),
    )
