"""Short causal convolutions: each channel adds a weighted sum of its own last values to what it is.

``x + convolution(x)``, depthwise, over the token and the few before it in its own document; before a document's first
token there is nothing. Weights start at zero, so that it begins as the identity. Token by token it needs the inputs
before, which lie in a buffer with a place for each token, as keys do: a token that is read again overwrites its own.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from marin_train.parameters import Constant, Parameter

TAPS = 4
"""Tokens that a sum is over, the token itself included."""


def convolve(
    x: Float[Array, "batch seq channels"],
    weight: Float[Array, "taps channels"],
    *,
    segment_ids: Int[Array, "batch seq"] | None,
) -> Float[Array, "batch seq channels"]:
    """`x` plus its convolution over whole sequences; the last tap is the token's own."""
    total = x + x * weight[-1]
    for back in range(1, TAPS):
        before = jnp.pad(x, ((0, 0), (back, 0), (0, 0)))[:, : x.shape[1]]
        if segment_ids is not None:
            same = jnp.pad(segment_ids, ((0, 0), (back, 0)), constant_values=-1)[:, : x.shape[1]] == segment_ids
            before = jnp.where(same[..., None], before, 0)
        total += before * weight[-1 - back]
    return total.astype(x.dtype)


def convolve_next(
    x: Float[Array, "batch new channels"],
    weight: Float[Array, "taps channels"],
    past: Float[Array, "batch seq channels"],
    *,
    at: Int[Array, " batch"],
) -> tuple[Float[Array, "batch new channels"], Float[Array, "batch seq channels"]]:
    """The same of the tokens at indices `at` and after, and the buffer of inputs that then holds theirs too."""
    put = jax.vmap(lambda old, new, start: jax.lax.dynamic_update_slice_in_dim(old, new, start, axis=0))
    past = put(past, x.astype(past.dtype), at)
    total = x + x * weight[-1]
    for back in range(1, TAPS):
        index = at[:, None] + jnp.arange(x.shape[1]) - back
        before = jnp.take_along_axis(past, jnp.maximum(index, 0)[..., None], axis=1)
        total += jnp.where(index[..., None] >= 0, before, 0) * weight[-1 - back]
    return total.astype(x.dtype), past


def convolution(path: str, channels: int, *, dim: str, hf_key: str) -> Parameter:
    """The weights of a convolution.

    Args:
        path: where they are in the model.
        channels: how many there are.
        dim: the name of that dim.
        hf_key: their name in a checkpoint in Hugging Face's manner.
    """
    return Parameter(
        path=path, shape=(TAPS, channels), dims=("tap", dim), role="conv", init=Constant(0.0), hf_key=hf_key
    )
