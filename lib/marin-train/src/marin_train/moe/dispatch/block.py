"""Routes sorted into blocks of rows, each of one expert: a grouped product by the batched products that all machines
have, whatever the groups' sizes, with shapes that are known to the compiler.

Every expert first has one block with room for a little more than its share, all of them together: a batched product
over the experts' matrices as they lie. That is all there is where loads are balanced. What finds no room there fills
further blocks, of which an expert may have none or many; these are computed by matrices that are gathered, a copy a
block, in a branch that is taken only where it is needed, and that is as large as it needs to be: a few blocks, or all
that there could be. Nothing is dropped, and memory is near the routes', not tokens times experts.

Rows are moved by gathers in both directions: a row knows its token, and a route knows its row, so that neither pass
scatters. The derivative of a move is the other move.

See: Gale et al. 2022, "MegaBlocks" (arXiv 2211.15841), for dropless experts as blocks.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from marin_train.blocks.contraction import contract
from marin_train.moe.experts import Experts
from marin_train.moe.routing import Routes
from marin_train.policy import Policy

SLACK = 1.25
"""Room of an expert's first block, over its share."""

MOST_ROWS = 128
"""Rows of a further block at most."""

_TILE = 8
"""Rows of a block are a multiple of this."""


class Layout(NamedTuple):
    """Which row of the blocks each route fills, and which route fills a row; of none, the number of rows or routes."""

    row_of_route: Int[Array, "tokens slots"]
    route_of_row: Int[Array, " rows"]


def compute_blocks(
    x: Float[Array, "tokens width"], routes: Routes, experts: Experts, *, num_expected: int, policy: Policy
) -> tuple[Float[Array, "tokens width"], Int[Array, ""]]:
    """See `marin_train.moe.dispatch.Body`."""
    num_experts, num_routes = experts.num_experts, routes.experts.size
    first = _rounded(SLACK * num_expected / num_experts)
    width = min(MOST_ROWS, first)
    expert, rank, load = _ranks(routes.experts.reshape(-1), num_experts)
    apply = jax.checkpoint(partial(_apply, policy=policy)) if policy.remat != "keep" else partial(_apply, policy=policy)

    fits = (rank < first) & (expert < num_experts)
    layout = _layout(jnp.where(fits, expert * first + rank, num_experts * first), routes, num_experts * first)
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
        layout = _layout(jnp.where(row >= 0, row, num_rows), routes, num_rows)
        return _apply(x, weights, layout, own, policy=policy)

    sizes = [0, num_experts, -(-num_routes // width) + num_experts]
    taken = jnp.searchsorted(jnp.array(sizes), jnp.sum(blocks), side="left")
    branches = [lambda x, weights, experts: jnp.zeros_like(x), *(partial(further, size) for size in sizes[1:])]
    output = output + jax.lax.switch(taken, branches, x, routes.weights, experts)
    return output, num_experts * first + jnp.array(sizes)[taken] * width


def _rounded(rows: float) -> int:
    return max(1, int(np.ceil(rows / _TILE)) * _TILE)


def _ranks(experts: Int[Array, " routes"], num_experts: int) -> tuple[Array, Array, Array]:
    """Each route's expert, its rank among that expert's routes in the order of the batch, and each expert's load."""
    order = jnp.argsort(experts, stable=True)
    load = jnp.zeros(num_experts + 1, jnp.int32).at[experts].add(1)
    start = jnp.cumsum(load) - load
    rank = jnp.zeros_like(experts).at[order].set(jnp.arange(len(experts), dtype=experts.dtype), unique_indices=True)
    return experts, rank - start[experts], load[:num_experts]


def _layout(row: Int[Array, " routes"], routes: Routes, num_rows: int) -> Layout:
    numbers = jnp.arange(row.size, dtype=jnp.int32)
    route_of_row = jnp.full(num_rows, row.size, jnp.int32).at[row].set(numbers, mode="drop", unique_indices=True)
    return Layout(row.reshape(routes.experts.shape), route_of_row)


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
    rows = _spread(x, layout).reshape(num_blocks, -1, x.shape[-1])
    gate = contract("ncd,ndf->ncf", rows, experts.gate, policy=policy)
    up = contract("ncd,ndf->ncf", rows, experts.up, policy=policy)
    results = contract("ncf,nfd->ncd", _gated(gate, up), experts.down, policy=policy)
    return _collect(results.reshape(-1, x.shape[-1]), weights, layout)


@jax.checkpoint
def _gated(gate: Array, up: Array) -> Array:
    """Recomputed by the backward pass: what is between would be kept to spare what takes no longer than reading it."""
    return jax.nn.silu(gate) * up


@jax.custom_vjp
def _spread(x: Float[Array, "tokens width"], layout: Layout) -> Float[Array, "rows width"]:
    """Each row's token; zeros in rows without one."""
    slots = layout.row_of_route.shape[1]
    return _taken(x, layout.route_of_row // slots)


def _spread_forward(x: Array, layout: Layout) -> tuple[Array, Layout]:
    return _spread(x, layout), layout


def _spread_backward(layout: Layout, slope: Array) -> tuple[Array, None]:
    return jnp.sum(_taken(slope, layout.row_of_route), axis=1), None


_spread.defvjp(_spread_forward, _spread_backward)


@jax.custom_vjp
def _collect(
    rows: Float[Array, "rows width"], weights: Float[Array, "tokens slots"], layout: Layout
) -> Float[Array, "tokens width"]:
    """The weighted sum of each token's rows."""
    return jnp.sum(weights[..., None] * _taken(rows, layout.row_of_route), axis=1).astype(rows.dtype)


def _collect_forward(rows: Array, weights: Array, layout: Layout) -> tuple[Array, tuple[Array, Array, Layout]]:
    return _collect(rows, weights, layout), (rows, weights, layout)


def _collect_backward(kept: tuple[Array, Array, Layout], slope: Array) -> tuple[Array, Array, None]:
    rows, weights, layout = kept
    slots = weights.shape[1]
    of_row = _taken(weights.reshape(-1, 1), layout.route_of_row)
    back = (of_row * _taken(slope, layout.route_of_row // slots)).astype(rows.dtype)
    wide = _taken(rows, layout.row_of_route).astype(jnp.float32)
    return back, jnp.einsum("td,tsd->ts", slope.astype(jnp.float32), wide), None


_collect.defvjp(_collect_forward, _collect_backward)


def _taken(values: Float[Array, "n width"], index: Int[Array, "..."]) -> Float[Array, "... width"]:
    """Those rows of `values`; zeros for an index beyond the last."""
    return jnp.take(values, index, axis=0, mode="fill", fill_value=0)
