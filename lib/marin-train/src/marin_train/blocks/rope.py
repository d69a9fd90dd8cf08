"""Rotary position embeddings: each pair (i, i + dim/2) of a head is turned by an angle proportional to its position.

Scores then depend on the distance of two positions alone. The pairing is the "rotate-half" one of published Llama
checkpoints. Angles are float32: at position 100,000 bfloat16 angles would be whole turns off.

See: Su et al. 2021, "RoFormer" (arXiv 2104.09864).
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from marin_train.configs import RopeScaling


class Rotation(NamedTuple):
    """Cosines and sines of every angle, a row a position; the leading dim is 1 where all sequences share positions."""

    cos: Float[Array, "#batch seq half"]
    sin: Float[Array, "#batch seq half"]


def rotary(
    positions: Int[Array, "#batch seq"], *, dim: int, theta: float, scaling: RopeScaling | None = None
) -> Rotation:
    """The rotation of the first `dim` dims of a head by ``positions * theta ** (-2 i / dim)`` for pair i."""
    if scaling is not None:
        raise NotImplementedError
    frequencies = theta ** (-jnp.arange(0, dim, 2, dtype=jnp.float32) / dim)
    angles = positions.astype(jnp.float32)[..., None] * frequencies
    return Rotation(jnp.cos(angles), jnp.sin(angles))


def rotate(x: Float[Array, "batch seq heads dim"], rotation: Rotation) -> Float[Array, "batch seq heads dim"]:
    """`x` with every head turned by its position's angles, in float32; dims that the rotation lacks stay."""
    cos, sin = rotation.cos[:, :, None, :], rotation.sin[:, :, None, :]
    half = cos.shape[-1]
    first, second = x[..., :half].astype(jnp.float32), x[..., half : 2 * half].astype(jnp.float32)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return jnp.concatenate([*(part.astype(x.dtype) for part in turned), x[..., 2 * half :]], axis=-1)
