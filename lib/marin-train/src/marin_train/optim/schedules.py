"""Learning-rate schedules: pure functions of the number of updates done, exact at their corners.

See: Hu et al. 2024, "MiniCPM" (arXiv 2404.06395), section 4, for warm-up, stable, decay.
"""

import jax.numpy as jnp
import optax
from jax import Array
from jax.typing import ArrayLike

from marin_train.configs import TrainConfig


def make_schedule(config: TrainConfig) -> optax.Schedule:
    """The run's learning rate by number of updates done."""
    schedule, steps = config.schedule, config.steps
    return wsd(
        config.optimizer.learning_rate,
        num_steps=steps,
        num_warmup=round(schedule.warmup * steps),
        num_decay=round(schedule.decay * steps),
        final_ratio=schedule.final_ratio,
    )


def wsd(peak: float, *, num_steps: int, num_warmup: int, num_decay: int, final_ratio: float) -> optax.Schedule:
    """Warm-up, stable, decay: linear to `peak`, flat, linear towards ``final_ratio * peak``.

    Update number s (from 0) has rate ``peak * (s + 1) / num_warmup`` while it warms up, so that the first update moves
    and the last of the warm-up has the peak; with r updates left, itself included, ``peak * (final_ratio +
    (1 - final_ratio) * r / num_decay)`` in the decay, so that the last update moves too and the final rate is that of
    the update after the run's last.

    Args:
        peak: the highest rate.
        num_steps: updates in the run.
        num_warmup: updates of the warm-up.
        num_decay: updates of the decay.
        final_ratio: the rate after the run, over `peak`.
    """

    def rate(step: ArrayLike) -> Array:
        done = jnp.asarray(step, jnp.float32)
        warm = jnp.minimum(1.0, (done + 1.0) / max(num_warmup, 1))
        left = jnp.clip((num_steps - done) / max(num_decay, 1), 0.0, 1.0)
        return peak * jnp.minimum(warm, final_ratio + (1.0 - final_ratio) * left)

    return rate
