"""No balance at all: the experts with the highest scores, whatever their load. What the other rules are measured by."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from marin_train.configs import MoEConfig
from marin_train.moe.balance import Balanced
from marin_train.moe.routing import Scores

IS_CAUSAL = True


def balance(
    scores: Scores,
    bias: Float[Array, " experts"] | None,
    *,
    valid: Bool[Array, "batch seq"] | None,
    config: MoEConfig,
) -> Balanced:
    """See `marin_train.moe.balance.Rule`."""
    _, chosen = jax.lax.top_k(jax.lax.stop_gradient(scores), config.top_k)
    return Balanced(chosen, jnp.zeros(()))
