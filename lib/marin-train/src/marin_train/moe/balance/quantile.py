"""Quantile Balancing: a bias that gives every expert its share of the last batch, from an integer histogram.

Of m tokens each is to see k of n experts, and each expert q = m k / n tokens. With scores s and a bias b, a token's
threshold alpha is the (k + 1)-th largest of its biased scores, and an expert would have exactly q tokens if its bias
were the k / n quantile, over tokens, of ``alpha - s``. Setting each bias to its quantile, and their mean to 0, is one
step of coordinate descent on the dual of the balanced-assignment problem: no loss, no weight, one pass a batch. The new
bias holds from the next batch on. A gain g moves it by that share of the way.

Quantiles are taken from counts, so that they are those of a whole batch however it lies on devices and in parts. All
is in integers: how far a bias must rise for a token to choose the expert, ``alpha - s - b``, is rounded to 2**-20 and
counted in bins around 0, which is the bias as it was. A bin's width is 2**level units, with the least level at which
all values fall into a bin; where another part's or device's values reach further, bins are merged in pairs until they
fit, which comes to the same as having counted in wide bins at once. Nothing is clipped, nothing depends on an order,
and the bias, a multiple of 2**-20 too, is equal to the bit on every mesh and for any number of parts.

See: Lewis et al. 2021, "BASE Layers" (arXiv 2103.16716), for balance as an assignment problem; Wang et al. 2024
(arXiv 2408.15664) for a bias that moves choices and not weights.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from marin_train.configs import MoEConfig
from marin_train.mesh import over_mesh
from marin_train.moe.balance import Balanced
from marin_train.moe.routing import Scores, over_tokens, token_axes

IS_CAUSAL = True

NUM_BINS = 1024
"""Bins an expert. Where all values lie within 8 of the bias, a bin is 1/64 wide; within 16, 1/32; and so on."""

UNIT = 2.0**-20
"""What distances and biases are multiples of: as fine as float32 tells scores between 8 and 16 apart."""

_FURTHEST = 2**29
"""Units, as many as make 512: distances beyond are counted as this one, and no bias is larger."""


class Counts(NamedTuple):
    """How far the tokens of a batch, or of a part of one, are from choosing each expert.

    Args:
        level: a bin is 2**level units wide.
        histogram: tokens by distance; bin ``NUM_BINS // 2`` begins at 0.
        num_tokens: tokens that are no padding.
    """

    level: Int[Array, "*layer experts"]
    histogram: Int[Array, "*layer experts bins"]
    num_tokens: Int[Array, "*layer"]


def balance(
    scores: Scores,
    bias: Float[Array, " experts"] | None,
    *,
    valid: Bool[Array, "batch seq"] | None,
    config: MoEConfig,
) -> Balanced:
    """See `marin_train.moe.balance.Rule`. Fewer than 2**31 tokens times ``top_k`` are counted exactly."""
    assert bias is not None
    biased = jax.lax.stop_gradient(scores + bias)
    # XLA's CPU backend knows a top-k whose results are taken as they are; of one that is sliced it sorts everything.
    best, chosen = jax.lax.optimization_barrier(jax.lax.top_k(biased, min(config.top_k + 1, config.num_experts)))
    # Where a token sees all experts there is no threshold, and nothing to balance.
    threshold = best[..., -1:]
    counts = _count(_in_units(threshold - biased), valid)
    return Balanced(chosen[..., : config.top_k], jnp.zeros(()), counts)


def _in_units(values: Float[Array, "..."]) -> Int[Array, "..."]:
    return jnp.clip(jnp.round(values / UNIT), -_FURTHEST, _FURTHEST).astype(jnp.int32)


def _count(distances: Int[Array, "batch seq experts"], valid: Bool[Array, "batch seq"] | None) -> Counts:
    num_experts = distances.shape[-1]

    def share(distances: Array, valid: Array) -> Counts:
        rows, counted = distances.reshape(-1, num_experts), valid.reshape(-1)
        level = _level(jnp.where(counted[:, None], rows, 0))
        places = jnp.arange(num_experts) * NUM_BINS + (rows >> level) + NUM_BINS // 2
        places = jnp.where(counted[:, None], places, num_experts * NUM_BINS)
        flat = jnp.zeros(num_experts * NUM_BINS, jnp.int32).at[places.reshape(-1)].add(1, mode="drop")
        counts = Counts(level, flat.reshape(num_experts, NUM_BINS), jnp.sum(counted, dtype=jnp.int32))
        if axes := token_axes(sizes):
            counts = _widened(counts, jax.lax.pmax(level, axes))
        return Counts(counts.level, *over_tokens((counts.histogram, counts.num_tokens), sizes))

    run, sizes = over_mesh(share, inputs=(("batch", "seq", None), ("batch", "seq")), outputs=Counts._make(((), (), ())))
    return run(distances, jnp.ones(distances.shape[:2], bool) if valid is None else valid)


def _level(distances: Int[Array, "tokens experts"]) -> Int[Array, " experts"]:
    """The least level at which all distances to each expert fall into a bin."""
    furthest = jnp.max(jnp.maximum(distances, -distances - 1), axis=0, initial=0)
    return jnp.maximum(32 - jax.lax.clz(furthest) - (NUM_BINS // 2).bit_length() + 1, 0)


def _widened(counts: Counts, level: Int[Array, "*layer experts"]) -> Counts:
    """The same counts in the bins of a level that is no lower."""
    merged = (level - counts.level)[..., None]
    edges = jnp.arange(NUM_BINS + 1) - NUM_BINS // 2
    fine = jnp.clip((edges << merged) + NUM_BINS // 2, 0, NUM_BINS)
    below = jnp.cumsum(counts.histogram, axis=-1)
    below = jnp.concatenate([jnp.zeros_like(below[..., :1]), below], axis=-1)
    return counts._replace(level=level, histogram=jnp.diff(jnp.take_along_axis(below, fine, axis=-1), axis=-1))


def merge(a: Counts, b: Counts) -> Counts:
    """See `marin_train.moe.balance.Rule`."""
    level = jnp.maximum(a.level, b.level)
    a, b = _widened(a, level), _widened(b, level)
    return Counts(level, a.histogram + b.histogram, a.num_tokens + b.num_tokens)


def updated(bias: Float[Array, "*layer experts"], counts: Counts, *, config: MoEConfig) -> Array:
    """See `marin_train.moe.balance.Rule`; as it was where nothing was counted, or every token sees all experts."""
    before = jnp.round(bias / UNIT).astype(jnp.int32)
    moved = quantile(counts, config.top_k, config.num_experts)
    if config.strength != 1.0:
        moved = jnp.round(config.strength * moved.astype(jnp.float32)).astype(jnp.int32)
    after = jnp.clip(_centred(before + moved), -_FURTHEST, _FURTHEST)
    some = (counts.num_tokens[..., None] > 0) & (config.top_k < config.num_experts)
    return jnp.where(some, after.astype(jnp.float32) * UNIT, bias)


def quantile(counts: Counts, top_k: int, num_experts: int) -> Int[Array, "*layer experts"]:
    """The ``top_k / num_experts`` quantile of the distances to each expert, in units.

    Within its bin, tokens are taken to lie evenly. There is no product whose sum a compiler might round once or twice
    as it likes: what is not an integer is quotients, a sum, and a power of two.
    """
    routes = counts.num_tokens[..., None] * top_k
    share, rest = routes // num_experts, routes % num_experts
    up_to = jnp.cumsum(counts.histogram, axis=-1)
    wanted = jnp.maximum(share + (rest > 0), 1)
    place = jnp.sum(up_to < wanted[..., None], axis=-1)
    here = jnp.take_along_axis(counts.histogram, jnp.minimum(place, NUM_BINS - 1)[..., None], axis=-1)[..., 0]
    before = jnp.take_along_axis(up_to, jnp.clip(place - 1, 0)[..., None], axis=-1)[..., 0]
    before = jnp.where(place == 0, 0, before)
    within = ((share - before).astype(jnp.float32) + rest.astype(jnp.float32) / num_experts) / jnp.maximum(here, 1)
    width = jnp.left_shift(1, counts.level)
    return ((place - NUM_BINS // 2) << counts.level) + jnp.floor(within * width.astype(jnp.float32)).astype(jnp.int32)


def _centred(units: Int[Array, "*layer experts"]) -> Int[Array, "*layer experts"]:
    """Minus the mean, rounded down; summed in two parts, neither of which overflows."""
    num_experts = units.shape[-1]
    whole = jnp.sum(units // num_experts, axis=-1, keepdims=True)
    return units - (whole + jnp.sum(units % num_experts, axis=-1, keepdims=True) // num_experts)
