"""Expert Choice: each expert takes the tokens that score it highest, as many as its share, so that loads are equal.

A token then has more or fewer experts than others, none or all of them: it has a slot an expert. What it gets depends
on tokens after it, and so does the loss that a model is trained with, which says less than a causal model's; where a
model is evaluated or generates, each token has the ``top_k`` experts of its highest scores.

See: Zhou et al. 2022, "Mixture-of-Experts with Expert Choice Routing" (arXiv 2202.09368).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from marin_train.configs import MoEConfig
from marin_train.moe.balance import Balanced
from marin_train.moe.routing import Scores

IS_CAUSAL = False


def balance(
    scores: Scores,
    bias: Float[Array, " experts"] | None,
    *,
    valid: Bool[Array, "batch seq"] | None,
    config: MoEConfig,
) -> Balanced:
    """See `marin_train.moe.balance.Rule`; a share that is no integer is rounded down, but every expert takes one."""
    num_experts = scores.shape[-1]
    affinity = jax.nn.softmax(jax.lax.stop_gradient(scores), axis=-1).reshape(-1, num_experts)
    counted = jnp.ones(len(affinity), bool) if valid is None else valid.reshape(-1)
    num_tokens = jnp.sum(counted, dtype=jnp.int32)
    share = jnp.clip(num_tokens * config.top_k // num_experts, jnp.minimum(num_tokens, 1), num_tokens)
    order = jnp.argsort(jnp.where(counted[:, None], -affinity, jnp.inf), axis=0)
    takes = (
        jnp.zeros(affinity.shape, bool).at[order, jnp.arange(num_experts)].set(jnp.arange(len(order))[:, None] < share)
    )
    chosen = jnp.where(takes, jnp.arange(num_experts), num_experts)
    return Balanced(chosen.reshape(scores.shape), jnp.zeros(()))
