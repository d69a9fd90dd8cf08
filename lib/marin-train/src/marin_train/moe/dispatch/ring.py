"""Tokens travel round the devices, and each device adds what its experts make of them.

Everything travels, whether a device has an expert for it or not, with the sums so far: for few devices, or tokens with
many experts, that is less than a row a route, and it needs no room that could be too small. One share of tokens is on a
device at a time.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from marin_train.moe.dispatch.admission import AXIS, Admitted
from marin_train.moe.dispatch.all_to_all import Compute
from marin_train.moe.routing import Routes


def travel_round(
    x: Float[Array, "tokens width"],
    routes: Routes,
    admitted: Admitted,
    compute: Compute,
    *,
    num_here: int,
    num_devices: int,
) -> tuple[Float[Array, "tokens width"], Int[Array, ""]]:
    """See `marin_train.moe.dispatch.all_to_all.travel_at_once`."""
    first = jax.lax.axis_index(AXIS) * num_here
    onward = [(device, (device + 1) % num_devices) for device in range(num_devices)]

    def stop(carried: tuple[Array, ...], _: None) -> tuple[tuple[Array, ...], Array]:
        x, experts, weights, total = carried
        is_here = (experts >= first) & (experts < first + num_here)
        here = Routes(jnp.where(is_here, experts - first, num_here), jnp.where(is_here, weights, 0.0))
        added, computed = compute(x, here)
        return jax.lax.ppermute((x, experts, weights, total + added), AXIS, onward), computed

    nowhere = num_here * num_devices
    experts = jnp.where(admitted.survived, routes.experts, nowhere)
    start = (x, experts, routes.weights, jnp.zeros_like(x))
    (_, _, _, total), computed = jax.lax.scan(jax.checkpoint(stop), start, length=num_devices)
    return total, jnp.sum(computed)
