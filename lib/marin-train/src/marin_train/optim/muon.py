"""Muon: momentum whose singular values are brought near 1, so that every direction of a matrix is moved equally far.

The last two dims are the matrix and the others count matrices: each layer of a stack, each expert, is its own. Norms
are roots of sums of squares, which a partitioner sums over shards without any special case.

See: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"; Liu et al. 2025, "Muon is Scalable
for LLM Training" (arXiv 2502.16982), for the scale that lets Adam's rate and decay serve.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

_QUINTIC = (3.4445, -4.7750, 2.0315)
"""Jordan's coefficients: steep at 0, so that small singular values rise fast; large ones end between 0.7 and 1.2."""
_ADAM_RMS = 0.2
"""The root mean square of Adam's updates in practice (Liu et al. 2025)."""


def scale_by_muon(*, momentum: float, ns_steps: int, match_adam: bool = True) -> optax.GradientTransformation:
    """Nesterov momentum, orthogonalized matrix by matrix.

    Args:
        momentum: its decay rate.
        ns_steps: Newton-Schulz iterations.
        match_adam: whether updates are scaled to the root mean square of Adam's, whatever their shape.
    """

    def direct(trace: Float[Array, "... in out"]) -> Float[Array, "... in out"]:
        scale = _ADAM_RMS * max(trace.shape[-2:]) ** 0.5 if match_adam else 1.0
        return scale * orthogonalize(trace, num_steps=ns_steps)

    return optax.chain(
        optax.trace(momentum, nesterov=True),
        optax.stateless(lambda updates, _: jax.tree.map(direct, updates)),
    )


def orthogonalize(matrices: Float[Array, "... in out"], *, num_steps: int) -> Float[Array, "... in out"]:
    """Newton-Schulz iterations towards the nearest semi-orthogonal matrix of each."""
    wide = matrices.shape[-2] <= matrices.shape[-1]
    x = matrices if wide else jnp.swapaxes(matrices, -1, -2)
    x = x / jnp.maximum(matrix_norm(x), 1e-30)
    a, b, c = _QUINTIC
    for _ in range(num_steps):
        gram = x @ jnp.swapaxes(x, -1, -2)
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x if wide else jnp.swapaxes(x, -1, -2)


def matrix_norm(matrices: Any) -> Float[Array, "... 1 1"]:
    """The Frobenius norm of each matrix, float32."""
    return jnp.sqrt(jnp.sum(jnp.square(matrices.astype(jnp.float32)), axis=(-2, -1), keepdims=True))
