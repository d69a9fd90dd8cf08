"""Rows travel to the devices of their experts, all at once, and their results travel back.

Each device has a buffer of equal room for every other. Experts never move, and a row moves twice, whatever the number
of its expert's device. A token that has several experts on a device travels there as often.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from marin_train.moe.dispatch.admission import AXIS, Admitted
from marin_train.moe.dispatch.rows import collect, lay_out, ranks, spread, spread_weights
from marin_train.moe.routing import Routes

Compute = Callable[[Float[Array, "rows width"], Routes], tuple[Float[Array, "rows width"], Int[Array, ""]]]
"""What this device's experts make of rows, and how many rows were computed for it; experts by their numbers here."""


def travel_at_once(
    x: Float[Array, "tokens width"],
    routes: Routes,
    admitted: Admitted,
    compute: Compute,
    *,
    num_here: int,
    num_devices: int,
) -> tuple[Float[Array, "tokens width"], Int[Array, ""]]:
    """The weighted sum of each token's experts' results, and the rows that this device computed.

    Args:
        x: this device's tokens.
        routes: theirs, by the experts' numbers among all.
        admitted: which of them go on their way.
        compute: this device's experts.
        num_here: experts on a device.
        num_devices: that share them out.
    """
    room = admitted.room
    device = jnp.where(admitted.survived, routes.experts // num_here, num_devices)
    rank, _ = ranks(device.reshape(-1), num_devices)
    row = jnp.where(admitted.survived, device * room + rank.reshape(device.shape), num_devices * room)
    layout = lay_out(row, num_devices * room)
    numbers = jnp.append(routes.experts.reshape(-1) % num_here, num_here)

    def exchange(rows: Array) -> Array:
        split = rows.reshape(num_devices, room, *rows.shape[1:])
        return jax.lax.all_to_all(split, AXIS, split_axis=0, concat_axis=0).reshape(rows.shape)

    arrived = exchange(spread(x, layout))
    experts = exchange(numbers[layout.route_of_row])[:, None]
    weights = exchange(spread_weights(routes.weights, layout))[:, None]
    results, computed = compute(arrived, Routes(experts, weights))
    return collect(exchange(results), layout), computed
