"""GatedNorm: a norm whose result is gated, dim by dim, by what a narrow bottleneck makes of it.

See: arXiv 2601.22966.
"""

import equinox as eqx
import jax
from jaxtyping import Array, Float

from marin_train.blocks.contraction import contract
from marin_train.blocks.norms import rms_norm
from marin_train.parameters import Parameter, gain, matrix
from marin_train.policy import Policy


class GatedNorm(eqx.Module):
    """``y * sigmoid(up(silu(down(y))))`` of ``y = rms_norm(x)``."""

    gain: Float[Array, "*layer embed"]
    down: Float[Array, "*layer embed rank"]
    up: Float[Array, "*layer rank embed"]

    def __call__(self, x: Float[Array, "batch seq embed"], *, eps: float, policy: Policy) -> Float[Array, "..."]:
        normed = rms_norm(x, self.gain, eps=eps)
        narrow = jax.nn.silu(contract("bsd,dr->bsr", normed, self.down, policy=policy))
        return normed * jax.nn.sigmoid(contract("bsr,rd->bsd", narrow, self.up, policy=policy))


def gated_norm_parameters(path: str, hidden_dim: int, *, rank: int, hf_key: str) -> tuple[Parameter, ...]:
    """The leaves of a `GatedNorm`.

    Args:
        path: where it is in the model.
        hidden_dim: width of what it norms.
        rank: of the bottleneck.
        hf_key: where it is in a checkpoint in Hugging Face's manner.
    """
    wide, narrow = ("embed", "rank"), ("rank", "embed")
    return (
        gain(f"{path}.gain", hidden_dim, dim="embed", hf_key=f"{hf_key}.weight"),
        matrix(f"{path}.down", (hidden_dim, rank), dims=wide, hf_key=f"{hf_key}.gate_down.weight"),
        matrix(f"{path}.up", (rank, hidden_dim), dims=narrow, hf_key=f"{hf_key}.gate_up.weight"),
    )
