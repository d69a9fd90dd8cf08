"""Mixtral: a Llama whose feed-forward layers are all mixtures of experts.

Experts are weighed by a softmax over the chosen ones, which is that over all, renormalised.

See: Jiang et al. 2024, "Mixtral of Experts" (arXiv 2401.04088), section 2.
"""

from collections.abc import Sequence

import equinox as eqx
from jaxtyping import Array, Float, Int

from marin_train.blocks import (
    Attention,
    Context,
    Emitted,
    Kind,
    Past,
    Rotation,
    attention_parameters,
    look_up,
    rms_norm,
    rotary,
    vocabulary_parameters,
)
from marin_train.configs import ModelConfig
from marin_train.errors import ConfigError
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


class Model(eqx.Module):
    """A decoder; its layers are stacked on a leading dim."""

    embed: Float[Array, "vocab embed"]
    layers: Layer
    final_norm: Float[Array, " embed"]
    output: Float[Array, "embed vocab"] | None
    """None where the head is the embedding's transpose."""


def parameter_table(config: ModelConfig) -> ParameterTable:
    """Every parameter of a Mixtral with this configuration.

    Raises:
        ConfigError: a layer is to be dense.
    """
    if config.num_dense_layers:
        raise ConfigError(
            f"MoEConfig.num_dense_layers={config.num_dense_layers}: a Mixtral has none; leave it out, or take "
            f"family='qwen3_moe'"
        )
    hidden = config.hidden_dim
    gate, up, down = (f"block_sparse_moe.experts.{{expert}}.{name}.weight" for name in ("w1", "w3", "w2"))
    layer = (
        gain("attention_norm", hidden, dim="embed", hf_key="input_layernorm.weight"),
        *attention_parameters("attention", config, hf_key="self_attn"),
        gain("mlp_norm", hidden, dim="embed", hf_key="post_attention_layernorm.weight"),
        *mixture_parameters(
            "mlp",
            config,
            router_key="block_sparse_moe.gate.weight",
            expert_keys=(gate, up, down),
            hf_key="block_sparse_moe",
        ),
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
    mixed, routing = parameters.mlp(normed, valid=context.valid, learns=context.learns, config=config, policy=policy)
    return x + mixed, Emitted(past, routing)


def finish(model: Model, x: Float[Array, "batch seq embed"], *, config: ModelConfig) -> Float[Array, "batch seq embed"]:
    """The final norm."""
    return rms_norm(x, model.final_norm, eps=config.norm_eps)


def head(model: Model) -> Float[Array, "embed vocab"]:
    """The matrix that turns hidden states into logits."""
    return model.embed.T if model.output is None else model.output
