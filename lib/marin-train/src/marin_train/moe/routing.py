"""What a router decides, and what is counted of it.

Scores are float32 whatever the policy says, since rounding them would change who is chosen. Experts are chosen by a
balance rule, and their weights made of the scores as they are: a bias moves who sees a token and not how much it
counts. A token that is padding is routed nowhere, so that it counts as no expert's load and takes no expert's time.

What is counted adds up over the parts of a batch and over devices: integers, and sums over tokens.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from marin_train.configs import ModelConfig, MoEConfig
from marin_train.mesh import RULES, over_mesh

Scores = Float[Array, "batch seq experts"]
"""The router's, float32."""


class Routes(NamedTuple):
    """Which experts see each token, and how much each counts.

    Args:
        experts: the experts' numbers; ``num_experts`` is nowhere: padding, or a slot that a rule left empty.
        weights: float32; 0 of nowhere.
    """

    experts: Int[Array, "*tokens slots"]
    weights: Float[Array, "*tokens slots"]


class Traffic(NamedTuple):
    """What became of a layer's routes, in rows that experts compute; over all devices.

    Args:
        computed: rows that were computed, those that only fill up a shape included.
        dropped_by_sender: routes that found no room on their way to an expert's device.
        dropped_by_receiver: routes that found none at the expert's device.
    """

    computed: Int[Array, "*layer"]
    dropped_by_sender: Int[Array, "*layer"]
    dropped_by_receiver: Int[Array, "*layer"]


class Routing(NamedTuple):
    """What a layer's router did with a batch, or a part of one. Only `objective` has a gradient.

    Args:
        objective: what the balance rule and the router's z-loss add to the loss, summed over tokens.
        load: tokens routed to each expert, before any is dropped.
        counts: what the balance rule moves its bias by; None where it has none.
        entropy: that of the router's softmax, nats, summed over tokens.
        num_tokens: tokens that are no padding.
        traffic: what became of the routes.
    """

    objective: Float[Array, "*layer"]
    load: Int[Array, "*layer experts"]
    counts: Any
    entropy: Float[Array, "*layer"]
    num_tokens: Int[Array, "*layer"]
    traffic: Traffic


def merge_routing(a: Routing, b: Routing, *, config: MoEConfig) -> Routing:
    """What was counted of two parts of a batch."""
    from marin_train.moe.balance import bias_rule

    added = jax.tree.map(jnp.add, a._replace(counts=None), b._replace(counts=None))
    return added._replace(counts=None if a.counts is None else bias_rule(config).merge(a.counts, b.counts))


def weigh(
    scores: Scores, chosen: Int[Array, "batch seq slots"], *, valid: Bool[Array, "batch seq"] | None, config: MoEConfig
) -> Routes:
    """The routes to the chosen experts, their weights made of unbiased scores.

    Args:
        scores: the router's.
        chosen: experts; ``num_experts`` for none.
        valid: which tokens are no padding; None for all.
        config: how weights are made.
    """
    nowhere = scores.shape[-1]
    chosen = routed(chosen, valid, nowhere=nowhere)
    shares = jax.nn.softmax(scores, axis=-1) if config.combine == "softmax" else jax.nn.sigmoid(scores)
    weights = jnp.take_along_axis(shares, jnp.minimum(chosen, nowhere - 1), axis=-1)
    weights = jnp.where(chosen < nowhere, weights, 0.0)
    if config.renormalise:
        total = jnp.sum(weights, axis=-1, keepdims=True)
        weights = weights / jnp.where(total > 0, total, 1.0)
    return Routes(chosen, config.scale * weights)


def routed(
    chosen: Int[Array, "batch seq slots"], valid: Bool[Array, "batch seq"] | None, *, nowhere: int
) -> Int[Array, "batch seq slots"]:
    """What is chosen, and nowhere for padding."""
    return chosen if valid is None else jnp.where(valid[..., None], chosen, nowhere)


def loads(experts: Int[Array, "batch seq slots"], num_experts: int) -> Int[Array, " experts"]:
    """How many routes lead to each expert, over all devices; those to nowhere are not counted."""

    def share(experts: Array) -> Array:
        counts = jnp.zeros(num_experts, jnp.int32).at[experts.reshape(-1)].add(1, mode="drop")
        return over_tokens(counts, sizes)

    run, sizes = over_mesh(share, inputs=(("batch", "seq", None),), outputs=(None,))
    return run(experts)


def over_tokens(counts: Any, sizes: Mapping[str, int]) -> Any:
    """The sum of counts over the devices that tokens are spread over; those that hold the same tokens count once.

    Args:
        counts: those of a device's share of tokens, within `marin_train.mesh.over_mesh`.
        sizes: devices by axis.
    """
    axes = token_axes(sizes)
    return jax.lax.psum(counts, axes) if axes else counts


def token_axes(sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The mesh axes that tokens are spread over, of those with several devices."""
    return tuple(axis for axis in (*RULES["batch"], *RULES["seq"]) if sizes[axis] > 1)


def rebalanced(model: Any, ema: Any, routing: Routing, *, config: ModelConfig) -> tuple[Any, Any]:
    """The model, and the average of models if there is one, with the bias that the next batch is to be chosen with.

    Args:
        model: the parameters after the optimizer's update, which leaves the bias as it is.
        ema: their average; None without one. It has the model's own bias: an average would be nobody's balance.
        routing: what was counted of the batch.
        config: the model's shape.
    """
    from marin_train.moe.balance import bias_rule

    assert config.moe is not None
    bias = model.layers.mlp.router_bias
    if bias is None:
        return model, ema
    bias = bias_rule(config.moe).updated(bias, routing.counts, config=config.moe)

    def with_bias(tree: Any) -> Any:
        return None if tree is None else eqx.tree_at(lambda m: m.layers.mlp.router_bias, tree, bias)

    return with_bias(model), with_bias(ema)
