"""The experts of a layer: gated feed-forward layers whose matrices are stacked on a dim of experts."""

import dataclasses

import equinox as eqx
from jaxtyping import Array, Float

from marin_train.parameters import Normal, Parameter


class Experts(eqx.Module):
    """Of each expert ``down(silu(gate(x)) * up(x))``."""

    gate: Float[Array, "*layer experts width mlp"]
    up: Float[Array, "*layer experts width mlp"]
    down: Float[Array, "*layer experts mlp width"]

    @property
    def num_experts(self) -> int:
        """How many there are, here: on a mesh, in the share of a device."""
        return self.gate.shape[-3]


def expert_parameters(
    path: str, width: int, *, num_experts: int, top_k: int, expert_dim: int, hf_keys: tuple[str, str, str]
) -> tuple[Parameter, ...]:
    """The leaves of `Experts`.

    Args:
        path: where they are in the model.
        width: of what experts read and give.
        num_experts: how many there are.
        top_k: how many see a token.
        expert_dim: width between.
        hf_keys: names of gate, up and down in a Hugging Face checkpoint, with ``{expert}`` for the number.
    """
    wide = Parameter(
        path=f"{path}.gate",
        shape=(num_experts, width, expert_dim),
        dims=("expert", "expert_width", "mlp"),
        role="expert",
        init=Normal(width**-0.5),
        hf_key=hf_keys[0],
        hf_transpose=True,
        multiplied=top_k / num_experts,
    )
    return (
        wide,
        dataclasses.replace(wide, path=f"{path}.up", hf_key=hf_keys[1]),
        dataclasses.replace(
            wide,
            path=f"{path}.down",
            shape=(num_experts, expert_dim, width),
            dims=("expert", "mlp", "expert_width"),
            init=Normal(expert_dim**-0.5),
            hf_key=hf_keys[2],
        ),
    )
