"""Causal attention by blocks of queries: scores that causality or a window hides are not computed, and none is kept.

A block of queries reads only the keys from its first query's window up to its own end. A loop over key-value heads
keeps every array of its body small enough for a cache. The backward pass recomputes a block's scores from each row's
log-sum-exp, so that what is kept is linear in the sequence; it recomputes them transposed (keys by queries), because
then two of its three products sum over the dim that lies contiguous in memory, and only one over the dim that does not.

Loops write over what they have read: a head's output takes the place of its query in a copy that they would need
anyway, its gradients the place of the head. Buffers of zeros to write to, which a compiled loop else begins with, the
compiler would make for all layers at the start of the program, and hold until each is used.

See: Dao et al. 2022, "FlashAttention" (arXiv 2205.14135), algorithm 4, for the backward pass.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from marin_train.blocks.contraction import contract
from marin_train.blocks.scoring import MASKED, Scoring
from marin_train.policy import Policy

BLOCK = 128
"""Queries a block: enough rows to fill a matrix unit, few enough that little of the masked half is computed."""

MOST_BLOCKS = 16
"""Of a long sequence, blocks are wider: each is code of its own to compile, and a sixteenth of a sequence computes
little of the masked half either."""


_How = tuple[Scoring, Policy]


class _Heads(NamedTuple):
    """One key-value head with the queries that share it; stacked on a leading dim, all of them."""

    query: Float[Array, "*heads batch group seq dim"]
    key: Float[Array, "*heads batch seq dim"]
    value: Float[Array, "*heads batch seq dim"]


def attend_in_blocks(
    query: Float[Array, "batch seq heads dim"],
    key: Float[Array, "batch seq kv_heads dim"],
    *,
    value: Float[Array, "batch seq kv_heads dim"],
    segment_ids: Int[Array, "batch seq"] | None,
    scoring: Scoring,
    policy: Policy,
) -> Float[Array, "batch seq heads dim"]:
    """Each query's mean of the values at or before it in its segment, weighted by the softmax of scaled products."""
    batch, seq_len, num_heads, head_dim = query.shape
    num_kv_heads = key.shape[2]
    grouped = (query * scoring.scale).reshape(batch, seq_len, num_kv_heads, -1, head_dim)
    heads = _Heads(grouped.transpose(2, 0, 3, 1, 4), key.transpose(2, 0, 1, 3), value.transpose(2, 0, 1, 3))
    heads = jax.tree.map(lambda leaf: leaf.astype(policy.activations), heads)
    mixed = _attend((scoring, policy), heads, segment_ids)
    return mixed.transpose(1, 3, 0, 2, 4).reshape(batch, seq_len, num_heads, head_dim)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(how: _How, heads: _Heads, segment_ids: Array | None) -> Array:
    return _attend_forward(how, heads, segment_ids)[0]


def _attend_forward(how: _How, heads: _Heads, segment_ids: Array | None) -> tuple[Array, tuple]:
    forward = partial(_head_forward, how=how, segment_ids=segment_ids)
    # Rounded before the loop as its products would round them: all that the backward pass wants of them, and half as
    # wide. Without the barrier the compiler would round them when they are wanted, and keep them as they are.
    rounded = jax.lax.optimization_barrier(jax.tree.map(lambda leaf: leaf.astype(how[1].operands), heads))

    def attend_head(mixed: Array, xs: tuple[Array, _Heads]) -> tuple[Array, Array]:
        number, head = xs
        block, lse = forward(head)
        return jax.lax.dynamic_update_index_in_dim(mixed, block, number, axis=0), lse

    mixed, lse = jax.lax.scan(attend_head, heads.query, (jnp.arange(len(heads.query)), rounded))
    # Named here, where they are what the backward pass is handed: kept, they spare it this whole function.
    mixed, lse = checkpoint_name(mixed, "attention_mixed"), checkpoint_name(lse, "attention_lse")
    return mixed, (rounded, segment_ids, mixed, lse)


def _attend_backward(how: _How, residuals: tuple, cotangent: Array) -> tuple[_Heads, None]:
    rounded, segment_ids, mixed, lse = residuals
    # Widened when the cotangent is there, and not ahead of it: the compiler would do so at once, and keep that instead.
    rounded, cotangent = jax.lax.optimization_barrier((rounded, cotangent))
    heads = jax.tree.map(lambda leaf: leaf.astype(how[1].activations), rounded)
    backward = partial(_head_backward, how=how, segment_ids=segment_ids)
    shift = jnp.sum(mixed * cotangent, axis=-1, dtype=jnp.float32)

    def differentiate_head(heads: _Heads, xs: tuple[Array, ...]) -> tuple[_Heads, None]:
        number, *rest = xs
        head = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, number, keepdims=False), heads)
        # None takes its place before all are there: the compiler would keep a copy of what it has yet to read.
        gradients = jax.lax.optimization_barrier(backward(head, *rest))

        def put(leaf: Array, gradient: Array) -> Array:
            return jax.lax.dynamic_update_index_in_dim(leaf, gradient.astype(leaf.dtype), number, axis=0)

        return jax.tree.map(put, heads, gradients), None

    return jax.lax.scan(differentiate_head, heads, (jnp.arange(len(lse)), lse, shift, cotangent))[0], None


