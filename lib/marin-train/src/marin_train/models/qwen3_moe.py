"""Qwen3-MoE: a Qwen3 whose feed-forward layers are mixtures of experts, those of the first layers possibly dense.

Experts are weighed by a softmax over all of them, renormalised over the chosen or not.

See: Yang et al. 2025, "Qwen3 Technical Report" (arXiv 2505.09388), section 2.
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
from marin_train.moe import MixtureOfExperts, mixture_parameters
from marin_train.parameters import ParameterTable, gain, stacked
from marin_train.policy import Policy

USES = frozenset({"rope_scaling", "moe"})


class Layer(eqx.Module):
    """Attention, then a mixture of experts, each added to what it read through a norm."""

    attention_norm: Float[Array, "*layer embed"]
    attention: Attention
    mlp_norm: Float[Array, "*layer embed"]
    mlp: MixtureOfExperts


class DenseLayer(eqx.Module):
    """The same with a dense feed-forward layer."""

    attention_norm: Float[Array, "*layer embed"]
    attention: Attention
    mlp_norm: Float[Array, "*layer embed"]
    mlp: GatedMLP


class Model(eqx.Module):
    """A decoder; its layers are stacked on a leading dim."""

    embed: Float[Array, "vocab embed"]
    lead: DenseLayer | None
    layers: Layer
    final_norm: Float[Array, " embed"]
    output: Float[Array, "embed vocab"] | None
    """None where the head is the embedding's transpose."""


def parameter_table(config: ModelConfig) -> ParameterTable:
    """Every parameter of a Qwen3-MoE with this configuration."""
    hidden, lead = config.hidden_dim, config.num_dense_layers
    attention = (
        gain("attention_norm", hidden, dim="embed", hf_key="input_layernorm.weight"),
        *attention_parameters("attention", config, hf_key="self_attn", qk_norm=True),
        gain("mlp_norm", hidden, dim="embed", hf_key="post_attention_layernorm.weight"),
    )
    dense = gated_mlp_parameters("mlp", hidden, mlp_dim=config.mlp_dim, hf_key="mlp") if lead else ()
    gate, up, down = (f"mlp.experts.{{expert}}.{name}_proj.weight" for name in ("gate", "up", "down"))
    mixture = mixture_parameters(
        "mlp", config, router_key="mlp.gate.weight", expert_keys=(gate, up, down), hf_key="mlp"
    )
    key = "model.layers.{layer}"
    embed, *output = vocabulary_parameters(config)
    return ParameterTable(
        (
            embed,
            *stacked((*attention, *dense), path="lead", num_layers=lead, hf_key=key),
            *stacked(
                (*attention, *mixture), path="layers", num_layers=config.num_layers - lead, hf_key=key, first_layer=lead
            ),
            gain("final_norm", hidden, dim="embed", hf_key="model.norm.weight"),
            *output,
        )
    )


def kinds(config: ModelConfig) -> Sequence[Kind]:
    """All layers are alike."""
    return [Kind()] * config.num_layers


def rotations(positions: Int[Array, "#batch seq"], *, config: ModelConfig) -> dict[str, Rotation]:
    """One for all layers."""
    return {
        "global": rotary(
            positions,
            dim=config.head_dim,
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
    parameters: Layer | DenseLayer,
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
    if isinstance(parameters, DenseLayer):
        return x + parameters.mlp(normed, activation="silu", policy=policy), Emitted(past)
    mixed, routing = parameters.mlp(normed, valid=context.valid, learns=context.learns, config=config, policy=policy)
    return x + mixed, Emitted(past, routing)


def finish(model: Model, x: Float[Array, "batch seq embed"], *, config: ModelConfig) -> Float[Array, "batch seq embed"]:
    """The final norm."""
    return rms_norm(x, model.final_norm, eps=config.norm_eps)


def head(model: Model) -> Float[Array, "embed vocab"]:
    """The matrix that turns hidden states into logits."""
    return model.embed.T if model.output is None else model.output
