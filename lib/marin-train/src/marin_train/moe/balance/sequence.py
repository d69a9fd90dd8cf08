"""DeepSeek's sequence-wise loss: within each sequence, ``num_experts * sum of f * P`` over experts, with f an expert's
share of the sequence's routes and P its mean share of the tokens' weights.

A sequence is a row of the batch, with all documents that are packed into it. Each is weighed by its tokens, so that
parts of a batch add up to the whole.

See: DeepSeek-AI 2024, "DeepSeek-V3 Technical Report" (arXiv 2412.19437), section 2.1.2.
"""

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
    num_experts = scores.shape[-1]
    _, chosen = jax.lax.top_k(jax.lax.stop_gradient(scores), config.top_k)
    counted = jnp.ones(scores.shape[:2]) if valid is None else valid.astype(jnp.float32)
    num_tokens = jnp.sum(counted, axis=1)
    some = jnp.maximum(num_tokens, 1.0)[:, None]
    is_chosen = jnp.sum(jax.nn.one_hot(chosen, num_experts), axis=2)
    share = jnp.einsum("bse,bs->be", is_chosen, counted) / (some * config.top_k)
    mean = jnp.einsum("bse,bs->be", _weights(scores, config), counted) / some
    losses = num_experts * jnp.sum(share * mean, axis=-1)
    return Balanced(chosen, config.strength * jnp.sum(losses * num_tokens))


def _weights(scores: Scores, config: MoEConfig) -> Scores:
    """Each token's over all experts, which sum to 1."""
    if config.combine == "softmax":
        return jax.nn.softmax(scores, axis=-1)
    weights = jax.nn.sigmoid(scores)
    return weights / jnp.sum(weights, axis=-1, keepdims=True)
