"""SwiGLU: a feed-forward layer gated by a sigmoid-weighted linear unit.

See: Shazeer 2020, "GLU Variants Improve Transformer" (arXiv 2002.05202).
"""

import equinox as eqx
import jax
from jaxtyping import Array, Float

from marin_train.blocks.contraction import contract
from marin_train.parameters import Parameter, matrix
from marin_train.policy import Policy


class SwiGLU(eqx.Module):
    """``down(silu(gate(x)) * up(x))``."""

    gate: Float[Array, "*layer embed mlp"]
    up: Float[Array, "*layer embed mlp"]
    down: Float[Array, "*layer mlp embed"]

    def __call__(self, x: Float[Array, "batch seq embed"], *, policy: Policy) -> Float[Array, "batch seq embed"]:
        gate = contract("bsd,df->bsf", x, self.gate, policy=policy)
        up = contract("bsd,df->bsf", x, self.up, policy=policy)
        return contract("bsf,fd->bsd", jax.nn.silu(gate) * up, self.down, policy=policy)


def swiglu_parameters(path: str, hidden_dim: int, *, mlp_dim: int, hf_key: str) -> tuple[Parameter, ...]:
    """The leaves of a `SwiGLU` at `path`."""
    wide, narrow = (hidden_dim, mlp_dim), (mlp_dim, hidden_dim)
    return (
        matrix(f"{path}.gate", wide, dims=("embed", "mlp"), hf_key=f"{hf_key}.gate_proj.weight"),
        matrix(f"{path}.up", wide, dims=("embed", "mlp"), hf_key=f"{hf_key}.up_proj.weight"),
        matrix(f"{path}.down", narrow, dims=("mlp", "embed"), hf_key=f"{hf_key}.down_proj.weight"),
    )
