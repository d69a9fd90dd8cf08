"""Routes sorted into blocks of rows, each of one expert: a grouped product by the batched products that all machines
have, whatever the groups' sizes, with shapes that are known to the compiler.

Every expert first has one block with room for a little more than its share, all of them together: a batched product
over the experts' matrices as they lie. That is all there is where loads are balanced. What finds no room there fills
further blocks, of which an expert may have none or many. A loop computes these one after the other, and takes as many
turns as there are blocks, none where loads are balanced. Nothing is dropped, and memory is near the routes', not tokens
times experts.

The derivative is written out: a loop whose number of turns is not known has none of its own, and gradients of the
experts' matrices, which are the largest arrays here, are those of the first blocks with each further block's added in
place.

See: Gale et al. 2022, "MegaBlocks" (arXiv 2211.15841), for dropless experts as blocks.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from marin_train.blocks.contraction import contract
from marin_train.blocks.mlp import gated
from marin_train.moe.dispatch.rows import Layout, collect, lay_out, ranks, spread, spread_weights, weighed
from marin_train.moe.experts import Experts
from marin_train.moe.routing import Routes
from marin_train.policy import Policy

SLACK = 1.125
"""Room of an expert's first block, over its share."""

MOST_ROWS = 128
"""Rows of a further block at most."""

_TILE = 8
"""Rows of a block are a multiple of this."""


class Further(NamedTuple):
    """What found no room in the first blocks.

    Args:
        route_of_row: the route that fills a row; of none, the number of routes.
        owner: whose a block is.
        num_blocks: how many there are; those behind are of no meaning.
    """

    route_of_row: Int[Array, "blocks rows"]
    owner: Int[Array, " blocks"]
    num_blocks: Int[Array, ""]


def compute_blocks(
    x: Float[Array, "tokens width"], routes: Routes, experts: Experts, *, num_expected: int, policy: Policy
) -> tuple[Float[Array, "tokens width"], Int[Array, ""]]:
    """See `marin_train.moe.dispatch.Body`."""
    num_experts, expert = experts.num_experts, routes.experts
    first = _rounded(SLACK * num_expected / num_experts)
    rank, load = ranks(expert.reshape(-1), num_experts)
    rank = rank.reshape(expert.shape)
    row = jnp.where((rank < first) & (expert < num_experts), expert * first + rank, num_experts * first)
    layout = lay_out(row, num_experts * first)
    further = _further(expert, rank - first, load - first, width=min(MOST_ROWS, first))
    output = _compute(policy, x, routes.weights, experts, layout, further)
    return output, num_experts * first + further.num_blocks * further.route_of_row.shape[1]


def _rounded(rows: float) -> int:
    return max(1, int(np.ceil(rows / _TILE)) * _TILE)


def _further(
    expert: Int[Array, "tokens slots"], rank: Int[Array, "tokens slots"], load: Int[Array, " experts"], *, width: int
) -> Further:
    """The blocks of routes that are left over, given ranks and loads among these: what found room is below 0."""
    num_experts = len(load)
    blocks = -(-jnp.maximum(load, 0) // width)
    ends = jnp.cumsum(blocks)
    most = -(-expert.size // width) + num_experts
    own = jnp.minimum(expert, num_experts - 1)
    row = jnp.where((rank >= 0) & (expert < num_experts), (ends - blocks)[own] * width + rank, most * width)
    owner = jnp.searchsorted(ends, jnp.arange(most), side="right")
    return Further(lay_out(row, most * width).route_of_row.reshape(most, width), owner, ends[-1])


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _compute(
    policy: Policy,
    x: Float[Array, "tokens width"],
    weights: Float[Array, "tokens slots"],
    experts: Experts,
    layout: Layout,
    further: Further,
) -> Float[Array, "tokens width"]:
    """The sum, over a token's routes, of their experts' results."""
    return _forward(policy, x, weights, experts, layout, further)[0]


def _forward(
    policy: Policy, x: Array, weights: Array, experts: Experts, layout: Layout, further: Further
) -> tuple[Array, Any]:
    def first(x: Array, weights: Array, experts: Experts) -> Array:
        rows = spread(x, layout).reshape(experts.num_experts, -1, x.shape[-1])
        each = spread_weights(weights, layout).reshape(experts.num_experts, -1)
        return collect(_results(rows, each, experts, policy=policy).reshape(-1, x.shape[-1]), layout)

    output, pull = jax.vjp(first if policy.remat == "keep" else jax.checkpoint(first), x, weights, experts)

    def turn(block: Array, output: Array) -> Array:
        at = _place(further, block, num_slots=weights.shape[1])
        results = _results(*_taken(at, x, weights, experts), policy=policy)
        return output.at[at.token].add(results[0], mode="drop")

    output = jax.lax.fori_loop(0, further.num_blocks, turn, output)
    return output, (pull, x, weights, experts, further)


def _backward(policy: Policy, kept: Any, slope: Array) -> tuple[Array, Array, Experts, None, None]:
    pull, x, weights, experts, further = kept

    def turn(block: Array, sums: tuple[Array, Array, Experts]) -> tuple[Array, Array, Experts]:
        at = _place(further, block, num_slots=weights.shape[1])
        _, pull_block = jax.vjp(partial(_results, policy=policy), *_taken(at, x, weights, experts))
        for_rows, for_weights, for_matrices = pull_block(slope.at[at.token].get(mode="fill", fill_value=0)[None])
        return (
            sums[0].at[at.token].add(for_rows[0], mode="drop"),
            sums[1].at[at.token, at.slot].add(for_weights[0], mode="drop"),
            jax.tree.map(lambda total, own: total.at[at.owner].add(own[0]), sums[2], for_matrices),
        )

    return *jax.lax.fori_loop(0, further.num_blocks, turn, pull(slope)), None, None


_compute.defvjp(_forward, _backward)


class _Place(NamedTuple):
    """Where a further block's rows come from; of rows without one, a token behind the last."""

    token: Int[Array, " rows"]
    slot: Int[Array, " rows"]
    owner: Int[Array, ""]


def _place(further: Further, block: Int[Array, ""], *, num_slots: int) -> _Place:
    route = further.route_of_row[block]
    return _Place(route // num_slots, route % num_slots, further.owner[block])


def _taken(at: _Place, x: Array, weights: Array, experts: Experts) -> tuple[Array, Array, Experts]:
    """A further block's tokens and their weights, and its expert alone: as `_results` takes blocks, of which it is one.

    Rows without a token are zeros.
    """
    rows = x.at[at.token].get(mode="fill", fill_value=0)
    own = jax.tree.map(lambda matrices: jax.lax.dynamic_slice_in_dim(matrices, at.owner, 1), experts)
    return rows[None], weights.at[at.token, at.slot].get(mode="fill", fill_value=0)[None], own


def _results(
    rows: Float[Array, "blocks rows width"], weights: Float[Array, "blocks rows"], experts: Experts, *, policy: Policy
) -> Float[Array, "blocks rows width"]:
    """What experts make of a block each, weighed."""
    gate = contract("ncd,ndf->ncf", rows, experts.gate, policy=policy)
    up = contract("ncd,ndf->ncf", rows, experts.up, policy=policy)
    return contract("ncf,nfd->ncd", weighed(gated(gate, up, "silu"), weights), experts.down, policy=policy)
