"""Quantile Balancing by sorting: the truth that `quantile` is an approximation of, for experiments and tests.

Each expert's bias becomes the value that exactly its share of the tokens reach. That needs all tokens of a batch in one
place: on a mesh their distances are gathered, and a batch that is gone through in parts is refused.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from marin_train.configs import MoEConfig
from marin_train.errors import ConfigError
from marin_train.moe.balance import Balanced
from marin_train.moe.routing import Scores

IS_CAUSAL = True


class Quantiles(NamedTuple):
    """Of a whole batch: by how much each expert's bias has to rise, and the number of tokens that are no padding."""

    distance: Float[Array, "*layer experts"]
    num_tokens: Int[Array, "*layer"]


def balance(
    scores: Scores,
    bias: Float[Array, " experts"] | None,
    *,
    valid: Bool[Array, "batch seq"] | None,
    config: MoEConfig,
) -> Balanced:
    """See `marin_train.moe.balance.Rule`."""
    assert bias is not None
    num_experts = scores.shape[-1]
    biased = jax.lax.stop_gradient(scores + bias)
    best, chosen = jax.lax.top_k(biased, min(config.top_k + 1, num_experts))
    distances = (best[..., -1:] - biased).reshape(-1, num_experts)
    counted = jnp.ones(len(distances), bool) if valid is None else valid.reshape(-1)
    ordered = jnp.sort(jnp.where(counted[:, None], distances, jnp.inf), axis=0)
    num_tokens = jnp.sum(counted, dtype=jnp.int32)
    share, rest = (num_tokens * config.top_k) // num_experts, (num_tokens * config.top_k) % num_experts
    low = ordered[jnp.maximum(share - 1, 0)]
    high = ordered[jnp.clip(share, 0, jnp.maximum(num_tokens - 1, 0))]
    distance = jnp.where((rest > 0) & (share > 0), low + (high - low) * (rest / num_experts), low)
    return Balanced(chosen[..., : config.top_k], jnp.zeros(()), Quantiles(distance, num_tokens))


def merge(a: Quantiles, b: Quantiles) -> Quantiles:
    """Refused: quantiles of parts do not make that of the whole.

    Raises:
        ConfigError: always.
    """
    raise ConfigError(
        "MoEConfig.balance='quantile_exact' sorts whole batches and cannot go through one in parts; set "
        "TrainConfig.accumulation=1, or balance='quantile', which counts"
    )


def updated(bias: Float[Array, "*layer experts"], counts: Quantiles, *, config: MoEConfig) -> Array:
    """See `marin_train.moe.balance.Rule`; as it was where nothing was counted, or every token sees all experts."""
    target = bias + counts.distance
    target = target - jnp.mean(target, axis=-1, keepdims=True)
    some = (counts.num_tokens[..., None] > 0) & (config.top_k < config.num_experts)
    return jnp.where(some, config.strength * target + (1.0 - config.strength) * bias, bias)
