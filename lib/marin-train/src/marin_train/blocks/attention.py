"""Causal attention with grouped key and value heads, in bodies of equal results.

``reference`` is the formula: all scores, masked; ``blocked`` is `marin_train.blocks.blocked_attention`. Scores and
softmax are float32 in both. `Attention.decode` is the formula for one token behind others, whose keys and values are
kept from when they were the last.

See: Vaswani et al. 2017 (arXiv 1706.03762); Ainslie et al. 2023, "GQA" (arXiv 2305.13245).
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from marin_train.blocks.blocked_attention import MASKED, attend_in_blocks
from marin_train.blocks.contraction import contract
from marin_train.blocks.rope import Rotation, rotate
from marin_train.configs import ModelConfig
from marin_train.parameters import Parameter, matrix
from marin_train.policy import Backend, Operands

Heads = Float[Array, "batch seq heads dim"]


class Past(NamedTuple):
    """Keys and values of the tokens so far, a place for each that may come; stacked, those of all layers."""

    key: Float[Array, "*layer batch seq kv_heads dim"]
    value: Float[Array, "*layer batch seq kv_heads dim"]


def no_past(config: ModelConfig, *, batch: int, seq_len: int) -> Past:
    """Room for `seq_len` tokens in every layer."""
    shape = (config.num_layers, batch, seq_len, config.num_kv_heads, config.head_dim)
    return Past(jnp.zeros(shape), jnp.zeros(shape))


class Attention(eqx.Module):
    """Projections to queries, keys and values, attention over the past, and a projection back."""

    query: Float[Array, "*layer embed heads"]
    key: Float[Array, "*layer embed kv_heads"]
    value: Float[Array, "*layer embed kv_heads"]
    output: Float[Array, "*layer heads embed"]

    def __call__(
        self,
        x: Float[Array, "batch seq embed"],
        *,
        config: ModelConfig,
        rotation: Rotation,
        segment_ids: Int[Array, "batch seq"] | None,
        operands: Operands,
        backend: Backend,
    ) -> Float[Array, "batch seq embed"]:
        """Attend within each segment, or within the whole sequence where there are none."""
        query, key, value = self._heads(x, config=config, rotation=rotation, operands=operands)
        mixed = attend(query, key, value=value, segment_ids=segment_ids, operands=operands, backend=backend)
        return contract("bsn,nd->bsd", mixed.reshape(*x.shape[:2], -1), self.output, operands=operands)

    def decode(
        self,
        x: Float[Array, "batch 1 embed"],
        past: Past,
        *,
        at: Int[Array, ""],
        config: ModelConfig,
        rotation: Rotation,
        operands: Operands,
    ) -> tuple[Float[Array, "batch 1 embed"], Past]:
        """Attend from the token at index `at` to it and to those before it; the past then holds it too."""
        query, *new = self._heads(x, config=config, rotation=rotation, operands=operands)
        past = Past(*(jax.lax.dynamic_update_slice_in_dim(a, b, at, axis=1) for a, b in zip(past, new, strict=True)))
        visible = (jnp.arange(past.key.shape[1]) <= at)[None, None]
        mixed = _mixed(query, past.key, value=past.value, visible=visible, operands=operands)
        return contract("bsn,nd->bsd", mixed.reshape(*x.shape[:2], -1), self.output, operands=operands), past

    def _heads(
        self, x: Float[Array, "batch seq embed"], *, config: ModelConfig, rotation: Rotation, operands: Operands
    ) -> tuple[Heads, Heads, Heads]:
        """Queries, keys and values, the first two turned."""

        def heads(weight: Array, num_heads: int) -> Heads:
            projected = contract("bsd,dn->bsn", x, weight, operands=operands)
            return projected.reshape(*x.shape[:2], num_heads, config.head_dim)

        query = rotate(heads(self.query, config.num_heads), rotation)
        key = rotate(heads(self.key, config.num_kv_heads), rotation)
        return query, key, heads(self.value, config.num_kv_heads)


def attention_parameters(path: str, config: ModelConfig, *, hf_key: str) -> tuple[Parameter, ...]:
    """The leaves of an `Attention` at `path`."""
    heads, kv_heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden = config.hidden_dim
    return (
        matrix(f"{path}.query", (hidden, heads), dims=("embed", "heads"), hf_key=f"{hf_key}.q_proj.weight"),
        matrix(f"{path}.key", (hidden, kv_heads), dims=("embed", "kv_heads"), hf_key=f"{hf_key}.k_proj.weight"),
        matrix(f"{path}.value", (hidden, kv_heads), dims=("embed", "kv_heads"), hf_key=f"{hf_key}.v_proj.weight"),
        matrix(f"{path}.output", (heads, hidden), dims=("heads", "embed"), hf_key=f"{hf_key}.o_proj.weight"),
    )


def attend(
    query: Heads,
    key: Float[Array, "batch seq kv_heads dim"],
    *,
    value: Float[Array, "batch seq kv_heads dim"],
    segment_ids: Int[Array, "batch seq"] | None,
    operands: Operands,
    backend: Backend,
) -> Heads:
    """Each query's mean of the values at or before it in its segment, weighted by the softmax of scaled products."""
    body = attend_in_blocks if backend == "blocked" else attend_by_formula
    return body(query, key, value=value, segment_ids=segment_ids, operands=operands)


def attend_by_formula(
    query: Heads,
    key: Float[Array, "batch seq kv_heads dim"],
    *,
    value: Float[Array, "batch seq kv_heads dim"],
    segment_ids: Int[Array, "batch seq"] | None,
    operands: Operands,
) -> Heads:
    """`attend` with all scores computed and those of the future masked: the truth for every other body."""
    seq_len = query.shape[1]
    visible = jnp.tril(jnp.ones((1, seq_len, seq_len), bool))
    if segment_ids is not None:
        visible &= segment_ids[:, :, None] == segment_ids[:, None, :]
    return _mixed(query, key, value=value, visible=visible, operands=operands)


def _mixed(
    query: Heads,
    key: Float[Array, "batch keys kv_heads dim"],
    *,
    value: Float[Array, "batch keys kv_heads dim"],
    visible: Bool[Array, "#batch seq keys"],
    operands: Operands,
) -> Heads:
    batch, seq_len, num_heads, head_dim = query.shape
    grouped = (query * head_dim**-0.5).reshape(batch, seq_len, key.shape[2], -1, head_dim)
    scores = contract("bqhgd,bkhd->bhgqk", grouped, key, operands=operands)
    weights = jax.nn.softmax(jnp.where(visible[:, None, None], scores, MASKED), axis=-1)
    mixed = contract("bhgqk,bkhd->bqhgd", weights, value, operands=operands)
    return mixed.reshape(batch, seq_len, num_heads, head_dim)
