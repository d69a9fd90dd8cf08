"""Learning-rate schedules: pure functions of the number of updates done, exact at their corners.

A schedule is one formula: the least of a warm-up and a decay, times a root where there is one. Which of its parts a
name has is all that the names differ in; cycles and new warm-ups say from where its updates are counted. Counts stay
integers until the one division, because float32 no longer tells neighbouring steps apart from 2^24 on.

See: Hu et al. 2024, "MiniCPM" (arXiv 2404.06395), section 4, for warm-up, stable, decay; Loshchilov and Hutter 2017,
"SGDR" (arXiv 1608.03983), for cosines and cycles; Zhai et al. 2022, "Scaling Vision Transformers" (arXiv 2106.04560),
for the inverse square root with a decay; Hägele et al. 2024 (arXiv 2405.18392) for 1 minus the root.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Literal

import jax.numpy as jnp
import optax
from jax import Array
from jax.typing import ArrayLike

from marin_train.configs import TrainConfig
from marin_train.errors import ConfigError

DecayShape = Literal["linear", "cosine", "sqrt"]

_SHAPES: dict[DecayShape, Callable[[Array], Array]] = {
    "linear": lambda left: left,
    "cosine": lambda left: jnp.square(jnp.sin(0.5 * jnp.pi * left)),
    "sqrt": lambda left: left / (1.0 + jnp.sqrt(1.0 - left)),
}
"""By the share of the decay that is left: 1 where it is 1, and 0 where it is 0; in forms in which nothing cancels."""


def make_schedule(config: TrainConfig, *, peak: float | None = None) -> optax.Schedule:
    """The run's learning rate by number of updates done.

    Args:
        config: the run.
        peak: the highest rate; by default the optimizer's.

    Raises:
        ConfigError: a cycle is too short for its warm-up and decay.
    """
    schedule, steps = config.schedule, config.steps
    starts = [steps * cycle // schedule.cycles for cycle in range(schedule.cycles)]
    spans = [end - start for start, end in itertools.pairwise([*starts, steps])]
    corners = [_corners(config, span) for span in spans]
    peak = config.optimizer.learning_rate if peak is None else peak
    named = schedule.name in ("cosine", "linear")
    shape: DecayShape = schedule.name if named else schedule.decay_shape  # pyrefly: ignore[bad-assignment]
    rates = [
        wsd(
            peak,
            num_steps=span,
            num_warmup=num_warmup,
            num_decay=num_decay,
            final_ratio=schedule.final_ratio,
            shape=shape,
            rooted=schedule.name == "inverse_sqrt",
            rewarmups=[again - start for again in schedule.rewarmups if start < again < start + span],
        )
        for start, span, (num_warmup, num_decay) in zip(starts, spans, corners, strict=True)
    ]
    return rates[0] if len(rates) == 1 else _joined(rates, starts)


def wsd(
    peak: float,
    *,
    num_steps: int,
    num_warmup: int,
    num_decay: int,
    final_ratio: float,
    shape: DecayShape = "linear",
    rooted: bool = False,
    rewarmups: Sequence[int] = (),
) -> optax.Schedule:
    """Warm-up, stable, decay: linear to `peak`, flat, then towards ``final_ratio * peak``.

    Update number s (from 0) has rate ``peak * (s + 1) / num_warmup`` while it warms up, so that the first update moves
    and the last of the warm-up has the peak; with r updates left, itself included, ``peak * (final_ratio +
    (1 - final_ratio) * shape(r / num_decay))`` in the decay, so that the last update moves too and the final rate is
    that of the update after the run's last.

    Args:
        peak: the highest rate.
        num_steps: updates in the run.
        num_warmup: updates of the warm-up.
        num_decay: updates of the decay.
        final_ratio: the rate after the run, over `peak`.
        shape: how it decays.
        rooted: falls with ``sqrt(num_warmup / (s + 1))`` after the warm-up.
        rewarmups: updates at which the warm-up begins anew.
    """
    begins = jnp.asarray([0, *rewarmups], jnp.int32)

    def rate(step: ArrayLike) -> Array:
        done = jnp.asarray(step, jnp.int32)
        since = done - jnp.max(jnp.where(begins <= done, begins, 0)) if len(begins) > 1 else done
        warm = jnp.minimum(1.0, _quotient(since + 1, max(num_warmup, 1)))
        left = _SHAPES[shape](jnp.clip(_quotient(num_steps - done, max(num_decay, 1)), 0.0, 1.0))
        value = peak * jnp.minimum(warm, final_ratio + (1.0 - final_ratio) * left)
        return value * jnp.sqrt(_quotient(max(num_warmup, 1), jnp.maximum(done + 1, num_warmup))) if rooted else value

    return rate


def _corners(config: TrainConfig, span: int) -> tuple[int, int]:
    """Updates of warm-up and decay in so many."""
    schedule = config.schedule
    warmup, decay = (round(value * span) if value <= 1 else int(value) for value in (schedule.warmup, schedule.decay))
    if schedule.name in ("cosine", "linear"):
        decay = max(span - warmup, 0)
    elif schedule.name == "constant":
        decay = 0
    # Two shares that sum to 1 may both be rounded up.
    shares = schedule.warmup <= 1 and schedule.decay <= 1
    if warmup + decay > span + shares or max(warmup, decay) > span:
        raise ConfigError(
            f"ScheduleConfig.warmup={schedule.warmup} and decay={schedule.decay} are {warmup} and {decay} updates, but "
            f"{'a cycle' if schedule.cycles > 1 else 'the run'} has {span}; shorten them, or raise TrainConfig.steps"
        )
    return warmup, decay


def _joined(rates: Sequence[optax.Schedule], starts: Sequence[int]) -> optax.Schedule:
    """Each schedule from its start on, counting from there."""

    def rate(step: ArrayLike) -> Array:
        done = jnp.asarray(step, jnp.int32)
        value = jnp.asarray(rates[0](done))
        for start, later in zip(starts[1:], rates[1:], strict=True):
            value = jnp.where(done >= start, later(done - start), value)
        return value

    return rate


def _quotient(part: ArrayLike, whole: ArrayLike) -> Array:
    return jnp.asarray(part, jnp.float32) / jnp.asarray(whole, jnp.float32)