_attend.defvjp(_attend_forward, _attend_backward)


def _head_forward(head: _Heads, *, how: _How, segment_ids: Array | None) -> tuple[Array, Array]:
    (scoring, policy), mixed, lse = how, [], []
    shape = head.query.shape
    for first, start, end in _spans(shape[2], window=scoring.window):
        query = _rows(head.query, start, end=end)
        scores = contract("bqd,bkd->bqk", query, head.key[:, first:end], policy=policy, result="float32")
        mask = _visible(first, start, end=end, scoring=scoring, segment_ids=segment_ids, group=shape[1])
        scores = jnp.where(mask, scoring.capped(scores), MASKED)
        peak = jnp.max(scores, axis=-1, keepdims=True)
        weights = jnp.exp(scores - peak)
        total = jnp.sum(weights, axis=-1, keepdims=True)
        block = contract("bqk,bkd->bqd", weights, head.value[:, first:end], policy=policy, result="float32") / total
        mixed.append(block.reshape(*shape[:2], end - start, shape[3]))
        lse.append((peak + jnp.log(total)).reshape(*shape[:2], end - start))
    return jnp.concatenate(mixed, axis=2).astype(policy.activations), jnp.concatenate(lse, axis=2)


def _head_backward(
    head: _Heads, lse: Array, shift: Array, cotangent: Array, *, how: _How, segment_ids: Array | None
) -> _Heads:
    """`shift` is what the softmax's derivative subtracts from each row: the product of its output and cotangent."""
    scoring, policy = how
    # Many blocks add to one key: in float32, whatever the activations.
    query_blocks, key_sum, value_sum = [], jnp.zeros(head.key.shape), jnp.zeros(head.value.shape)
    shape = head.query.shape
    for first, start, end in _spans(shape[2], window=scoring.window):
        query, above = _rows(head.query, start, end=end), _rows(cotangent, start, end=end)
        key, value = head.key[:, first:end], head.value[:, first:end]
        mask = _visible(first, start, end=end, scoring=scoring, segment_ids=segment_ids, group=shape[1]).swapaxes(1, 2)
        scores = scoring.capped(contract("bkd,bqd->bkq", key, query, policy=policy, result="float32"))
        weights = jnp.where(mask, jnp.exp(scores - _rows(lse, start, end=end)[:, None]), 0.0)
        slope = (
            contract("bkd,bqd->bkq", value, above, policy=policy, result="float32")
            - _rows(shift, start, end=end)[:, None]
        )
        slope = weights * slope
        if scoring.softcap is not None:
            slope *= 1.0 - jnp.square(scores / scoring.softcap)
        value_part = contract("bkq,bqd->bkd", weights, above, policy=policy, result="float32")
        key_part = contract("bkq,bqd->bkd", slope, query, policy=policy, result="float32")
        value_sum, key_sum = value_sum.at[:, first:end].add(value_part), key_sum.at[:, first:end].add(key_part)
        query_block = contract("bkq,bkd->bqd", slope, key, policy=policy)
        query_blocks.append(query_block.reshape(*shape[:2], end - start, shape[3]))
    return _Heads(jnp.concatenate(query_blocks, axis=2), key_sum, value_sum)


def _spans(seq_len: int, *, window: int | None) -> list[tuple[int, int, int]]:
    """Of each block: the first key that any of its queries sees, its first query, and its end."""
    width = BLOCK * max(1, math.ceil(seq_len / (BLOCK * MOST_BLOCKS)))
    starts = range(0, seq_len, width)
    return [(0 if window is None else max(0, at - window + 1), at, min(at + width, seq_len)) for at in starts]


def _rows(x: Array, start: int, *, end: int) -> Float[Array, "batch rows *dim"]:
    """A block's queries, those of all heads of a group in one dim."""
    block = x[:, :, start:end]
    return block.reshape(block.shape[0], -1, *block.shape[3:])


def _visible(
    first: int, start: int, *, end: int, scoring: Scoring, segment_ids: Array | None, group: int
) -> Bool[Array, "#batch rows keys"]:
    """Which of the keys from `first` to `end` each row of the block sees."""
    mask = scoring.visible(jnp.arange(start, end), jnp.arange(first, end))[None]
    if segment_ids is not None:
        mask &= segment_ids[:, start:end, None] == segment_ids[:, None, first:end]
    return jnp.tile(mask, (1, group, 1))
