"""Levanter's layer of experts, forward and backward, fp32. Usage: experts_levanter.py CASE; a pass a line of input.

Its groups go to XLA's ragged product; its router, which ours is measured without, is a thousandth of the work.
"""

import json
import os
import sys

import equinox as eqx
import haliax as hax  # type: ignore[import-not-found]
import jax
import jax.numpy as jnp
import numpy as np
from children import answer
from levanter.models.mixtral import MixtralConfig, MixtralSparseMoeBlock  # type: ignore[import-not-found]


def main() -> None:
    case = json.loads(sys.argv[1])
    config = MixtralConfig(
        max_seq_len=case["tokens"], hidden_dim=case["width"], intermediate_dim=case["expert_dim"], num_layers=1,
        num_heads=4, num_kv_heads=4, n_routed_experts=case["num_experts"], num_experts_per_tok=case["top_k"],
    )  # fmt: skip
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(1, 1), ("data", "model"))
    with jax.set_mesh(mesh), hax.axis_mapping({}):
        layer = MixtralSparseMoeBlock.init(config, key=jax.random.key(0))
        axes = hax.Axis("batch", 1), config.max_Pos, config.Embed
        x = hax.named(jax.random.normal(jax.random.key(1), tuple(axis.size for axis in axes)), axes)

        @eqx.filter_jit
        def both(layer: MixtralSparseMoeBlock, x: jax.Array) -> object:
            def cost(both: tuple[MixtralSparseMoeBlock, hax.NamedArray]) -> jax.Array:
                layer, x = both
                return jnp.sum(jnp.square(layer(x, key=None)[0].array))

            return eqx.filter_grad(cost)((layer, x))

        def step(_: str) -> None:
            jax.block_until_ready(both(layer, x))

        step("")
        answer(step)
    os._exit(0)


if __name__ == "__main__":
    main()
