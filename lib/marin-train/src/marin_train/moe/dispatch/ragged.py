"""Routes sorted by expert, and ragged groups of rows left to the compiler's own grouped product.

GPUs and TPUs have kernels for it, which compute no row that only fills up a shape. XLA on CPU masks a product of every
expert instead, and takes as many times as long as there are experts: there, `block` is for.

The derivative is written out, as in `marin_train.blocks.contraction` and for its reasons: operands of all products
are rounded alike, and accumulated in float32.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from marin_train.blocks.mlp import gated
from marin_train.moe.dispatch.rows import collect, lay_out, ranks, spread, spread_weights, weighed
from marin_train.moe.experts import Experts
from marin_train.moe.routing import Routes
from marin_train.policy import Policy

_MATRICES = jax.lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((0,), (0,)), ((), ())), lhs_ragged_dimensions=(0,), rhs_group_dimensions=()
)
"""Rows that are summed over, group by group: a matrix a group."""


def compute_groups(
    x: Float[Array, "tokens width"], routes: Routes, experts: Experts, *, num_expected: int, policy: Policy
) -> tuple[Float[Array, "tokens width"], Int[Array, ""]]:
    """See `marin_train.moe.dispatch.Body`."""
    expert, num_experts = routes.experts, experts.num_experts
    rank, load = ranks(expert.reshape(-1), num_experts)
    start = jnp.cumsum(load) - load
    row = start[jnp.minimum(expert, num_experts - 1)] + rank.reshape(expert.shape)
    layout = lay_out(jnp.where(expert < num_experts, row, expert.size), expert.size)
    rows = spread(x, layout)
    gate, up = (_grouped(policy, str(x.dtype), rows, matrix, load) for matrix in (experts.gate, experts.up))
    hidden = weighed(gated(gate, up, "silu"), spread_weights(routes.weights, layout))
    return collect(_grouped(policy, str(x.dtype), hidden, experts.down, load), layout), jnp.sum(load)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _grouped(
    policy: Policy,
    dtype: str,
    rows: Float[Array, "rows in"],
    matrices: Float[Array, "experts in out"],
    sizes: Int[Array, " experts"],
) -> Float[Array, "rows out"]:
    """Each group's rows times its matrix; rows behind the last group are of no meaning."""
    return _product(rows.astype(policy.operands), matrices.astype(policy.operands), sizes, dtype)


def _forward(
    policy: Policy, dtype: str, rows: Array, matrices: Array, sizes: Array
) -> tuple[Array, tuple[Array, Array, Array]]:
    rows, matrices = rows.astype(policy.operands), matrices.astype(policy.operands)
    return _product(rows, matrices, sizes, dtype), (rows, matrices, sizes)


def _backward(policy: Policy, dtype: str, kept: tuple[Array, Array, Array], slope: Array) -> tuple[Array, Array, None]:
    rows, matrices, sizes = kept
    slope = slope.astype(policy.operands)
    for_rows = _product(slope, jnp.swapaxes(matrices, 1, 2), sizes, dtype)
    for_matrices = jax.lax.ragged_dot_general(rows, slope, sizes, _MATRICES, preferred_element_type=jnp.float32)
    return for_rows, for_matrices, None


_grouped.defvjp(_forward, _backward)


def _product(rows: Array, matrices: Array, sizes: Array, dtype: str) -> Array:
    return jax.lax.ragged_dot(rows, matrices, sizes, preferred_element_type=jnp.float32).astype(dtype)
