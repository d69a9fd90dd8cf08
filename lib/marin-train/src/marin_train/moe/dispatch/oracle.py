"""Every expert computes every token, and what is not routed is weighed by 0: the truth for every other body."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from marin_train.blocks.contraction import contract
from marin_train.blocks.mlp import gated
from marin_train.moe.experts import Experts
from marin_train.moe.routing import Routes
from marin_train.policy import Policy


def compute_all(
    x: Float[Array, "tokens width"], routes: Routes, experts: Experts, *, num_expected: int, policy: Policy
) -> tuple[Float[Array, "tokens width"], Int[Array, ""]]:
    """See `marin_train.moe.dispatch.Body`."""
    gate = contract("td,edf->etf", x, experts.gate, policy=policy)
    up = contract("td,edf->etf", x, experts.up, policy=policy)
    results = contract("etf,efd->etd", gated(gate, up, "silu"), experts.down, policy=policy)
    numbers = jnp.arange(experts.num_experts)
    weights = jnp.sum(jnp.where(routes.experts[..., None] == numbers, routes.weights[..., None], 0.0), axis=1)
    output = jnp.einsum("te,etd->td", weights, results.astype(jnp.float32)).astype(x.dtype)
    return output, jnp.int32(x.shape[0] * experts.num_experts)
