"""RMSNorm: scale to unit root-mean-square, then by a learned gain; in float32 whatever the policy.

See: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization" (arXiv 1910.07467).
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def rms_norm(x: Float[Array, "... dim"], gain: Float[Array, " dim"], *, eps: float) -> Float[Array, "... dim"]:
    """`x` with unit root-mean-square over its last dim, times `gain`; in the type of `x`."""
    return _normed(x, gain, eps)


@partial(jax.checkpoint, static_argnums=2)
def _normed(x: Array, gain: Array, eps: float) -> Array:
    """Recomputed by the backward pass under every policy: its input is kept anyway, and arrays between would be too."""
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps) * gain).astype(x.dtype)
