"""DeepSeek's rule without a loss: a bias rises by a fixed step where an expert had less than the mean load, and falls
by it where it had more.

See: Wang et al. 2024, "Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts" (arXiv 2408.15664).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from marin_train.configs import MoEConfig
from marin_train.moe.balance import Balanced
from marin_train.moe.routing import Scores, loads, routed

IS_CAUSAL = True

Load = Int[Array, "*layer experts"]


def balance(
    scores: Scores,
    bias: Float[Array, " experts"] | None,
    *,
    valid: Bool[Array, "batch seq"] | None,
    config: MoEConfig,
) -> Balanced:
    """See `marin_train.moe.balance.Rule`; what is counted is loads."""
    assert bias is not None
    _, chosen = jax.lax.top_k(jax.lax.stop_gradient(scores + bias), config.top_k)
    num_experts = scores.shape[-1]
    return Balanced(chosen, jnp.zeros(()), loads(routed(chosen, valid, nowhere=num_experts), num_experts))


def merge(a: Load, b: Load) -> Load:
    """See `marin_train.moe.balance.Rule`."""
    return a + b


def updated(bias: Float[Array, "*layer experts"], counts: Load, *, config: MoEConfig) -> Array:
    """See `marin_train.moe.balance.Rule`."""
    mean = jnp.sum(counts, axis=-1, keepdims=True).astype(jnp.float32) / config.num_experts
    return bias + config.strength * jnp.sign(mean - counts)
