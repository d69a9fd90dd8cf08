"""Llama 3: pre-norm RMSNorm, rotary grouped-query attention, SwiGLU; tied or untied head.

See: Grattafiori et al. 2024, "The Llama 3 Herd of Models" (arXiv 2407.21783).
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from marin_train.blocks import (
    Attention,
    Past,
    Rotation,
    SwiGLU,
    apply_layers,
    attention_parameters,
    rms_norm,
    rotary,
    swiglu_parameters,
)
from marin_train.configs import ModelConfig
from marin_train.parameters import Normal, Parameter, ParameterTable, gain, matrix, stacked
from marin_train.policy import Policy


class Layer(eqx.Module):
    """Attention, then a feed-forward layer, each added to what it read through a norm."""

    attention_norm: Float[Array, "*layer embed"]
    attention: Attention
    mlp_norm: Float[Array, "*layer embed"]
    mlp: SwiGLU


class Model(eqx.Module):
    """A decoder; its layers are stacked on a leading dim."""

    embed: Float[Array, "vocab embed"]
    layers: Layer
    final_norm: Float[Array, " embed"]
    output: Float[Array, "embed vocab"] | None
    """None where the head is the embedding's transpose."""


def parameter_table(config: ModelConfig) -> ParameterTable:
    """Every parameter of a Llama with this configuration."""
    vocab, hidden = config.vocab_size, config.hidden_dim
    layer = (
        gain("attention_norm", hidden, dim="embed", hf_key="input_layernorm.weight"),
        *attention_parameters("attention", config, hf_key="self_attn"),
        gain("mlp_norm", hidden, dim="embed", hf_key="post_attention_layernorm.weight"),
        *swiglu_parameters("mlp", hidden, mlp_dim=config.mlp_dim, hf_key="mlp"),
    )
    embed = Parameter(
        path="embed",
        shape=(vocab, hidden),
        dims=("vocab", "embed"),
        role="embed",
        init=Normal(hidden**-0.5),
        hf_key="model.embed_tokens.weight",
        multiplied=1.0 if config.tie_embeddings else 0.0,
    )
    output = matrix("output", (hidden, vocab), dims=("embed", "vocab"), hf_key="lm_head.weight", role="head")
    return ParameterTable(
        (
            embed,
            *stacked(layer, path="layers", num_layers=config.num_layers, hf_key="model.layers.{layer}"),
            gain("final_norm", hidden, dim="embed", hf_key="model.norm.weight"),
            *(() if config.tie_embeddings else (output,)),
        )
    )


def forward(
    model: Model,
    tokens: Int[Array, "batch seq"],
    *,
    config: ModelConfig,
    policy: Policy,
    positions: Int[Array, "#batch seq"] | None = None,
    segment_ids: Int[Array, "batch seq"] | None = None,
) -> Float[Array, "batch seq embed"]:
    """Hidden states after the last norm, ready for the head.

    Args:
        model: the parameters.
        tokens: the sequences.
        config: the model's shape.
        policy: how this machine computes fastest.
        positions: each token's position for the rotary embedding; by default its index in the sequence.
        segment_ids: tokens attend only within equal ids; by default the whole sequence is one segment.
    """
    if positions is None:
        positions = jnp.arange(tokens.shape[1])[None]
    rotation = rotary(positions, head_dim=config.head_dim, theta=config.rope_theta)
    layer = partial(_layer, config=config, policy=policy, rotation=rotation, segment_ids=segment_ids)
    x = apply_layers(layer, model.layers, model.embed[tokens], policy=policy)
    return rms_norm(x, model.final_norm, eps=config.norm_eps)


def decode(
    model: Model,
    tokens: Int[Array, " batch"],
    past: Past,
    *,
    at: Int[Array, ""],
    config: ModelConfig,
    policy: Policy,
) -> tuple[Float[Array, "batch embed"], Past]:
    """Hidden states of one token a sequence, and the past with it.

    Args:
        model: the parameters.
        tokens: the tokens at index `at`.
        past: what `decode` gave for the tokens before, or `no_past`.
        at: the index of these tokens in their sequences.
        config: the model's shape.
        policy: how operands are rounded; attention is the formula's.
    """
    rotation = rotary(at[None, None], head_dim=config.head_dim, theta=config.rope_theta)

    def step(x: Array, layer_and_past: tuple[Layer, Past]) -> tuple[Array, Past]:
        layer, past = layer_and_past
        normed = rms_norm(x, layer.attention_norm, eps=config.norm_eps)
        mixed, past = layer.attention.decode(
            normed, past, at=at, config=config, rotation=rotation, operands=policy.operands
        )
        x = x + mixed
        return x + layer.mlp(rms_norm(x, layer.mlp_norm, eps=config.norm_eps), operands=policy.operands), past

    x, past = jax.lax.scan(step, model.embed[tokens][:, None], (model.layers, past))
    return rms_norm(x[:, 0], model.final_norm, eps=config.norm_eps), past


def head(model: Model) -> Float[Array, "embed vocab"]:
    """The matrix that turns hidden states into logits."""
    return model.embed.T if model.output is None else model.output


def _layer(
    layer: Layer,
    x: Float[Array, "batch seq embed"],
    *,
    config: ModelConfig,
    policy: Policy,
    rotation: Rotation,
    segment_ids: Int[Array, "batch seq"] | None,
) -> Float[Array, "batch seq embed"]:
    x = x + layer.attention(
        rms_norm(x, layer.attention_norm, eps=config.norm_eps),
        config=config,
        rotation=rotation,
        segment_ids=segment_ids,
        operands=policy.operands,
        backend=policy.attention,
    )
    return x + layer.mlp(rms_norm(x, layer.mlp_norm, eps=config.norm_eps), operands=policy.operands)
