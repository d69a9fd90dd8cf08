"""Gemma 3, its text model: local layers between global ones, norms before and after each part, GeGLU.

Every ``global_every``-th layer sees all tokens, by a rotary embedding that may be scaled for long contexts; the others
see a window, by one of another base that never is. A norm's gain is stored as w and applied as 1 + w. Embeddings are
multiplied by the square root of their width, here in float32, as transformers does where it loads weights in float32;
in bfloat16, in which published checkpoints were trained, the factor is rounded too (33.94 to 34 at a width of 1152).
Soft-caps are Gemma 2's; published Gemma 3 checkpoints have none.

See: Gemma Team 2025, "Gemma 3 Technical Report" (arXiv 2503.19786), section 2; Gemma Team 2024 (arXiv 2408.00118) for
norms on both sides and soft-caps.
"""

import math
from collections.abc import Sequence

import equinox as eqx
from jaxtyping import Array, Float, Int

from marin_train.blocks import (
    Attention,
    Context,
    Emitted,
    GatedMLP,
    Kind,
    Past,
    Rotation,
    attention_parameters,
    gated_mlp_parameters,
    look_up,
    rms_norm,
    rotary,
    vocabulary_parameters,
)
from marin_train.configs import ModelConfig
from marin_train.parameters import Parameter, ParameterTable, gain, stacked
from marin_train.policy import Policy

USES = frozenset(
    {
        "rope_scaling",
        "sliding_window",
        "global_every",
        "local_rope_theta",
        "attention_softcap",
        "logit_softcap",
        "query_scale",
    }
)


class Layer(eqx.Module):
    """Attention, then a feed-forward layer, each with a norm before and after it, added to what it read."""

    attention_norm: Float[Array, "*layer embed"]
    attention: Attention
    attention_post_norm: Float[Array, "*layer embed"]
    mlp_norm: Float[Array, "*layer embed"]
    mlp: GatedMLP
    mlp_post_norm: Float[Array, "*layer embed"]


class Model(eqx.Module):
    """A decoder; its layers are stacked on a leading dim."""

    embed: Float[Array, "vocab embed"]
    layers: Layer
    final_norm: Float[Array, " embed"]
    output: Float[Array, "embed vocab"] | None
    """None where the head is the embedding's transpose."""


def parameter_table(config: ModelConfig) -> ParameterTable:
    """Every parameter of a Gemma 3 with this configuration."""
    hidden = config.hidden_dim
    layer = (
        _gain("attention_norm", hidden, hf_key="input_layernorm.weight"),
        *attention_parameters("attention", config, hf_key="self_attn", qk_norm=True, gain_init=0.0),
        _gain("attention_post_norm", hidden, hf_key="post_attention_layernorm.weight"),
        _gain("mlp_norm", hidden, hf_key="pre_feedforward_layernorm.weight"),
        *gated_mlp_parameters("mlp", hidden, mlp_dim=config.mlp_dim, hf_key="mlp"),
        _gain("mlp_post_norm", hidden, hf_key="post_feedforward_layernorm.weight"),
    )
    embed, *output = vocabulary_parameters(config)
    return ParameterTable(
        (
            embed,
            *stacked(layer, path="layers", num_layers=config.num_layers, hf_key="model.layers.{layer}"),
            _gain("final_norm", hidden, hf_key="model.norm.weight"),
            *output,
        )
    )


def _gain(path: str, size: int, *, hf_key: str) -> Parameter:
    return gain(path, size, dim="embed", hf_key=hf_key, init=0.0)


def kinds(config: ModelConfig) -> Sequence[Kind]:
    """Local ones, and global ones at every ``global_every``-th place; without a window, global ones alone."""
    local = Kind(window=config.sliding_window, rotation="global" if config.local_rope_theta is None else "local")

    def sees_all(number: int) -> bool:
        return config.sliding_window is None or (config.global_every is not None and number % config.global_every == 0)

    return [Kind() if sees_all(number) else local for number in range(1, config.num_layers + 1)]


def rotations(positions: Int[Array, "#batch seq"], *, config: ModelConfig) -> dict[str, Rotation]:
    """One for global layers, and one for local ones where their base is another."""
    turns = {
        "global": rotary(
            positions,
            dim=config.head_dim,
            theta=config.rope_theta,
            scaling=config.rope_scaling,
            max_seq_len=config.max_seq_len,
        )
    }
    if config.local_rope_theta is not None:
        turns["local"] = rotary(
            positions, dim=config.head_dim, theta=config.local_rope_theta, max_seq_len=config.max_seq_len
        )
    return turns


def embed(
    model: Model, tokens: Int[Array, "batch seq"], *, config: ModelConfig, policy: Policy
) -> Float[Array, "batch seq embed"]:
    """The tokens' rows, scaled."""
    return (look_up(model.embed, tokens) * math.sqrt(config.hidden_dim)).astype(policy.activations)


def layer(
    kind: Kind,
    parameters: Layer,
    x: Float[Array, "batch seq embed"],
    past: Past | None,
    *,
    context: Context,
    config: ModelConfig,
    policy: Policy,
) -> tuple[Float[Array, "batch seq embed"], Emitted]:
    """One layer; the past, where there is one, then holds its keys and values too."""
    normed = rms_norm(x, 1.0 + parameters.attention_norm, eps=config.norm_eps)
    mixed, past = parameters.attention(
        normed, past, context=context, kind=kind, config=config, policy=policy, gain_offset=1.0
    )
    x = x + rms_norm(mixed, 1.0 + parameters.attention_post_norm, eps=config.norm_eps)
    normed = rms_norm(x, 1.0 + parameters.mlp_norm, eps=config.norm_eps)
    out = parameters.mlp(normed, activation="gelu_tanh", policy=policy)
    return x + rms_norm(out, 1.0 + parameters.mlp_post_norm, eps=config.norm_eps), Emitted(past)


def finish(model: Model, x: Float[Array, "batch seq embed"], *, config: ModelConfig) -> Float[Array, "batch seq embed"]:
    """The final norm."""
    return rms_norm(x, 1.0 + model.final_norm, eps=config.norm_eps)


def head(model: Model) -> Float[Array, "embed vocab"]:
    """The matrix that turns hidden states into logits."""
    return model.embed.T if model.output is None else model.output
