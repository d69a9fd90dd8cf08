"""Sinkhorn: experts are chosen by the scores plus potentials at which a soft assignment has equal loads.

The assignment is ``exp(scores + u + v)`` with a potential u of each token and v of each expert, set in turn until every
token's row and every expert's column have their sums. u moves no choice of a token, so that v is a bias: of the batch
at hand, where Quantile Balancing has that of the batch before. A token's experts thus depend on tokens after it, in its
own sequence and in others; where a model is evaluated or generates, experts are chosen by the scores alone.

See: Clark et al. 2022, "Unified Scaling Laws for Routed Language Models" (arXiv 2202.01169), for S-BASE;
Cuturi 2013 (arXiv 1306.0895).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from marin_train.configs import MoEConfig
from marin_train.moe.balance import Balanced
from marin_train.moe.routing import Scores

IS_CAUSAL = False

NUM_ROUNDS = 16
"""Both potentials are set so many times."""


def balance(
    scores: Scores,
    bias: Float[Array, " experts"] | None,
    *,
    valid: Bool[Array, "batch seq"] | None,
    config: MoEConfig,
) -> Balanced:
    """See `marin_train.moe.balance.Rule`."""
    fixed = jax.lax.stop_gradient(scores)
    _, chosen = jax.lax.top_k(fixed + potentials(fixed, valid), config.top_k)
    return Balanced(chosen, jnp.zeros(()))


def potentials(scores: Scores, valid: Bool[Array, "batch seq"] | None) -> Float[Array, " experts"]:
    """v, up to a constant: columns have equal sums where rows have the sum 1."""
    counts = jnp.zeros(scores.shape[:2]) if valid is None else jnp.where(valid, 0.0, -jnp.inf)

    def step(v: Array, _: None) -> tuple[Array, None]:
        u = counts - jax.nn.logsumexp(scores + v, axis=-1)
        columns = jax.nn.logsumexp(scores + u[..., None], axis=(0, 1))
        return jnp.where(jnp.isfinite(columns), -columns, 0.0), None

    v, _ = jax.lax.scan(step, jnp.zeros(scores.shape[-1]), length=NUM_ROUNDS)
    return v
