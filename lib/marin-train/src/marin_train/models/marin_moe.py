"""Marin's mixture of experts: the published flagship's block.

Before each part, a GatedNorm. Attention has grouped heads with norms of queries and keys that have no gains; half of a
head is turned by position in local layers, which see a window, and nothing in global ones, of which there is one every
``global_every`` layers. From what a head gives, the part along the token's own value is taken out (XSA), and a gate a
head scales the rest. Short convolutions follow keys, attention's output and the feed-forward part's. Experts lie behind
a projection to a latent width, beside shared ones. The embedding passes a GatedNorm too, as does the last layer.

See: experiments/grug/moe of marin-community/marin.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from marin_train import blocks
from marin_train.blocks import (
    Context,
    Emitted,
    GatedMLP,
    GatedNorm,
    Kind,
    Past,
    Rotation,
    attend,
    attend_to_past,
    contract,
    convolution,
    convolve,
    convolve_next,
    gated_mlp_parameters,
    gated_norm_parameters,
    look_up,
    rms_norm,
    rotary,
    rotate,
    vocabulary_parameters,
)
from marin_train.blocks.scoring import Scoring
from marin_train.configs import ModelConfig
from marin_train.errors import ConfigError
from marin_train.mesh import constrain, constrain_residual
from marin_train.moe import MixtureOfExperts, mixture_parameters
from marin_train.parameters import Constant, Parameter, ParameterTable, matrix, stacked
from marin_train.policy import Policy

USES = frozenset({"rotary_dim", "sliding_window", "global_every", "query_scale", "moe", "norm_gate_dim"})

_LEAST_NORM = 1e-6
"""Added to the square of a value's norm, so that none at all has nothing taken out along it."""


class LongPast(NamedTuple):
    """What a layer needs of the tokens so far: keys and values, and the inputs of its convolutions."""

    attended: Past
    keys: Float[Array, "*layer batch seq kv_width"]
    mixed: Float[Array, "*layer batch seq embed"]
    fed: Float[Array, "*layer batch seq embed"]


class Attention(eqx.Module):
    """Grouped heads, normed, gated, and without what lies along a token's own value."""

    query: Float[Array, "*layer embed heads"]
    key: Float[Array, "*layer embed kv_heads"]
    value: Float[Array, "*layer embed kv_heads"]
    gate: Float[Array, "*layer embed head"]
    output: Float[Array, "*layer heads embed"]
    key_convolution: Float[Array, "*layer tap kv_heads"]
    output_convolution: Float[Array, "*layer tap embed"]

    def __call__(
        self,
        x: Float[Array, "batch seq embed"],
        past: LongPast | None,
        *,
        context: Context,
        kind: Kind,
        config: ModelConfig,
        policy: Policy,
    ) -> tuple[Float[Array, "batch seq embed"], LongPast | None]:
        """Attend to all before in the segment and the window; the past, where there is one, then holds `x` too."""
        x = constrain(x, "batch", "seq", None)
        key = contract("bsd,dn->bsn", x, self.key, policy=policy)
        key, keys = _convolved(key, self.key_convolution, None if past is None else past.keys, context)
        query = _heads(contract("bsd,dn->bsn", x, self.query, policy=policy), config)
        value = _heads(contract("bsd,dn->bsn", x, self.value, policy=policy), config)
        query, key = (rms_norm(heads, jnp.ones(()), eps=config.norm_eps) for heads in (query, _heads(key, config)))
        if kind.rotation is not None:
            query, key = (rotate(heads, context.rotations[kind.rotation]) for heads in (query, key))
        query, key = checkpoint_name(query, "attention_query"), checkpoint_name(key, "attention_key")
        value = checkpoint_name(value, "attention_value")
        scale = config.head_dim**-0.5 if config.query_scale is None else config.query_scale
        scoring = Scoring(scale=scale, window=kind.window)
        if past is None:
            mixed = attend(query, key, value=value, segment_ids=context.segment_ids, scoring=scoring, policy=policy)
        else:
            mixed, attended = attend_to_past(
                query, Past(key, value), past.attended, at=context.at, scoring=scoring, policy=policy
            )
            past = past._replace(attended=attended)
        gate = 2.0 * jax.nn.sigmoid(contract("bsd,dn->bsn", x, self.gate, policy=policy))
        mixed = gate[..., None] * _without_own(mixed, value)
        mixed = constrain(mixed.reshape(*x.shape[:2], -1).astype(x.dtype), "batch", "seq", "heads")
        output = contract("bsn,nd->bsd", mixed, self.output, policy=policy)
        output, inputs = _convolved(output, self.output_convolution, None if past is None else past.mixed, context)
        return constrain_residual(output), None if past is None else past._replace(keys=keys, mixed=inputs)


