"""Rows on their way: from tokens to the places where they are computed, and their results back, added up.

Rows are moved by gathers in both directions: a row knows its token, and a route knows its row, so that neither pass
scatters. The derivative of a move is the other move.

A row carries its route's weight, and experts apply it where they are narrowest, before they project back: results are
then added as they are, and no pass backwards wants them again.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Layout(NamedTuple):
    """Which row of the blocks each route fills, and which route fills a row; of none, the number of rows or routes."""

    row_of_route: Int[Array, "tokens slots"]
    route_of_row: Int[Array, " rows"]


def ranks(places: Int[Array, " routes"], num_places: int) -> tuple[Int[Array, " routes"], Int[Array, " places"]]:
    """Each route's rank among those that lead to the same place, in their order, and how many lead to each place.

    Args:
        places: of each route, an expert or a device; ``num_places`` for nowhere.
        num_places: how many there are.
    """
    order = jnp.argsort(places, stable=True)
    load = jnp.zeros(num_places + 1, jnp.int32).at[places].add(1)
    start = jnp.cumsum(load) - load
    rank = jnp.zeros_like(places).at[order].set(jnp.arange(len(places), dtype=places.dtype), unique_indices=True)
    return rank - start[places], load[:num_places]


def lay_out(rows: Int[Array, "tokens slots"], num_rows: int) -> Layout:
    """The layout in which each route fills the row of that number, which no other fills, or none: ``num_rows``."""
    numbers = jnp.arange(rows.size, dtype=jnp.int32)
    route_of_row = jnp.full(num_rows, rows.size, jnp.int32).at[rows.reshape(-1)].set(numbers, mode="drop")
    return Layout(rows, route_of_row)


@jax.custom_vjp
def spread(x: Float[Array, "tokens width"], layout: Layout) -> Float[Array, "rows width"]:
    """Each row's token; zeros in rows without one."""
    slots = layout.row_of_route.shape[1]
    return _taken(x, layout.route_of_row // slots)


def _spread_forward(x: Array, layout: Layout) -> tuple[Array, Layout]:
    return spread(x, layout), layout


def _spread_backward(layout: Layout, slope: Array) -> tuple[Array, None]:
    return collect(slope, layout), None


spread.defvjp(_spread_forward, _spread_backward)


def spread_weights(weights: Float[Array, "tokens slots"], layout: Layout) -> Float[Array, " rows"]:
    """The weight of each row's route; 0 in rows without one."""
    by_route = Layout(layout.row_of_route.reshape(-1, 1), layout.route_of_row)
    return spread(weights.reshape(-1, 1), by_route)[:, 0]


@jax.custom_vjp
def collect(rows: Float[Array, "rows width"], layout: Layout) -> Float[Array, "tokens width"]:
    """The sum of each token's rows."""
    return jnp.sum(_taken(rows, layout.row_of_route), axis=1)


def _collect_forward(rows: Array, layout: Layout) -> tuple[Array, Layout]:
    return collect(rows, layout), layout


def _collect_backward(layout: Layout, slope: Array) -> tuple[Array, None]:
    return spread(slope, layout), None


collect.defvjp(_collect_forward, _collect_backward)


def weighed(rows: Float[Array, "*rows width"], weights: Float[Array, "*rows"]) -> Float[Array, "*rows width"]:
    """Rows times their weights, in the rows' type."""
    return (weights[..., None] * rows).astype(rows.dtype)


def _taken(values: Float[Array, "n width"], index: Int[Array, "..."]) -> Float[Array, "... width"]:
    """Those rows of `values`; zeros for an index beyond the last."""
    return jnp.take(values, index, axis=0, mode="fill", fill_value=0)
