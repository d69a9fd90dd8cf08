"""A stack of layers whose parameters have equal shapes: scanned or unrolled, with or without recomputation.

Layers may differ in what they do (a window here, no positions there): each has a `Kind`, known to the compiler. Kinds
repeat after a period, so a scan's body is one period, and the layers that do not fill a last one follow behind it.
Scanning compiles one period whatever the depth. XLA on CPU runs the body of a loop with less parallelism than
straight-line code, so the policy may unroll instead.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from marin_train.mesh import constrain
from marin_train.policy import Policy

Hidden = Float[Array, "batch seq embed"]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What one layer does differently from the others.

    Args:
        window: tokens that a query sees, itself included; None for all before it.
        rotation: which of the `Context`'s rotations turns queries and keys; None for none (NoPE).
    """

    window: int | None = None
    rotation: Literal["global", "local"] | None = "global"


class Emitted(NamedTuple):
    """What a layer hands on beside its output; stacked, what all layers do.

    Args:
        past: keys and values so far, where a past was given.
        routing: what was counted of a layer of experts (`marin_train.moe.Routing`); None of others.
    """

    past: Any = None
    routing: Any = None


Layer = Callable[[Kind, Any, Hidden, Any], tuple[Hidden, Emitted]]
"""One layer's kind, parameters, input and share of the carried state, to its output and what it emits."""


def apply_layers(
    layer: Layer, stack: Any, x: Hidden, *, kinds: Sequence[Kind], policy: Policy, carried: Any = None
) -> tuple[Hidden, Any]:
    """`x` through every layer of `stack`.

    Args:
        layer: see `Layer`.
        stack: the parameters, each leaf with a leading layer dim.
        x: the input of the first layer.
        kinds: of each layer.
        policy: whether to scan, and what the backward pass recomputes.
        carried: what each layer is given beside its parameters, with a leading layer dim; None for nothing.

    Returns:
        The output of the last layer, and what layers emitted, stacked along a leading dim.
    """
    num_layers = len(kinds)

    def straight(x: Hidden, leaves: Any, kinds: Sequence[Kind]) -> tuple[Hidden, Any]:
        emitted = []
        for i, kind in enumerate(kinds):
            step = _rematerialised(partial(_layer_at, layer, kind, i), policy)
            x, out = step(constrain(x, "batch", "residual", None), leaves)
            emitted.append(out)
        return x, jax.tree.map(lambda *outs: jnp.stack(outs), *emitted)

    leaves = (stack, carried)
    if not policy.scan:
        return straight(x, leaves, kinds)
    period = next(p for p in range(1, num_layers + 1) if all(kinds[i] == kinds[i % p] for i in range(num_layers)))
    whole = num_layers - num_layers % period
    body = jax.tree.map(lambda leaf: leaf[:whole].reshape(-1, period, *leaf.shape[1:]), leaves)
    x, emitted = jax.lax.scan(lambda x, leaves: straight(x, leaves, kinds[:period]), x, body)
    emitted = jax.tree.map(lambda leaf: leaf.reshape(whole, *leaf.shape[2:]), emitted)
    if whole == num_layers:
        return x, emitted
    x, rest = straight(x, jax.tree.map(lambda leaf: leaf[whole:], leaves), kinds[whole:])
    return x, jax.tree.map(lambda *parts: jnp.concatenate(parts), emitted, rest)


def _layer_at(layer: Layer, kind: Kind, i: int, x: Hidden, leaves: tuple[Any, Any]) -> tuple[Hidden, Any]:
    """The layer with its share of the leaves.

    What is recomputed begins here, with all of the leaves: what it is handed is kept for the backward pass, and of a
    share that would be a copy, in the end one of all parameters.
    """
    parameters, carried = jax.tree.map(lambda leaf: leaf[i], leaves)
    return layer(kind, parameters, x, carried)


def _rematerialised(step: Callable[..., Any], policy: Policy) -> Callable[..., Any]:
    if policy.remat == "keep":
        return step
    policies = jax.checkpoint_policies
    results = policies.save_from_both_policies(policies.save_only_these_names(*ATTENDED), _is_kernel)
    saved = {
        "full": policies.nothing_saveable,
        "dots": policies.save_from_both_policies(policies.dots_with_no_batch_dims_saveable, results),
        "named": policies.save_from_both_policies(policies.save_only_these_names(*PROJECTED), results),
    }
    return jax.checkpoint(step, policy=saved[policy.remat])


PROJECTED = ("attention_query", "attention_key", "attention_value")
"""What goes into attention; blocks name these arrays with `jax.ad_checkpoint.checkpoint_name`."""

ATTENDED = ("attention_mixed", "attention_lse")
"""What comes out. With both its derivative has all that it reads, and attention is not computed twice."""

KERNEL = "dot_product_attention_fwd_wrapper"
"""jax's name of cuDNN's attention: its derivative reads what no `checkpoint_name` reaches from outside."""


def _is_kernel(primitive: Any, *_: Any, **__: Any) -> bool:
    return primitive.name == KERNEL
