"""Which steps are let through: decided on the device, from the step's own loss and gradient norm, with no host asked.

A bad batch, or a bit that a machine flipped, can cost a run more than the step it spoils: the optimizer's moments carry
it on for hundreds. So a step is judged before its update counts. One whose loss or gradient norm is infinite or NaN,
and where `GuardConfig.skip_sigma` asks for it one that lies far above the last ones, changes nothing but the step
number and what is kept here. Its data are gone through all the same: a batch is a function of its step.

Every finite step enters the window that later ones are measured against, skipped ones too. Lone outliers are skipped
either way, and a level that has changed for good (other data, a larger batch) is taken for normal after a few steps; a
window of accepted steps alone would refuse it for ever. Batches in which no token counts say nothing and do not enter.

A choice between old and new costs the step a pass over its state, so a run that neither skips nor tolerates anything
(the default) makes none: its first step that is not finite ends it, before that step's state is saved.

Invariant: whatever the batch, a state that is saved is one that a run can go on from.

See: OLMo Team 2025, "2 OLMo 2 Furious" (arXiv 2501.00656), section 3, on skipping steps.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from marin_train.configs import GuardConfig


class GuardState(eqx.Module):
    """What later steps are measured against.

    Args:
        losses: those of the last steps that entered, at their number modulo ``window``.
        grad_norms: the same of gradient norms.
        num_seen: how many steps have entered.
        nonfinite: how many steps in a row, up to the last, had a loss or a gradient that was not finite.
    """

    losses: Float[Array, " window"]
    grad_norms: Float[Array, " window"]
    num_seen: Int[Array, ""]
    nonfinite: Int[Array, ""]


class Verdict(NamedTuple):
    """What becomes of a step.

    Args:
        accepted: whether its update counts.
        nonfinite: steps in a row, this one included, that were not finite.
        guard: the state for the next step.
    """

    accepted: Bool[Array, ""]
    nonfinite: Int[Array, ""]
    guard: GuardState | None


def init_guard(config: GuardConfig) -> GuardState | None:
    """The state before the first step; None where nothing need be remembered from one step to the next."""
    if config.skip_sigma is None and config.max_nonfinite == 0:
        return None
    window, none = jnp.zeros(config.window, jnp.float32), jnp.zeros((), jnp.int32)
    return GuardState(window, window, none, none)


def judge(
    guard: GuardState | None,
    loss: Float[Array, ""],
    *,
    grad_norm: Float[Array, ""],
    num_tokens: Int[Array, ""],
    config: GuardConfig,
) -> Verdict:
    """Judges a step by its loss and gradient norm.

    Args:
        guard: what `init_guard` or the step before gave.
        loss: nats a token.
        grad_norm: over all leaves, before the clip.
        num_tokens: how many tokens count in the loss.
        config: the rule.
    """
    finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
    if guard is None:
        return Verdict(finite, (~finite).astype(jnp.int32), None)
    accepted = finite
    if config.skip_sigma is not None:
        for seen, value in ((guard.losses, loss), (guard.grad_norms, grad_norm)):
            accepted &= ~_is_outlier(value, seen, guard.num_seen, sigma=config.skip_sigma)
    enters = finite & (num_tokens > 0)
    place = guard.num_seen % config.window
    nonfinite = jnp.where(finite, 0, guard.nonfinite + 1)
    after = GuardState(
        losses=jnp.where(enters, guard.losses.at[place].set(loss), guard.losses),
        grad_norms=jnp.where(enters, guard.grad_norms.at[place].set(grad_norm), guard.grad_norms),
        num_seen=guard.num_seen + enters,
        nonfinite=nonfinite,
    )
    return Verdict(accepted, nonfinite, after)


def select(accepted: Bool[Array, ""], new: Any, old: Any) -> Any:
    """The leaves of ``new`` where the step is accepted, and those of ``old`` where it is not."""
    return jax.tree.map(lambda after, before: jnp.where(accepted, after, before), new, old)


def _is_outlier(value: Array, seen: Array, num_seen: Array, *, sigma: float) -> Array:
    """Whether a value lies more than ``sigma`` standard deviations above the mean of those seen.

    Nothing does before half of the window is filled: a deviation from a few values says little.
    """
    window = len(seen)
    number = jnp.clip(num_seen, 2, window).astype(jnp.float32)
    # Relative to one of them, so that of equal values none lies above the mean by rounding.
    filled, above = jnp.arange(window) < num_seen, seen - seen[0]
    mean = jnp.sum(jnp.where(filled, above, 0.0)) / number
    variance = jnp.sum(jnp.where(filled, jnp.square(above - mean), 0.0)) / (number - 1)
    enough = num_seen >= max(2, window // 2)
    return enough & (value - seen[0] > mean + sigma * jnp.sqrt(variance))
