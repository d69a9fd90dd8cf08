"""How balanced a step's routing was, a number a layer: on the device, from what was counted.

See: Wang et al. 2024 (arXiv 2408.15664) for MaxVio.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from marin_train.moe.routing import Routing


class RoutingMetrics(NamedTuple):
    """Of a step; each with a leading dim of layers of experts.

    Args:
        load: tokens routed to each expert.
        max_vio: by how much the largest load exceeds the mean, as a share of it; 0 is perfect balance.
        load_entropy: that of the loads' shares over that of equal ones: 1 is perfect balance.
        router_entropy: mean over tokens of that of the router's softmax, nats.
        dead: experts that no token was routed to.
        dropped_by_sender: share of routes dropped on their way.
        dropped_by_receiver: share dropped where they arrived.
        padding: rows computed that fill up a shape, as a share of the routes computed.
        bias_drift: root-mean-square of what the step moved the bias by; 0 without one.
    """

    load: Int[Array, "layer experts"]
    max_vio: Float[Array, " layer"]
    load_entropy: Float[Array, " layer"]
    router_entropy: Float[Array, " layer"]
    dead: Int[Array, " layer"]
    dropped_by_sender: Float[Array, " layer"]
    dropped_by_receiver: Float[Array, " layer"]
    padding: Float[Array, " layer"]
    bias_drift: Float[Array, " layer"]


def measure_routing(routing: Routing, before: Any, after: Any) -> RoutingMetrics:
    """The metrics of a step.

    Args:
        routing: what was counted.
        before: the model that it was counted with.
        after: the one that comes next.
    """
    load, traffic = routing.load, routing.traffic
    routes = jnp.sum(load, axis=-1)
    some = jnp.maximum(routes, 1).astype(jnp.float32)
    shares = load / some[:, None]
    entropy = -jnp.sum(jnp.where(load > 0, shares * jnp.log(jnp.maximum(shares, 1e-30)), 0.0), axis=-1)
    num_experts = load.shape[-1]
    dropped = traffic.dropped_by_sender + traffic.dropped_by_receiver
    reached = jnp.maximum(routes - dropped, 1).astype(jnp.float32)
    bias, moved = before.layers.mlp.router_bias, after.layers.mlp.router_bias
    return RoutingMetrics(
        load=load,
        max_vio=jnp.max(shares, axis=-1) * num_experts - 1.0,
        load_entropy=entropy / jnp.log(max(2, num_experts)),
        router_entropy=routing.entropy / jnp.maximum(routing.num_tokens, 1),
        dead=jnp.sum(load == 0, axis=-1, dtype=jnp.int32),
        dropped_by_sender=traffic.dropped_by_sender / some,
        dropped_by_receiver=traffic.dropped_by_receiver / some,
        padding=(traffic.computed - (routes - dropped)) / reached,
        bias_drift=jnp.zeros(len(load)) if bias is None else _rms(moved - bias),
    )


def _rms(x: Float[Array, "layer experts"]) -> Float[Array, " layer"]:
    return jnp.sqrt(jnp.mean(jnp.square(x), axis=-1))
