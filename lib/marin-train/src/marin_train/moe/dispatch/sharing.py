"""From whole arrays to what each device computes of them, and back."""

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from marin_train.configs import MoEConfig
from marin_train.errors import ConfigError
from marin_train.mesh import over_mesh
from marin_train.moe.dispatch.block import compute_blocks
from marin_train.moe.dispatch.oracle import compute_all
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


BODIES: dict[str, Body] = {"oracle": compute_all, "block": compute_blocks}
"""What computes, by its name in a policy."""


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
    nowhere = experts.num_experts

    def share(x: Array, chosen: Array, weights: Array, gate: Array, up: Array, down: Array) -> Dispatched:
        rows, slots = x.reshape(-1, x.shape[-1]), chosen.shape[-1]
        flat = Routes(chosen.reshape(-1, slots), weights.reshape(-1, slots))
        if sizes["expert"] > 1:
            raise ConfigError("experts on several devices")
        output, computed = BODIES[policy.dispatch](
            rows, flat, Experts(gate, up, down), num_expected=len(rows) * config.top_k, policy=policy
        )
        none = jnp.zeros((), jnp.int32)
        traffic = over_tokens(Traffic(computed, none, none), sizes)
        output = jax.lax.psum(output, "model") if sizes["model"] > 1 else output
        return Dispatched(output.reshape(x.shape), chosen < nowhere, traffic)

    rows, matrix = ("batch", "seq", None), ("expert", None, "mlp")
    run, sizes = over_mesh(
        share,
        inputs=(rows, rows, rows, matrix, matrix, ("expert", "mlp", None)),
        outputs=Dispatched(rows, rows, Traffic((), (), ())),
    )
    return run(x, routes.experts, routes.weights, experts.gate, experts.up, experts.down)
