"""A stack of identical layers: scanned or unrolled, with or without recomputation, at equal results.

Scanning compiles one layer whatever the depth. XLA on CPU runs the body of a loop with less parallelism than
straight-line code, so the policy may unroll instead.
"""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Float

from marin_train.policy import Policy

Hidden = Float[Array, "batch seq embed"]


def apply_layers(layer: Callable[[Any, Hidden], Hidden], stack: Any, x: Hidden, *, policy: Policy) -> Hidden:
    """`x` through every layer of `stack`.

    Args:
        layer: one layer's parameters and its input, to its output.
        stack: the parameters, each leaf with a leading layer dim.
        x: the input of the first layer.
        policy: whether to scan, and whether the backward pass recomputes a layer from its input.
    """
    step = jax.checkpoint(layer) if policy.remat else layer
    if policy.scan:
        return jax.lax.scan(lambda x, parameters: (step(parameters, x), None), x, stack)[0]
    num_layers = jax.tree.leaves(stack)[0].shape[0]
    for i in range(num_layers):
        x = step(jax.tree.map(lambda leaf: leaf[i], stack), x)  # noqa: B023 - mapped at once
    return x
