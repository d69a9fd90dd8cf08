"""RMSNorm: scale to unit root-mean-square, then by a learned gain; in float32 whatever the policy.

See: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization" (arXiv 1910.07467).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def rms_norm(x: Float[Array, "... dim"], gain: Float[Array, " dim"], *, eps: float) -> Float[Array, "... dim"]:
    """`x` with unit root-mean-square over its last dim, times `gain`; in the type of `x`."""
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps) * gain).astype(x.dtype)
