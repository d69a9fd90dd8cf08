"""Causal attention with grouped key and value heads, in bodies of equal results.

``reference`` is the formula: all scores, masked; ``blocked`` is `marin_train.blocks.blocked_attention`; ``dot_product``
and ``splash`` are the kernels of `marin_train.blocks.kernel_attention`. Scores and
softmax are float32 in all. An `Attention` that is given a `Past` attends to it too, and hands it on with what it was
given: the same code trains whole sequences and continues them token by token.

See: Vaswani et al. 2017 (arXiv 1706.03762); Ainslie et al. 2023, "GQA" (arXiv 2305.13245); Beltagy et al. 2020
(arXiv 2004.05150) for windows; Gemma Team 2024 (arXiv 2408.00118) for soft-caps; Henry et al. 2020 (arXiv 2010.04245)
for norms of queries and keys.
"""

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from marin_train.blocks.blocked_attention import attend_in_blocks
from marin_train.blocks.contraction import contract
from marin_train.blocks.kernel_attention import attend_by_dot_product, attend_by_splash
from marin_train.blocks.layers import Kind
from marin_train.blocks.norms import rms_norm
from marin_train.blocks.ring_attention import attend_in_ring
from marin_train.blocks.rope import Rotation, rotate
from marin_train.blocks.scoring import MASKED, Scoring
from marin_train.configs import ModelConfig
from marin_train.mesh import constrain, constrain_residual, over_mesh
from marin_train.parameters import Parameter, gain, matrix
from marin_train.policy import Policy

Heads = Float[Array, "batch seq heads dim"]
KeyHeads = Float[Array, "batch keys kv_heads dim"]


class Past(NamedTuple):
    """Keys and values of the tokens so far, a place for each that may come; stacked, those of all layers."""

    key: Float[Array, "*layer batch seq kv_heads dim"]
    value: Float[Array, "*layer batch seq kv_heads dim"]


def no_past(config: ModelConfig, *, batch: int, seq_len: int, policy: Policy) -> Past:
    """Room for keys and values of every layer, in the type to which products round their operands.

    Args:
        config: the model's shape.
        batch: sequences.
        seq_len: tokens of the longest that there may be.
        policy: its `operands` is the type.
    """
    shape = (config.num_layers, batch, seq_len, config.num_kv_heads, config.head_dim)
    return Past(jnp.zeros(shape, policy.operands), jnp.zeros(shape, policy.operands))


class Context(NamedTuple):
    """What all layers of one forward pass share.

    Args:
        rotations: the turns of queries and keys, by the name that a `Kind` gives.
        segment_ids: tokens attend only within equal ids; None where a whole sequence is one segment.
        at: in each sequence, the index of the first token behind those of the past; None without a past.
        learns: whether this is a step of training.
    """

    rotations: dict[str, Rotation]
    segment_ids: Int[Array, "batch seq"] | None = None
    at: Int[Array, " batch"] | None = None
    learns: bool = False

    @property
    def valid(self) -> Bool[Array, "batch seq"] | None:
        """Which tokens are no padding, whose segment is 0; None for all."""
        return None if self.segment_ids is None else self.segment_ids != 0


class Attention(eqx.Module):
    """Projections to queries, keys and values, attention over the past, and a projection back."""

    query: Float[Array, "*layer embed heads"]
    key: Float[Array, "*layer embed kv_heads"]
    value: Float[Array, "*layer embed kv_heads"]
    output: Float[Array, "*layer heads embed"]
    query_norm: Float[Array, "*layer dim"] | None
    """Gains of a norm over each head; None where there is none."""
    key_norm: Float[Array, "*layer dim"] | None

    def __call__(
        self,
        x: Float[Array, "batch seq embed"],
        past: Past | None,
        *,
        context: Context,
        kind: Kind,
        config: ModelConfig,
        policy: Policy,
        gain_offset: float = 0.0,
    ) -> tuple[Float[Array, "batch seq embed"], Past | None]:
        """Attend to all before in the segment and the window; the past, where there is one, then holds `x` too.

        `gain_offset` is added to the gains of the norms.
        """
        x = constrain(x, "batch", "seq", None)
        query = self._heads(x, self.query, norm=self.query_norm, config=config, policy=policy, gain_offset=gain_offset)
        key = self._heads(x, self.key, norm=self.key_norm, config=config, policy=policy, gain_offset=gain_offset)
        value = self._heads(x, self.value, norm=None, config=config, policy=policy)
        if kind.rotation is not None:
            rotation = context.rotations[kind.rotation]
            query, key = rotate(query, rotation), rotate(key, rotation)
        query, key = checkpoint_name(query, "attention_query"), checkpoint_name(key, "attention_key")
        value = checkpoint_name(value, "attention_value")
        scale = config.head_dim**-0.5 if config.query_scale is None else config.query_scale
        scoring = Scoring(scale=scale, window=kind.window, softcap=config.attention_softcap)
        if past is None:
            mixed = attend(query, key, value=value, segment_ids=context.segment_ids, scoring=scoring, policy=policy)
        else:
            mixed, past = attend_to_past(query, Past(key, value), past, at=context.at, scoring=scoring, policy=policy)
        mixed = constrain(mixed.reshape(*x.shape[:2], -1), "batch", "seq", "heads")
        output = contract("bsn,nd->bsd", mixed, self.output, policy=policy)
        return constrain_residual(output), past

    def _heads(
        self,
        x: Float[Array, "batch seq embed"],
        weight: Float[Array, "embed width"],
        *,
        norm: Float[Array, " dim"] | None,
        config: ModelConfig,
        policy: Policy,
        gain_offset: float = 0.0,
    ) -> Heads:
        projected = contract("bsd,dn->bsn", x, weight, policy=policy)
        heads = projected.reshape(*x.shape[:2], -1, config.head_dim)
        heads = constrain(heads, "batch", "seq", "heads", None)
        return heads if norm is None else rms_norm(heads, norm + gain_offset, eps=config.norm_eps)


