"""Routes sorted into blocks of rows, each of one expert: a grouped product by the batched products that all machines
have, whatever the groups' sizes, with shapes that are known to the compiler.

Every expert first has one block with room for a little more than its share, all of them together: a batched product
over the experts' matrices as they lie. That is all there is where loads are balanced. What finds no room there fills
further blocks, of which an expert may have none or many; these are computed by matrices that are gathered, a copy a
block, in a branch that is taken only where it is needed, and that is as large as it needs to be: a few blocks, or all
that there could be. Nothing is dropped, and memory is near the routes', not tokens times experts.

See: Gale et al. 2022, "MegaBlocks" (arXiv 2211.15841), for dropless experts as blocks.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from marin_train.blocks.contraction import contract
from marin_train.blocks.mlp import gated
from marin_train.moe.dispatch.rows import Layout, collect, lay_out, ranks, spread
from marin_train.moe.experts import Experts
from marin_train.moe.routing import Routes
from marin_train.policy import Policy

SLACK = 1.25
"""Room of an expert's first block, over its share."""

MOST_ROWS = 128
"""Rows of a further block at most."""

_TILE = 8
"""Rows of a block are a multiple of this."""


def compute_blocks(
    x: Float[Array, "tokens width"], routes: Routes, experts: Experts, *, num_expected: int, policy: Policy
) -> tuple[Float[Array, "tokens width"], Int[Array, ""]]:
    """See `marin_train.moe.dispatch.Body`."""
    num_experts, expert = experts.num_experts, routes.experts
    first = _rounded(SLACK * num_expected / num_experts)
    width = min(MOST_ROWS, first)
    rank, load = ranks(expert.reshape(-1), num_experts)
    rank = rank.reshape(expert.shape)
    apply = jax.checkpoint(partial(_apply, policy=policy)) if policy.remat != "keep" else partial(_apply, policy=policy)

    fits = (rank < first) & (expert < num_experts)
    layout = lay_out(jnp.where(fits, expert * first + rank, num_experts * first), num_experts * first)
    output = apply(x, routes.weights, layout, experts)

    blocks = -(-jnp.maximum(load - first, 0) // width)
    starts = jnp.cumsum(blocks) - blocks
    beyond = jnp.where(fits | (expert >= num_experts), -1, starts[jnp.minimum(expert, num_experts - 1)] * width)
    row = jnp.where(beyond >= 0, beyond + rank - first, -1)

    @partial(jax.checkpoint, static_argnums=0)
    def further(num_blocks: int, x: Array, weights: Array, experts: Experts) -> Array:
        owner = jnp.searchsorted(starts + blocks, jnp.arange(num_blocks), side="right")
        own = jax.tree.map(lambda leaf: leaf[jnp.minimum(owner, num_experts - 1)], experts)
        num_rows = num_blocks * width
        layout = lay_out(jnp.where(row >= 0, row, num_rows), num_rows)
        return _apply(x, weights, layout, own, policy=policy)

    sizes = [0, num_experts, -(-expert.size // width) + num_experts]
    taken = jnp.searchsorted(jnp.array(sizes), jnp.sum(blocks), side="left")
    branches = [lambda x, weights, experts: jnp.zeros_like(x), *(partial(further, size) for size in sizes[1:])]
    output = output + jax.lax.switch(taken, branches, x, routes.weights, experts)
    return output, num_experts * first + jnp.array(sizes)[taken] * width


def _rounded(rows: float) -> int:
    return max(1, int(np.ceil(rows / _TILE)) * _TILE)


def _apply(
    x: Float[Array, "tokens width"],
    weights: Float[Array, "tokens slots"],
    layout: Layout,
    experts: Experts,
    *,
    policy: Policy,
) -> Float[Array, "tokens width"]:
    """The sum, over a token's routes in this layout, of their experts' results; one expert a block."""
    num_blocks = experts.num_experts
    rows = spread(x, layout).reshape(num_blocks, -1, x.shape[-1])
    gate = contract("ncd,ndf->ncf", rows, experts.gate, policy=policy)
    up = contract("ncd,ndf->ncf", rows, experts.up, policy=policy)
    results = contract("ncf,nfd->ncd", gated(gate, up, "silu"), experts.down, policy=policy)
    return collect(results.reshape(-1, x.shape[-1]), weights, layout)
