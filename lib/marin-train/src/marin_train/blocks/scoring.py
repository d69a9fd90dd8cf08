"""How a query scores the keys that it sees, for all bodies of attention."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

MASKED = -1e30
"""A masked score. Finite, because a row of -inf alone would make NaN of its softmax."""


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """Static: known to the compiler.

    Args:
        scale: factor of products.
        window: tokens that a query sees, itself included; None for all before it.
        softcap: scores s become ``softcap * tanh(s / softcap)``; None leaves them.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None

    def capped(self, scores: Float[Array, "..."]) -> Float[Array, "..."]:
        """Scores after the soft-cap."""
        return scores if self.softcap is None else self.softcap * jnp.tanh(scores / self.softcap)

    def visible(
        self, queries: Int[Array, "*batch rows"], keys: Int[Array, "*batch keys"]
    ) -> Bool[Array, "*batch rows keys"]:
        """Which keys each query sees, by their indices in the sequence."""
        before = queries[..., :, None] - keys[..., None, :]
        return (before >= 0) if self.window is None else (before >= 0) & (before < self.window)