def attention_parameters(
    path: str, config: ModelConfig, *, hf_key: str, qk_norm: bool = False, gain_init: float = 1.0
) -> tuple[Parameter, ...]:
    """The leaves of an `Attention`.

    Args:
        path: where it is in the model.
        config: the model's shape.
        hf_key: where it is in a Hugging Face checkpoint.
        qk_norm: whether queries and keys pass a norm over each head.
        gain_init: what the gains of these norms start at.
    """
    heads, kv_heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden = config.hidden_dim
    norms = (
        gain(f"{path}.query_norm", config.head_dim, dim="head_dim", hf_key=f"{hf_key}.q_norm.weight", init=gain_init),
        gain(f"{path}.key_norm", config.head_dim, dim="head_dim", hf_key=f"{hf_key}.k_norm.weight", init=gain_init),
    )
    return (
        matrix(f"{path}.query", (hidden, heads), dims=("embed", "heads"), hf_key=f"{hf_key}.q_proj.weight"),
        matrix(f"{path}.key", (hidden, kv_heads), dims=("embed", "kv_heads"), hf_key=f"{hf_key}.k_proj.weight"),
        matrix(f"{path}.value", (hidden, kv_heads), dims=("embed", "kv_heads"), hf_key=f"{hf_key}.v_proj.weight"),
        matrix(f"{path}.output", (heads, hidden), dims=("heads", "embed"), hf_key=f"{hf_key}.o_proj.weight"),
        *(norms if qk_norm else ()),
    )


def attend(
    query: Heads,
    key: KeyHeads,
    *,
    value: KeyHeads,
    segment_ids: Int[Array, "batch seq"] | None,
    scoring: Scoring,
    policy: Policy,
) -> Heads:
    """Each query's mean of the values that it sees, weighted by the softmax of its scores.

    Args:
        query: one a head.
        key: one a key-value head, which neighbouring query heads share.
        value: likewise.
        segment_ids: tokens see only those of equal ids; None where a whole sequence is one segment.
        scoring: scale, window and soft-cap.
        policy: names the body, and the precision of its products.

    On a mesh, each device attends for its own heads and sequences; where those lie in shares, in a ring.
    """
    heads = ("batch", "seq", "heads", None)
    segments = None if segment_ids is None else ("batch", "seq")

    def share(query: Heads, key: KeyHeads, value: KeyHeads, segment_ids: Array | None) -> Heads:
        body = (
            partial(attend_in_ring, num_shares=sizes["context"]) if sizes["context"] > 1 else BODIES[policy.attention]
        )
        return body(query, key, value=value, segment_ids=segment_ids, scoring=scoring, policy=policy)

    attend_in_shares, sizes = over_mesh(share, inputs=(heads, heads, heads, segments), outputs=heads)
    return attend_in_shares(query, key, value, segment_ids)


def attend_by_formula(
    query: Heads,
    key: KeyHeads,
    *,
    value: KeyHeads,
    segment_ids: Int[Array, "batch seq"] | None,
    scoring: Scoring,
    policy: Policy,
) -> Heads:
    """`attend` with all scores computed and the unseen ones masked: the truth for every other body."""
    indices = jnp.arange(query.shape[1])
    visible = scoring.visible(indices, indices)[None]
    if segment_ids is not None:
        visible &= segment_ids[:, :, None] == segment_ids[:, None, :]
    return _mixed(query, key, value=value, visible=visible, scoring=scoring, policy=policy)


BODIES = {
    "reference": attend_by_formula,
    "blocked": attend_in_blocks,
    "dot_product": attend_by_dot_product,
    "splash": attend_by_splash,
}
"""What attends, by its name in a policy."""


def attend_to_past(
    query: Heads, new: Past, past: Past, *, at: Array | None, scoring: Scoring, policy: Policy
) -> tuple[Heads, Past]:
    """`attend` to what is in the past and the new tokens, which it then holds too.

    Args:
        query: of the new tokens.
        new: their keys and values.
        past: those of the tokens before.
        at: the index of the first new token in each sequence.
        scoring: scale, window and soft-cap.
        policy: the precision of products.
    """
    if at is None:
        raise ValueError("attention with a past needs Context.at, the index of its first token")
    put = jax.vmap(partial(jax.lax.dynamic_update_slice_in_dim, axis=0))
    past = Past(*(put(old, added.astype(old.dtype), at) for old, added in zip(past, new, strict=True)))
    queries, keys = at[:, None] + jnp.arange(query.shape[1]), jnp.arange(past.key.shape[1])[None]
    visible = scoring.visible(queries, keys)
    return _mixed(query, past.key, value=past.value, visible=visible, scoring=scoring, policy=policy), past


def _mixed(
    query: Heads,
    key: KeyHeads,
    *,
    value: KeyHeads,
    visible: Bool[Array, "#batch seq keys"],
    scoring: Scoring,
    policy: Policy,
) -> Heads:
    batch, seq_len, num_heads, head_dim = query.shape
    grouped = (query * scoring.scale).reshape(batch, seq_len, key.shape[2], -1, head_dim)
    scores = contract("bqhgd,bkhd->bhgqk", grouped, key, policy=policy, result="float32")
    weights = jax.nn.softmax(jnp.where(visible[:, None, None], scoring.capped(scores), MASKED), axis=-1)
    mixed = checkpoint_name(contract("bhgqk,bkhd->bqhgd", weights, value, policy=policy), "attention_mixed")
    return mixed.reshape(batch, seq_len, num_heads, head_dim)
