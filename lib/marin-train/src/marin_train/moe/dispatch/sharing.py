"""From whole arrays to what each device computes of them, and back."""

from functools import partial
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from marin_train.configs import MoEConfig
from marin_train.mesh import over_mesh
from marin_train.moe.dispatch.admission import AXIS, admit
from marin_train.moe.dispatch.all_to_all import travel_at_once
from marin_train.moe.dispatch.block import compute_blocks
from marin_train.moe.dispatch.oracle import compute_all
from marin_train.moe.dispatch.ragged import compute_groups
from marin_train.moe.dispatch.ring import travel_round
from marin_train.moe.experts import Experts
from marin_train.moe.routing import Routes, Traffic, over_tokens
from marin_train.policy import Policy


class Body(Protocol):
    """What computes one device's tokens with one device's experts."""

    def __call__(
        self, x: Float[Array, "tokens width"], routes: Routes, experts: Experts, *, num_expected: int, policy: Policy
    ) -> tuple[Float[Array, "tokens width"], Int[Array, ""]]:
        """The weighted sum of each token's experts' results, and how many rows were computed, filling included.

        Args:
            x: the tokens.
            routes: to these experts; the number of experts is nowhere.
            experts: those of this device.
            num_expected: routes that lead to these experts where loads are balanced; how many do is not known before.
            policy: the precision of products.
        """
        ...


BODIES: dict[str, Body] = {"oracle": compute_all, "block": compute_blocks, "ragged": compute_groups}
"""What computes, by its name in a policy."""


EXCHANGES = {"all_to_all": (travel_at_once, False), "ring": (travel_round, True)}
"""How rows travel, by `MoEConfig.exchange`; and whether a device sees the tokens of one other at a time, or of all."""


class Dispatched(NamedTuple):
    """What came of a layer's routes.

    Args:
        output: the weighted sum of each token's experts' results.
        survived: which routes reached their expert.
        traffic: counts, over all devices.
    """

    output: Float[Array, "batch seq width"]
    survived: Bool[Array, "batch seq slots"]
    traffic: Traffic


def dispatch(
    x: Float[Array, "batch seq width"], routes: Routes, experts: Experts, *, config: MoEConfig, policy: Policy
) -> Dispatched:
    """Has each expert compute its tokens.

    Args:
        x: the tokens.
        routes: which experts see each.
        experts: all of them.
        config: how routes travel where experts are on several devices.
        policy: names the body, and the precision of its products.
    """
    num_experts = experts.num_experts

    def share(x: Array, chosen: Array, weights: Array, gate: Array, up: Array, down: Array) -> Dispatched:
        rows, slots = x.reshape(-1, x.shape[-1]), chosen.shape[-1]
        flat = Routes(chosen.reshape(-1, slots), weights.reshape(-1, slots))
        here, expected = Experts(gate, up, down), len(rows) * config.top_k
        compute = partial(BODIES[policy.dispatch], experts=here, policy=policy)
        if sizes[AXIS] == 1:
            output, computed = compute(rows, flat, num_expected=expected)
            survived, none = chosen < num_experts, jnp.zeros((), jnp.int32)
            traffic = Traffic(computed, none, none)
        else:
            group = {"num_here": here.num_experts, "num_devices": sizes[AXIS]}
            admitted = admit(flat.experts, num_experts=num_experts, num_devices=sizes[AXIS], config=config)
            travel, visits = EXCHANGES[config.exchange]
            arriving = partial(compute, num_expected=expected // (sizes[AXIS] if visits else 1))
            output, computed = travel(rows, flat, admitted, arriving, **group)
            survived = admitted.survived.reshape(chosen.shape)
            traffic = Traffic(computed, admitted.dropped_by_sender, admitted.dropped_by_receiver)
        output = jax.lax.psum(output, "model") if sizes["model"] > 1 else output
        return Dispatched(output.reshape(x.shape), survived, over_tokens(traffic, sizes))

    rows, matrix = ("batch", "seq", None), ("expert", None, "mlp")
    run, sizes = over_mesh(
        share,
        inputs=(rows, rows, rows, matrix, matrix, ("expert", "mlp", None)),
        outputs=Dispatched._make((rows, rows, Traffic._make(((), (), ())))),
    )
    return run(x, routes.experts, routes.weights, experts.gate, experts.up, experts.down)
