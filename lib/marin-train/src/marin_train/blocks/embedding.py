"""The embedding and the head: a row and a column a token, padded alike, or one matrix that serves as both.

Where the embedding is spread over devices by rows and columns, each device looks up what it holds, and rows of zeros
for the tokens that others hold: their sum over the devices that share the vocabulary out is every token's row. So what
is sent is activations and a device's own rows, and nothing of the size of the vocabulary; the compiler's own choice
would gather the whole matrix on every device.

See: Press and Wolf 2017, "Using the Output Embedding to Improve Language Models" (arXiv 1608.05859), for one matrix;
Shoeybi et al. 2019, "Megatron-LM" (arXiv 1909.08053), section 3, for vocabulary-parallel embeddings.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from marin_train.configs import ModelConfig
from marin_train.mesh import RULES, axis_sizes, over_mesh
from marin_train.parameters import Normal, Parameter, matrix


def vocabulary_parameters(config: ModelConfig) -> tuple[Parameter, ...]:
    """The leaf ``embed`` and, unless the head is its transpose, the leaf ``output``."""
    vocab, hidden = config.padded_vocab_size, config.hidden_dim
    padding = vocab - config.vocab_size
    embed = Parameter(
        path="embed",
        shape=(vocab, hidden),
        dims=("vocab", "embed"),
        role="embed",
        init=Normal(hidden**-0.5),
        hf_key="model.embed_tokens.weight",
        padding=padding,
        multiplied=1.0 if config.tie_embeddings else 0.0,
    )
    output = matrix(
        "output", (hidden, vocab), dims=("embed", "vocab"), hf_key="lm_head.weight", role="head", padding=padding
    )
    return (embed,) if config.tie_embeddings else (embed, output)


def look_up(table: Float[Array, "vocab embed"], tokens: Int[Array, "batch seq"]) -> Float[Array, "batch seq embed"]:
    """The tokens' rows of the table."""
    sizes = axis_sizes()
    shares = {dim: math.prod(sizes[axis] for axis in RULES[dim]) for dim in ("embed", "residual")}
    columns = "embed" if table.shape[1] % shares["embed"] == 0 else None
    scatters = tokens.shape[1] % shares["residual"] == 0

    def share(table: Array, tokens: Array) -> Array:
        if columns and shares["embed"] > 1:
            table = jax.lax.all_gather(table, RULES["embed"], axis=1, tiled=True)
        if sizes["model"] == 1:
            return table[tokens]
        row = tokens - jax.lax.axis_index("model") * table.shape[0]
        is_here = (row >= 0) & (row < table.shape[0])
        rows = jnp.where(is_here[..., None], table[jnp.clip(row, 0, table.shape[0] - 1)], 0.0)
        if scatters:
            return jax.lax.psum_scatter(rows, "model", scatter_dimension=1, tiled=True)
        return jax.lax.psum(rows, "model")

    outputs = ("batch", "residual" if scatters else "seq", None)
    run, _ = over_mesh(share, inputs=(("vocab", columns), ("batch", "seq")), outputs=outputs)
    return run(table, tokens)
