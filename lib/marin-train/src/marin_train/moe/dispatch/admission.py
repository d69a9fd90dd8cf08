"""Which routes find room where experts lie on several devices: decided by every sender, before a row travels.

With a capacity factor c, a device has room on its way to each other device for c times its routes' even share, and an
expert has room for c times its share of all that the devices of its group send. Routes take room in the order of the
batch: of devices, and on a device of tokens. So the same routes are dropped however rows travel, and every time.
Experts' rooms are shared between devices, for which each tells the others how many routes it has for every expert.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from marin_train.configs import MoEConfig
from marin_train.moe.dispatch.rows import ranks

AXIS = "expert"
"""The mesh axis over which experts are shared out."""


class Admitted(NamedTuple):
    """What becomes of a device's routes.

    Args:
        survived: which go on their way.
        room: rows for each other device, at most.
        dropped_by_sender: routes that find no room to their expert's device.
        dropped_by_receiver: routes of those left that find none at their expert.
    """

    survived: Bool[Array, "tokens slots"]
    room: int
    dropped_by_sender: Int[Array, ""]
    dropped_by_receiver: Int[Array, ""]


def admit(experts: Int[Array, "tokens slots"], *, num_experts: int, num_devices: int, config: MoEConfig) -> Admitted:
    """Decides which of this device's routes find room.

    Args:
        experts: each route's, by its number among all; ``num_experts`` is nowhere.
        num_experts: on all devices together.
        num_devices: of the group that shares the experts out.
        config: its capacity factor and top_k.
    """
    num_tokens, slots = experts.shape
    here = num_experts // num_devices
    leads = experts < num_experts
    none = jnp.zeros((), jnp.int32)
    if config.capacity_factor is None:
        # A token has no more routes to a device than that has experts.
        return Admitted(leads, num_tokens * min(slots, here), none, none)
    flat = experts.reshape(-1)
    share = config.capacity_factor * num_tokens * config.top_k
    room = min(math.ceil(share / num_devices), num_tokens * min(slots, here))
    rank, _ = ranks(flat // here, num_devices)
    sent = leads.reshape(-1) & (rank < room)
    rank, load = ranks(jnp.where(sent, flat, num_experts), num_experts)
    loads = jax.lax.all_gather(load, AXIS)
    before = jnp.sum(jnp.where(jnp.arange(num_devices)[:, None] < jax.lax.axis_index(AXIS), loads, 0), axis=0)
    rank = rank + before[jnp.minimum(flat, num_experts - 1)]
    survived = sent & (rank < math.ceil(share * num_devices / num_experts))
    left = [jnp.sum(kept, dtype=jnp.int32) for kept in (leads, sent, survived)]
    return Admitted(survived.reshape(experts.shape), room, left[0] - left[1], left[1] - left[2])
