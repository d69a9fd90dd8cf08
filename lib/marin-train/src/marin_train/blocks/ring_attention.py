"""Attention over a sequence that lies in shares on several devices: keys and values go round in a ring.

Each device keeps the queries of its share. A turn, it meets one share of keys and values and passes it on to its
neighbour: its own first, then those ever further before it. A query's mean over the keys met so far is kept with the
log-sum-exp of their scores, by which the mean over another share's keys is added exactly. Shares behind a device's
queries are passed on unread, and where a window hides all that is further away, the ring ends early.

No device ever holds more than one share of keys and values, nor the scores of more than a block of queries of one
key-value head: the backward pass sends the shares round once more, recomputes scores from the log-sum-exps, and has
each share's gradient travel with it, to come home complete.

Causality gives the last device the most to do, and all wait for it: half of the ring's time is lost to that. Placing
the two ends of a sequence on one device would win it back, at the price of another order of tokens everywhere else.

See: Liu et al. 2023, "Ring Attention with Blockwise Transformers" (arXiv 2310.01889); Dao et al. 2022,
"FlashAttention" (arXiv 2205.14135), algorithm 4, for the backward pass.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from marin_train.blocks.contraction import contract
from marin_train.blocks.scoring import MASKED, Scoring
from marin_train.policy import Policy

AXIS = "context"

BLOCK = 512
"""Queries whose scores are held at a time: enough rows to fill a matrix unit."""


class _How(NamedTuple):
    """Known to the compiler."""

    scoring: Scoring
    policy: Policy
    num_shares: int

    def num_turns(self, rows: int) -> int:
        """Shares, its own included, of which a query may see a key."""
        window = self.scoring.window
        return self.num_shares if window is None else min(self.num_shares, 1 + -(-(window - 1) // rows))


class _Share(NamedTuple):
    """Keys and values, by key-value head, and the documents that they are of."""

    key: Float[Array, "kv_heads batch keys dim"]
    value: Float[Array, "kv_heads batch keys dim"]
    segment_ids: Int[Array, "batch keys"] | None


class _Result(NamedTuple):
    """Of each query, over keys it has met: the mean of their values, and the log-sum-exp of its scores."""

    mixed: Float[Array, "*kv_heads batch group rows dim"]
    lse: Float[Array, "*kv_heads batch group rows"]


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
    grouped = (query * scoring.scale).reshape(batch, rows, key.shape[2], -1, head_dim).transpose(2, 0, 3, 1, 4)
    how = _How(scoring, policy, num_shares)
    mixed = _attend(how, grouped, key.transpose(2, 0, 1, 3), value.transpose(2, 0, 1, 3), segment_ids)
    return mixed.transpose(1, 3, 0, 2, 4).reshape(batch, rows, num_heads, head_dim)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(how: _How, query: Array, key: Array, value: Array, segment_ids: Array | None) -> Array:
    return _attend_forward(how, query, key, value, segment_ids)[0]


def _attend_forward(
    how: _How, query: Array, key: Array, value: Array, segment_ids: Array | None
) -> tuple[Array, tuple]:
    rows, own = query.shape[3], jax.lax.axis_index(AXIS)

    def meet(so_far: _Result, share: _Share, lag: Array) -> _Result:
        visible = partial(_visible, how.scoring, segment_ids, share, lag=lag, group=query.shape[2])
        head = partial(_head_forward, how=how, visible=visible)
        return _both(so_far, jax.lax.map(lambda xs: head(*xs), (query, share.key, share.value)))

    def turn(carry: tuple[_Result, _Share], number: Array) -> tuple[tuple[_Result, _Share], None]:
        so_far, share = carry
        so_far = jax.lax.cond(number <= own, meet, lambda so_far, *_: so_far, so_far, share, number * rows)
        return (so_far, _passed_on(share, how)), None

    start = _Result(jnp.zeros(query.shape), jnp.full(query.shape[:-1], MASKED))
    share = _Share(key, value, segment_ids)
    (result, _), _ = jax.lax.scan(turn, (start, share), jnp.arange(how.num_turns(rows)))
    # Named here, where they are what the backward pass is handed: kept, they spare it this whole function.
    mixed = checkpoint_name(result.mixed.astype(how.policy.activations), "attention_mixed")
    return mixed, (query, key, value, segment_ids, mixed, checkpoint_name(result.lse, "attention_lse"))


def _attend_backward(how: _How, residuals: tuple, cotangent: Array) -> tuple[Array, Array, Array, None]:
    query, key, value, segment_ids, mixed, lse = residuals
    shift = jnp.sum(mixed * cotangent, axis=-1, dtype=jnp.float32)
    rows, own, num_turns = query.shape[3], jax.lax.axis_index(AXIS), how.num_turns(query.shape[3])

    def meet(sums: tuple[Array, ...], share: _Share, lag: Array) -> tuple[Array, ...]:
        visible = partial(_visible, how.scoring, segment_ids, share, lag=lag, group=query.shape[2])
        head = partial(_head_backward, how=how, visible=visible)
        parts = jax.lax.map(lambda xs: head(*xs), (query, lse, shift, cotangent, share.key, share.value))
        return jax.tree.map(jnp.add, sums, parts)

    def turn(carry: tuple, number: Array) -> tuple[tuple, None]:
        sums, share = carry
        query_sum, *of_share = jax.lax.cond(number <= own, meet, lambda sums, *_: sums, sums, share, number * rows)
        return ((query_sum, *_passed_on(of_share, how)), _passed_on(share, how)), None

    zeros = tuple(jnp.zeros(x.shape) for x in (query, key, value))
    (sums, _), _ = jax.lax.scan(turn, (zeros, _Share(key, value, segment_ids)), jnp.arange(num_turns))
    home = _passed_on(sums[1:], how, times=how.num_shares - num_turns)
    gradients = (x.astype(like.dtype) for x, like in zip((sums[0], *home), (query, key, value), strict=True))
    return *gradients, None


_attend.defvjp(_attend_forward, _attend_backward)


def _passed_on[T](share: T, how: _How, *, times: int = 1) -> T:
    """What the device so many places before this one held."""
    onward = [(i, (i + times) % how.num_shares) for i in range(how.num_shares)]
    return jax.tree.map(lambda x: jax.lax.ppermute(x, AXIS, onward), share) if times else share


def _both(a: _Result, b: _Result) -> _Result:
    """The results over the keys of both. Where one has seen none, its log-sum-exp is that of masked scores."""
    lse = jnp.logaddexp(a.lse, b.lse)
    mixed = a.mixed * jnp.exp(a.lse - lse)[..., None] + b.mixed * jnp.exp(b.lse - lse)[..., None]
    return _Result(mixed, lse)


def _head_forward(query: Array, key: Array, value: Array, *, how: _How, visible: Callable[[Array], Array]) -> _Result:
    """One key-value head's queries over one share of its keys, block by block."""
    product = partial(contract, policy=how.policy, result="float32")

    def block(indices: Array, query: Array) -> _Result:
        scores = how.scoring.capped(product("bqd,bkd->bqk", _flat(query), key))
        scores = jnp.where(visible(indices), scores, MASKED)
        peak = jnp.max(scores, axis=-1, keepdims=True)
        weights = jnp.exp(scores - peak)
        total = jnp.sum(weights, axis=-1, keepdims=True)
        mixed = product("bqk,bkd->bqd", weights, value) / total
        return _Result(mixed.reshape(query.shape), (peak + jnp.log(total)).reshape(query.shape[:-1]))

    results = jax.lax.map(lambda xs: block(*xs), _in_blocks(query))
    return jax.tree.map(lambda x: _joined(x, rows=query.shape[2]), results)


