"""Gated feed-forward layers: SwiGLU with a sigmoid-weighted gate, GeGLU with a Gaussian-weighted one.

The two differ in the gate's activation alone, so a family names it where it calls the layer. GeGLU's is the
approximation by tanh, as published Gemma checkpoints were trained with; it differs from the exact one by up to 5e-4.

See: Shazeer 2020, "GLU Variants Improve Transformer" (arXiv 2002.05202); Hendrycks and Gimpel 2016 (arXiv 1606.08415).
"""

from functools import partial
from typing import Literal

import equinox as eqx
import jax
from jaxtyping import Array, Float

from marin_train.blocks.contraction import contract
from marin_train.mesh import constrain, constrain_residual
from marin_train.parameters import Parameter, matrix
from marin_train.policy import Policy


class GatedMLP(eqx.Module):
    """``down(activation(gate(x)) * up(x))``."""

    gate: Float[Array, "*layer embed mlp"]
    up: Float[Array, "*layer embed mlp"]
    down: Float[Array, "*layer mlp embed"]

    def __call__(
        self, x: Float[Array, "batch seq embed"], *, activation: Literal["silu", "gelu_tanh"], policy: Policy
    ) -> Float[Array, "batch seq embed"]:
        x = constrain(x, "batch", "seq", None)
        gate = constrain(contract("bsd,df->bsf", x, self.gate, policy=policy), "batch", "seq", "mlp")
        up = constrain(contract("bsd,df->bsf", x, self.up, policy=policy), "batch", "seq", "mlp")
        down = contract("bsf,fd->bsd", gated(gate, up, activation), self.down, policy=policy)
        return constrain_residual(down)


@partial(jax.checkpoint, static_argnums=2)
def gated(
    gate: Float[Array, "*rows mlp"], up: Float[Array, "*rows mlp"], activation: Literal["silu", "gelu_tanh"]
) -> Float[Array, "*rows mlp"]:
    """``activation(gate) * up``.

    Recomputed by the backward pass under every policy: what is between would be kept, as wide as gate and up are, to
    spare what takes no longer than reading it back.
    """
    return (jax.nn.silu(gate) if activation == "silu" else jax.nn.gelu(gate, approximate=True)) * up


def gated_mlp_parameters(path: str, hidden_dim: int, *, mlp_dim: int, hf_key: str) -> tuple[Parameter, ...]:
    """The leaves of a `GatedMLP`.

    Args:
        path: where it is in the model.
        hidden_dim: width of what it reads and gives.
        mlp_dim: width between.
        hf_key: where it is in a Hugging Face checkpoint.
    """
    wide, narrow = (hidden_dim, mlp_dim), (mlp_dim, hidden_dim)
    return (
        matrix(f"{path}.gate", wide, dims=("embed", "mlp"), hf_key=f"{hf_key}.gate_proj.weight"),
        matrix(f"{path}.up", wide, dims=("embed", "mlp"), hf_key=f"{hf_key}.up_proj.weight"),
        matrix(f"{path}.down", narrow, dims=("mlp", "embed"), hf_key=f"{hf_key}.down_proj.weight"),
    )