def _heads(x: Float[Array, "batch seq width"], config: ModelConfig) -> Float[Array, "batch seq heads dim"]:
    return constrain(x.reshape(*x.shape[:2], -1, config.head_dim), "batch", "seq", "heads", None)


def _without_own(
    mixed: Float[Array, "batch seq heads dim"], value: Float[Array, "batch seq kv_heads dim"]
) -> Float[Array, "batch seq heads dim"]:
    """What heads give, less the part along the token's own value."""
    grouped, own = mixed.reshape(*value.shape[:3], -1, value.shape[-1]), value[:, :, :, None]
    along = jnp.sum(grouped * own, axis=-1, keepdims=True) / (
        jnp.sum(jnp.square(own), axis=-1, keepdims=True) + _LEAST_NORM
    )
    return (grouped - along * own).reshape(mixed.shape)


def _convolved(
    x: Float[Array, "batch seq channels"], weight: Float[Array, "tap channels"], past: Array | None, context: Context
) -> tuple[Float[Array, "batch seq channels"], Any]:
    """What is convolved, and the past with its inputs; None without one."""
    if past is None or context.at is None:
        return convolve(x, weight, segment_ids=context.segment_ids), None
    return convolve_next(x, weight, past, at=context.at)


class DenseLayer(eqx.Module):
    """Attention, then a dense feed-forward layer, each added to what it read through a norm."""

    attention_norm: GatedNorm
    attention: Attention
    mlp_norm: GatedNorm
    mlp: GatedMLP
    mlp_convolution: Float[Array, "*layer tap embed"]


class Layer(eqx.Module):
    """The same with a mixture of experts."""

    attention_norm: GatedNorm
    attention: Attention
    mlp_norm: GatedNorm
    mlp: MixtureOfExperts
    mlp_convolution: Float[Array, "*layer tap embed"]


class Model(eqx.Module):
    """A decoder; its layers are stacked on a leading dim."""

    embed: Float[Array, "vocab embed"]
    embed_norm: GatedNorm
    lead: DenseLayer | None
    layers: Layer
    final_norm: GatedNorm
    output: Float[Array, "embed vocab"] | None
    """None where the head is the embedding's transpose."""


def parameter_table(config: ModelConfig) -> ParameterTable:
    """Every parameter of a model with this configuration.

    Raises:
        ConfigError: the rank of its norms' gates is not given.
    """
    hidden, lead, rank = config.hidden_dim, config.num_dense_layers, config.norm_gate_dim
    if rank is None:
        raise ConfigError(
            "ModelConfig.family='marin_moe' needs ModelConfig.norm_gate_dim, the rank of its norms' gates"
        )
    gate, up, down = (f"mlp.experts.{{expert}}.{name}_proj.weight" for name in ("gate", "up", "down"))
    shared = (
        *gated_norm_parameters("attention_norm", hidden, rank=rank, hf_key="input_layernorm"),
        *_attention_parameters("attention", config, hf_key="self_attn"),
        *gated_norm_parameters("mlp_norm", hidden, rank=rank, hf_key="post_attention_layernorm"),
        convolution("mlp_convolution", hidden, dim="channel", hf_key="mlp.conv.weight"),
    )
    dense = gated_mlp_parameters("mlp", hidden, mlp_dim=config.mlp_dim, hf_key="mlp") if lead else ()
    mixture = mixture_parameters(
        "mlp", config, router_key="mlp.gate.weight", expert_keys=(gate, up, down), hf_key="mlp"
    )
    key = "model.layers.{layer}"
    embed, *output = vocabulary_parameters(config)
    return ParameterTable(
        (
            embed,
            *gated_norm_parameters("embed_norm", hidden, rank=rank, hf_key="model.embed_norm"),
            *stacked((*shared, *dense), path="lead", num_layers=lead, hf_key=key),
            *stacked(
                (*shared, *mixture), path="layers", num_layers=config.num_layers - lead, hf_key=key, first_layer=lead
            ),
            *gated_norm_parameters("final_norm", hidden, rank=rank, hf_key="model.norm"),
            *output,
        )
    )


