"""Llama 3: pre-norm RMSNorm, rotary grouped-query attention, SwiGLU; tied or untied head.

Layers may see a window of tokens alone, all of them (as in Mistral) or all but every ``global_every``-th, and every
``nope_every``-th may know no positions (as in SmolLM3).

See: Grattafiori et al. 2024, "The Llama 3 Herd of Models" (arXiv 2407.21783); Jiang et al. 2023, "Mistral 7B"
(arXiv 2310.06825), section 2, for the window; Yang et al. 2025 (arXiv 2501.18795) for layers without positions.
"""

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
from marin_train.parameters import ParameterTable, gain, stacked
from marin_train.policy import Policy

USES = frozenset({"rope_scaling", "rotary_dim", "nope_every", "sliding_window", "global_every"})


class Layer(eqx.Module):
    """Attention, then a feed-forward layer, each added to what it read through a norm."""

    attention_norm: Float[Array, "*layer embed"]
    attention: Attention
    mlp_norm: Float[Array, "*layer embed"]
    mlp: GatedMLP


class Model(eqx.Module):
    """A decoder; its layers are stacked on a leading dim."""

    embed: Float[Array, "vocab embed"]
    layers: Layer
    final_norm: Float[Array, " embed"]
    output: Float[Array, "embed vocab"] | None
    """None where the head is the embedding's transpose."""


def parameter_table(config: ModelConfig) -> ParameterTable:
    """Every parameter of a Llama with this configuration."""
    hidden = config.hidden_dim
    layer = (
        gain("attention_norm", hidden, dim="embed", hf_key="input_layernorm.weight"),
        *attention_parameters("attention", config, hf_key="self_attn"),
        gain("mlp_norm", hidden, dim="embed", hf_key="post_attention_layernorm.weight"),
        *gated_mlp_parameters("mlp", hidden, mlp_dim=config.mlp_dim, hf_key="mlp"),
    )
    embed, *output = vocabulary_parameters(config)
    return ParameterTable(
        (
            embed,
            *stacked(layer, path="layers", num_layers=config.num_layers, hf_key="model.layers.{layer}"),
            gain("final_norm", hidden, dim="embed", hf_key="model.norm.weight"),
            *output,
        )
    )


def kinds(config: ModelConfig) -> Sequence[Kind]:
    """Alike, but for windows and positions where the configuration has some layers without."""

    def kind(number: int) -> Kind:
        sees_all = config.global_every is not None and number % config.global_every == 0
        no_positions = config.nope_every > 0 and number % config.nope_every == 0
        return Kind(window=None if sees_all else config.sliding_window, rotation=None if no_positions else "global")

    return [kind(number) for number in range(1, config.num_layers + 1)]


def rotations(positions: Int[Array, "#batch seq"], *, config: ModelConfig) -> dict[str, Rotation]:
    """One for all layers."""
    dim = config.rotary_dim or config.head_dim
    return {
        "global": rotary(
            positions,
            dim=dim,
            theta=config.rope_theta,
            scaling=config.rope_scaling,
            max_seq_len=config.max_seq_len,
        )
    }


def embed(
    model: Model, tokens: Int[Array, "batch seq"], *, config: ModelConfig, policy: Policy
) -> Float[Array, "batch seq embed"]:
    """The tokens' rows."""
    return look_up(model.embed, tokens).astype(policy.activations)


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
    normed = rms_norm(x, parameters.attention_norm, eps=config.norm_eps)
    mixed, past = parameters.attention(normed, past, context=context, kind=kind, config=config, policy=policy)
    x = x + mixed
    normed = rms_norm(x, parameters.mlp_norm, eps=config.norm_eps)
    return x + parameters.mlp(normed, activation="silu", policy=policy), Emitted(past)


def finish(model: Model, x: Float[Array, "batch seq embed"], *, config: ModelConfig) -> Float[Array, "batch seq embed"]:
    """The final norm."""
    return rms_norm(x, model.final_norm, eps=config.norm_eps)


def head(model: Model) -> Float[Array, "embed vocab"]:
    """The matrix that turns hidden states into logits."""
    return model.embed.T if model.output is None else model.output