def _head_backward(
    query: Array,
    lse: Array,
    shift: Array,
    cotangent: Array,
    key: Array,
    value: Array,
    *,
    how: _How,
    visible: Callable[[Array], Array],
) -> tuple[Array, Array, Array]:
    """What that adds to the gradients of queries, keys and values; `shift` is the product of output and cotangent."""
    scoring = how.scoring
    product = partial(contract, policy=how.policy, result="float32")

    def block(sums: tuple[Array, Array], xs: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        indices, query, lse, shift, cotangent = xs
        rows, above = _flat(query), _flat(cotangent)
        scores = scoring.capped(product("bqd,bkd->bqk", rows, key))
        weights = jnp.where(visible(indices), jnp.exp(scores - _flat(lse)[..., None]), 0.0)
        slope = weights * (product("bqd,bkd->bqk", above, value) - _flat(shift)[..., None])
        if scoring.softcap is not None:
            slope *= 1.0 - jnp.square(scores / scoring.softcap)
        key_sum, value_sum = sums[0] + product("bqk,bqd->bkd", slope, rows), sums[1]
        value_sum += product("bqk,bqd->bkd", weights, above)
        return (key_sum, value_sum), product("bqk,bkd->bqd", slope, key).reshape(query.shape)

    # Rows that fill up a last block have no cotangent, and so add nothing.
    zeros = jnp.zeros(key.shape), jnp.zeros(value.shape)
    sums, queries = jax.lax.scan(block, zeros, _in_blocks(query, lse, shift, cotangent))
    return _joined(queries, rows=query.shape[2]), *sums


def _in_blocks(*of_queries: Float[Array, "batch group rows *dim"]) -> tuple[Array, ...]:
    """The queries' indices and these arrays, each with a leading dim of blocks: a compiled loop over them holds the
    scores of one, where straight-line code might hold those of all.
    """
    rows = of_queries[0].shape[2]
    number = -(-rows // BLOCK)
    width = -(-rows // number)

    def split(x: Array) -> Array:
        padded = jnp.pad(x, [(0, number * width - rows if dim == 2 else 0) for dim in range(x.ndim)])
        return jnp.moveaxis(padded.reshape(*x.shape[:2], number, width, *x.shape[3:]), 2, 0)

    return jnp.arange(number * width).reshape(number, width), *map(split, of_queries)


def _joined(blocks: Array, *, rows: int) -> Float[Array, "batch group rows *dim"]:
    joined = jnp.moveaxis(blocks, 0, 2)
    return joined.reshape(*joined.shape[:2], -1, *joined.shape[4:])[:, :, :rows]


def _flat(block: Array) -> Float[Array, "batch rows *dim"]:
    """A block's queries, those of all heads of a group in one dim."""
    return block.reshape(block.shape[0], -1, *block.shape[3:])


def _visible(
    scoring: Scoring, of_queries: Array | None, share: _Share, indices: Array, *, lag: Array, group: int
) -> Bool[Array, "#batch rows keys"]:
    """Which keys of a share that begins `lag` tokens before their own each of the block's queries sees."""
    mask = scoring.visible(lag + indices, jnp.arange(share.key.shape[2]))[None]
    if of_queries is not None and share.segment_ids is not None:
        mask &= of_queries.at[:, indices].get(mode="clip")[:, :, None] == share.segment_ids[:, None, :]
    return jnp.tile(mask, (1, group, 1))
