"""Attention over a sequence that lies in shares on several devices: keys and values go round in a ring.

Each device keeps the queries of its share. In as many turns as there are shares it meets every share of keys and
values, one a turn, and passes it on to its neighbour. A query's result so far is kept with the largest score and the
sum of weights that it was made of, so that another share's can be added exactly; shares that lie wholly behind a
device's queries are passed on unread. The backward pass recomputes each turn's scores from the queries and keys.

See: Liu et al. 2023, "Ring Attention with Blockwise Transformers" (arXiv 2310.01889); Milakov and Gimelshein 2018
(arXiv 1805.02867) for sums of weights that can be added.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from marin_train.blocks.contraction import contract
from marin_train.blocks.scoring import MASKED, Scoring
from marin_train.policy import Policy

AXIS = "context"


class _Share(NamedTuple):
    """Keys and values of one share, and the documents that they are of."""

    key: Float[Array, "batch keys kv_heads dim"]
    value: Float[Array, "batch keys kv_heads dim"]
    segment_ids: Int[Array, "batch keys"] | None


class _SoFar(NamedTuple):
    """Of each query, over the keys it has met: the sum of weighted values, that of weights, and the largest score."""

    mixed: Float[Array, "batch kv_heads group rows dim"]
    total: Float[Array, "batch kv_heads group rows"]
    peak: Float[Array, "batch kv_heads group rows"]


def attend_in_ring(
    query: Float[Array, "batch rows heads dim"],
    key: Float[Array, "batch rows kv_heads dim"],
    *,
    value: Float[Array, "batch rows kv_heads dim"],
    segment_ids: Int[Array, "batch rows"] | None,
    scoring: Scoring,
    policy: Policy,
    num_shares: int,
) -> Float[Array, "batch rows heads dim"]:
    """`attend` for this device's share of a sequence; to be called where the mesh's ``context`` axis is at hand."""
    batch, rows, num_heads, head_dim = query.shape
    own = jax.lax.axis_index(AXIS)
    grouped = (query * scoring.scale).reshape(batch, rows, key.shape[2], -1, head_dim)
    meet = jax.checkpoint(partial(_meet, grouped, segment_ids, own * rows, scoring=scoring, policy=policy))
    heads = (batch, key.shape[2], num_heads // key.shape[2], rows)
    so_far = _SoFar(jnp.zeros((*heads, head_dim)), jnp.zeros(heads), jnp.full(heads, MASKED))
    share = _Share(key, value, segment_ids)
    onward = [(i, (i + 1) % num_shares) for i in range(num_shares)]
    for turn in range(num_shares):
        of = (own - turn) % num_shares
        so_far = jax.lax.cond(of <= own, meet, lambda _, so_far, __: so_far, share, so_far, of * rows)
        if turn + 1 < num_shares:
            share = jax.tree.map(lambda x: jax.lax.ppermute(x, AXIS, onward), share)
    mixed = so_far.mixed / so_far.total[..., None]
    return mixed.transpose(0, 3, 1, 2, 4).reshape(batch, rows, num_heads, head_dim).astype(query.dtype)


def _meet(
    query: Array,
    query_segments: Array | None,
    first_query: Array,
    share: _Share,
    so_far: _SoFar,
    first_key: Array,
    *,
    scoring: Scoring,
    policy: Policy,
) -> _SoFar:
    """The results so far, with those over one share of keys added."""
    scores = contract("bqhgd,bkhd->bhgqk", query, share.key, policy=policy, result="float32")
    indices = jnp.arange(query.shape[1])
    visible = scoring.visible(first_query + indices, first_key + jnp.arange(share.key.shape[1]))[None]
    if query_segments is not None and share.segment_ids is not None:
        visible &= query_segments[:, :, None] == share.segment_ids[:, None, :]
    scores = jnp.where(visible[:, None, None], scoring.capped(scores), MASKED)
    peak = jnp.maximum(so_far.peak, jnp.max(scores, axis=-1))
    # A query that sees none of these keys gives them no weight, though all their scores are equal.
    weights = jnp.where(visible[:, None, None], jnp.exp(scores - peak[..., None]), 0.0)
    fade = jnp.exp(so_far.peak - peak)
    mixed = contract("bhgqk,bkhd->bhgqd", weights, share.value, policy=policy, result="float32")
    return _SoFar(
        mixed=so_far.mixed * fade[..., None] + mixed,
        total=so_far.total * fade + jnp.sum(weights, axis=-1),
        peak=peak,
    )
