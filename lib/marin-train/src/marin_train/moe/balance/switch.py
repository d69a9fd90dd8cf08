"""Switch's auxiliary loss: ``num_experts * sum of f * P`` over experts, with f an expert's share of the routes and P
its mean share of the router's softmax. It is 1 where both are equal over experts, and its gradient lowers the scores of
experts that have more.

f and P are those of the tokens that are seen at once, over all devices: of a batch that is gone through in parts, each
part has its own, and the loss is a mean over them.

See: Fedus et al. 2021, "Switch Transformers" (arXiv 2101.03961), section 2.2.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from marin_train.configs import MoEConfig
from marin_train.moe.balance import Balanced
from marin_train.moe.routing import Scores, loads, routed

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
    num_tokens = jnp.sum(counted)
    some = jnp.maximum(num_tokens, 1.0)
    share = loads(routed(chosen, valid, nowhere=num_experts), num_experts) / (some * config.top_k)
    mean = jnp.einsum("bse,bs->e", jax.nn.softmax(scores, axis=-1), counted) / some
    return Balanced(chosen, config.strength * num_experts * jnp.sum(share * mean) * num_tokens)