def _attention_parameters(path: str, config: ModelConfig, *, hf_key: str) -> tuple[Parameter, ...]:
    heads, kv_heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden = config.hidden_dim
    gate = Parameter(
        path=f"{path}.gate",
        shape=(hidden, config.num_heads),
        dims=("embed", "heads"),
        role="router",  # it starts at zero, and no norm of it is to be held
        init=Constant(0.0),
        hf_key=f"{hf_key}.head_gate.weight",
        hf_transpose=True,
        multiplied=1.0,
    )
    return (
        matrix(f"{path}.query", (hidden, heads), dims=("embed", "heads"), hf_key=f"{hf_key}.q_proj.weight"),
        matrix(f"{path}.key", (hidden, kv_heads), dims=("embed", "kv_heads"), hf_key=f"{hf_key}.k_proj.weight"),
        matrix(f"{path}.value", (hidden, kv_heads), dims=("embed", "kv_heads"), hf_key=f"{hf_key}.v_proj.weight"),
        gate,
        matrix(f"{path}.output", (heads, hidden), dims=("heads", "embed"), hf_key=f"{hf_key}.o_proj.weight"),
        convolution(f"{path}.key_convolution", kv_heads, dim="kv_heads", hf_key=f"{hf_key}.k_conv.weight"),
        convolution(f"{path}.output_convolution", hidden, dim="channel", hf_key=f"{hf_key}.o_conv.weight"),
    )


def kinds(config: ModelConfig) -> Sequence[Kind]:
    """Local layers, which know positions, and global ones at every ``global_every``-th place, which do not."""
    local = Kind(window=config.sliding_window)
    every = config.global_every
    return [
        Kind(rotation=None) if every is not None and number % every == 0 else local
        for number in range(1, config.num_layers + 1)
    ]


def rotations(positions: Int[Array, "#batch seq"], *, config: ModelConfig) -> dict[str, Rotation]:
    """One for all local layers."""
    dim = config.rotary_dim or config.head_dim
    return {"global": rotary(positions, dim=dim, theta=config.rope_theta, max_seq_len=config.max_seq_len)}


def no_past(config: ModelConfig, *, batch: int, seq_len: int, policy: Policy) -> LongPast:
    """See `marin_train.models.no_past`."""
    attended = blocks.no_past(config, batch=batch, seq_len=seq_len, policy=policy)
    widths = (config.num_kv_heads * config.head_dim, config.hidden_dim, config.hidden_dim)
    shape = (config.num_layers, batch, seq_len)
    return LongPast(attended, *(jnp.zeros((*shape, width), policy.activations) for width in widths))


def embed(
    model: Model, tokens: Int[Array, "batch seq"], *, config: ModelConfig, policy: Policy
) -> Float[Array, "batch seq embed"]:
    """The tokens' rows, normed."""
    rows = look_up(model.embed, tokens).astype(policy.activations)
    return model.embed_norm(rows, eps=config.norm_eps, policy=policy)


def layer(
    kind: Kind,
    parameters: Layer | DenseLayer,
    x: Float[Array, "batch seq embed"],
    past: LongPast | None,
    *,
    context: Context,
    config: ModelConfig,
    policy: Policy,
) -> tuple[Float[Array, "batch seq embed"], Emitted]:
    """One layer; the past, where there is one, then holds what it read too."""
    normed = parameters.attention_norm(x, eps=config.norm_eps, policy=policy)
    mixed, past = parameters.attention(normed, past, context=context, kind=kind, config=config, policy=policy)
    x = x + mixed
    normed, routing = parameters.mlp_norm(x, eps=config.norm_eps, policy=policy), None
    if isinstance(parameters, DenseLayer):
        fed = parameters.mlp(normed, activation="silu", policy=policy)
    else:
        fed, routing = parameters.mlp(normed, valid=context.valid, learns=context.learns, config=config, policy=policy)
    fed, inputs = _convolved(fed, parameters.mlp_convolution, None if past is None else past.fed, context)
    return x + fed, Emitted(None if past is None else past._replace(fed=inputs), routing)


def finish(model: Model, x: Float[Array, "batch seq embed"], *, config: ModelConfig) -> Float[Array, "batch seq embed"]:
    """The final norm; its gate is computed in the type of `x`, whatever products round to elsewhere."""
    return model.final_norm(
        x, eps=config.norm_eps, policy=Policy(activations="bfloat16" if x.dtype == jnp.bfloat16 else "float32")
    )


def head(model: Model) -> Float[Array, "embed vocab"]:
    """The matrix that turns hidden states into logits."""
    return model.embed.T if model.output is None else model.output
