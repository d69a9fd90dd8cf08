"""Rotary position embeddings: each pair (i, i + dim/2) of a head is turned by an angle proportional to its position.

Scores then depend on the distance of two positions alone. The pairing is the "rotate-half" one of published Llama
checkpoints. For contexts longer than those trained on, frequencies are scaled: all alike (``linear``), the slow ones
only (``llama3``, ``yarn``), or each by its own divisor (``longrope``); the last two also scale queries and keys, which
is carried by the cosines and sines.

``longrope`` has divisors for sequences up to the original length and others for longer ones. The model's declared
``max_seq_len`` decides between them, once for all sequences: choosing by each sequence's own length would turn keys
that are already cached another way than those to come, and give a document packed with others another result than
alone.

Angles are counted in turns, as 32-bit fixed-point numbers whose overflow is a whole turn, so that the product with a
position is exact; the rest of a frequency behind those bits is added in float32. A float32 product would be off by
0.03 radians at position 10^6, a bfloat16 one by whole turns.

See: Su et al. 2021, "RoFormer" (arXiv 2104.09864); for the scalings `marin_train.configs.RopeScaling`.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from marin_train.configs import RopeScaling


class Rotation(NamedTuple):
    """Cosines and sines of every angle, a row a position; the leading dim is 1 where all sequences share positions.

    Both carry the factor by which a scaling multiplies queries and keys.
    """

    cos: Float[Array, "#batch seq half"]
    sin: Float[Array, "#batch seq half"]


def rotary(
    positions: Int[Array, "#batch seq"],
    *,
    dim: int,
    theta: float,
    max_seq_len: int,
    scaling: RopeScaling | None = None,
) -> Rotation:
    """The rotation of the first `dim` dims of a head by ``positions * theta ** (-2 i / dim)`` for pair i, or as scaled.

    Args:
        positions: of the tokens.
        dim: how many dims of a head are turned.
        theta: the base of the frequencies.
        max_seq_len: of the model; ``longrope`` chooses its divisors by it.
        scaling: how frequencies are changed for long contexts.
    """
    turns = frequencies(dim, theta=theta, max_seq_len=max_seq_len, scaling=scaling) / (2 * math.pi)
    fixed = np.round(turns * 2.0**32)
    rest = jnp.asarray(turns - fixed / 2.0**32, jnp.float32)
    # As a signed number: from minus half a turn to half of one, where float32 is finest around none.
    product = positions.astype(jnp.uint32)[..., None] * jnp.asarray(fixed.astype(np.uint64).astype(np.uint32))
    part = jax.lax.bitcast_convert_type(product, jnp.int32).astype(jnp.float32) * 2.0**-32
    angles = 2 * math.pi * (part + positions.astype(jnp.float32)[..., None] * rest)
    factor = attention_factor(scaling)
    return Rotation(factor * jnp.cos(angles), factor * jnp.sin(angles))


def rotate(x: Float[Array, "batch seq heads dim"], rotation: Rotation) -> Float[Array, "batch seq heads dim"]:
    """`x` with every head turned by its position's angles, in float32; dims that the rotation lacks stay."""
    cos, sin = rotation.cos[:, :, None, :], rotation.sin[:, :, None, :]
    half = cos.shape[-1]
    first, second = x[..., :half].astype(jnp.float32), x[..., half : 2 * half].astype(jnp.float32)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return jnp.concatenate([*(part.astype(x.dtype) for part in turned), x[..., 2 * half :]], axis=-1)


def frequencies(dim: int, *, theta: float, max_seq_len: int, scaling: RopeScaling | None = None) -> np.ndarray:
    """Radians a position for each pair, Float64[dim / 2]; the arguments are those of `rotary`."""
    plain = theta ** (-np.arange(0, dim, 2) / dim)
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return plain / scaling.factor
    if scaling.kind == "longrope":
        longer = max_seq_len > _original(scaling)
        return plain / np.array(scaling.long_factor if longer else scaling.short_factor)
    kept = _kept_by_llama3(plain, scaling) if scaling.kind == "llama3" else _kept_by_yarn(dim, theta, scaling)
    return kept * plain + (1 - kept) * plain / scaling.factor


def attention_factor(scaling: RopeScaling | None) -> float:
    """The factor of queries and of keys; scores are multiplied by its square."""
    if scaling is None or scaling.kind not in ("yarn", "longrope"):
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.factor <= 1:
        return 1.0
    if scaling.kind == "yarn":
        return 0.1 * math.log(scaling.factor) + 1
    return math.sqrt(1 + math.log(scaling.factor) / math.log(_original(scaling)))


def _original(scaling: RopeScaling) -> int:
    assert scaling.original_max_seq_len is not None  # RopeScaling has refused this already
    return scaling.original_max_seq_len


def _kept_by_llama3(plain: np.ndarray, scaling: RopeScaling) -> np.ndarray:
    """The share of each frequency that stays: all of the fast ones, none of the slow ones, a ramp in turns between."""
    turns = _original(scaling) * plain / (2 * math.pi)
    width = scaling.high_freq_factor - scaling.low_freq_factor
    return np.clip((turns - scaling.low_freq_factor) / width, 0, 1)


def _kept_by_yarn(dim: int, theta: float, scaling: RopeScaling) -> np.ndarray:
    """Likewise with a ramp in the pair's number, whose ends are whole numbers."""

    def pair(turns: float) -> float:
        """The number of the pair that turns so often over the original context."""
        return dim * math.log(_original(scaling) / (2 * math.pi * turns)) / (2 * math.log(theta))

    low, high = max(math.floor(pair(scaling.beta_fast)), 0), min(math.ceil(pair(scaling.beta_slow)), dim - 1)
    # Ends that coincide make a step of the ramp, as in published code.
    width = high - low if high != low else 1e-3
    return 1 - np.clip((np.arange(dim // 2) - low) / width, 0, 1)
