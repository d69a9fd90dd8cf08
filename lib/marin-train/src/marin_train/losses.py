"""Next-token cross-entropy over blocks of the sequence, so that the logits of a whole batch never exist.

Logits are the largest array of a small model's step: batch x sequence x vocabulary. The loss needs one number of each
row, so a loop walks over blocks of the sequence, and where a gradient is wanted it takes it in the same walk, while a
block's logits are at hand: three products a block, where recomputing them later would take four. It is a compiled loop
and not straight-line code because every turn then writes to the same few megabytes, which stay in cache. Walking along
the sequence leaves the batch dim whole, and with it the way the batch is spread over devices.

The loss of a batch is the sum over its unmasked tokens divided by their number, over the global batch: a mean of
per-device means would weigh tokens by where they happened to lie.

See: Chowdhery et al. 2022, "PaLM" (arXiv 2204.02311), section 5, for the z-loss; Hsu et al. 2024, "Liger Kernel"
(arXiv 2410.10989), section 3.2, for taking the gradient in the forward walk.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from marin_train.blocks import contract
from marin_train.configs import ModelConfig
from marin_train.models import family
from marin_train.models.decoder import forward, logits
from marin_train.policy import Policy

BLOCK_TOKENS = 512
"""Tokens a block, over the batch: logits of a block stay within a few tens of megabytes."""


_Sums = tuple[Float[Array, ""], Float[Array, ""]]
_How = tuple[float, ModelConfig, Policy]


class Batch(NamedTuple):
    """Sequences to learn from; position t of `loss_mask` speaks of predicting token t + 1.

    Args:
        tokens: each sequence with the token after it.
        loss_mask: whether the prediction counts.
        segment_ids: tokens attend only within equal ids; by default to all before them.
        positions: the tokens' positions; by default their indices.
    """

    tokens: Int[Array, "batch seq+1"]
    loss_mask: Bool[Array, "batch seq"]
    segment_ids: Int[Array, "batch seq"] | None = None
    positions: Int[Array, "batch seq"] | None = None


class LossSums(NamedTuple):
    """What a batch, or a part of one, costs; divided by the global batch's `num_tokens`, its loss. Only `objective` has
    a gradient.

    Args:
        objective: sum over unmasked tokens of the cross-entropy plus the z-loss.
        cross_entropy: that of the cross-entropy alone, nats.
        num_tokens: the number of unmasked tokens.
    """

    objective: Float[Array, ""]
    cross_entropy: Float[Array, ""]
    num_tokens: Int[Array, ""]


def token_losses(model: Any, batch: Batch, *, config: ModelConfig, policy: Policy) -> Float[Array, "batch seq"]:
    """The cross-entropy of every prediction in nats, masked or not."""
    hidden, head = _hidden(model, batch, config=config, policy=policy), family(config).head(model)

    def block(_: None, xs: _Block) -> tuple[None, Array]:
        return None, _nll_and_lse(logits(xs.hidden, head, config=config, policy=policy), xs.targets)[0]

    _, losses = jax.lax.scan(block, None, _in_blocks(hidden, targets=batch.tokens[:, 1:], mask=batch.loss_mask))
    return _joined(losses, seq_len=hidden.shape[1])


def summed_loss(model: Any, batch: Batch, *, config: ModelConfig, policy: Policy, z_loss: float = 0.0) -> LossSums:
    """The sums over the unmasked tokens of a batch."""
    objective, cross_entropy = summed_cross_entropy(
        _hidden(model, batch, config=config, policy=policy),
        family(config).head(model),
        targets=batch.tokens[:, 1:],
        mask=batch.loss_mask,
        z_loss=z_loss,
        config=config,
        policy=policy,
    )
    return LossSums(objective, cross_entropy, jnp.sum(batch.loss_mask, dtype=jnp.int32))


def _hidden(model: Any, batch: Batch, *, config: ModelConfig, policy: Policy) -> Float[Array, "batch seq embed"]:
    return forward(
        model,
        batch.tokens[:, :-1],
        config=config,
        policy=policy,
        positions=batch.positions,
        segment_ids=batch.segment_ids,
    )


def summed_cross_entropy(
    hidden: Float[Array, "batch seq embed"],
    head: Float[Array, "embed vocab"],
    *,
    targets: Int[Array, "batch seq"],
    mask: Bool[Array, "batch seq"],
    z_loss: float,
    config: ModelConfig,
    policy: Policy,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Sums over unmasked tokens of the cross-entropy plus ``z_loss * logsumexp(logits) ** 2``, and of the former alone.

    Only the first has a gradient.
    """
    objective, cross_entropy = _summed((z_loss, config, policy), hidden, head, targets, mask)
    return objective, jax.lax.stop_gradient(cross_entropy)


class _Block(NamedTuple):
    """The arrays of all blocks, stacked on a leading dim over which to scan; or those of one block."""

    hidden: Float[Array, "*blocks batch width embed"]
    targets: Int[Array, "*blocks batch width"]
    mask: Bool[Array, "*blocks batch width"]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _summed(how: _How, hidden: Array, head: Array, targets: Array, mask: Array) -> _Sums:
    z_loss, config, policy = how

    def block(sums: _Sums, xs: _Block) -> tuple[_Sums, None]:
        nll, lse = _nll_and_lse(logits(xs.hidden, head, config=config, policy=policy), xs.targets)
        return _added(sums, nll, lse=lse, mask=xs.mask, z_loss=z_loss), None

    return jax.lax.scan(block, (jnp.zeros(()), jnp.zeros(())), _in_blocks(hidden, targets=targets, mask=mask))[0]


def _summed_forward(
    how: _How, hidden: Array, head: Array, targets: Array, mask: Array
) -> tuple[_Sums, tuple[Array, Array]]:
    z_loss, config, policy = how
    vocabulary = jnp.arange(head.shape[1])

    def block(carry: tuple[_Sums, Array], xs: _Block) -> tuple[tuple[_Sums, Array], Array]:
        sums, head_gradient = carry
        scores = logits(xs.hidden, head, config=config, policy=policy)
        nll, lse = _nll_and_lse(scores, xs.targets)
        probability = jnp.exp(scores - lse[..., None])
        is_target = xs.targets[..., None] == vocabulary
        slope = probability * (1.0 + 2.0 * z_loss * lse)[..., None] - is_target
        slope = jnp.where(xs.mask[..., None], slope, 0.0)
        if config.logit_softcap is not None:
            slope *= jnp.where(jnp.isfinite(scores), 1.0 - jnp.square(scores / config.logit_softcap), 0.0)
        hidden_gradient = contract("bsv,dv->bsd", slope, head, policy=policy)
        head_gradient += contract("bsd,bsv->dv", xs.hidden, slope, policy=policy, result="float32")
        return (_added(sums, nll, lse=lse, mask=xs.mask, z_loss=z_loss), head_gradient), hidden_gradient

    start = ((jnp.zeros(()), jnp.zeros(())), jnp.zeros_like(head))
    blocks = _in_blocks(hidden, targets=targets, mask=mask)
    (sums, head_gradient), hidden_gradients = jax.lax.scan(block, start, blocks)
    return sums, (_joined(hidden_gradients, seq_len=hidden.shape[1]), head_gradient)


def _summed_backward(how: _How, gradients: tuple[Array, Array], cotangents: _Sums) -> tuple[Array, Array, None, None]:
    hidden_gradient, head_gradient = gradients
    return (cotangents[0] * hidden_gradient).astype(hidden_gradient.dtype), cotangents[0] * head_gradient, None, None


_summed.defvjp(_summed_forward, _summed_backward)


def _added(sums: _Sums, nll: Array, *, lse: Array, mask: Array, z_loss: float) -> _Sums:
    cost = nll + z_loss * jnp.square(lse)
    return sums[0] + jnp.sum(jnp.where(mask, cost, 0.0)), sums[1] + jnp.sum(jnp.where(mask, nll, 0.0))


def _in_blocks(hidden: Array, *, targets: Array, mask: Array) -> _Block:
    batch, seq_len = targets.shape
    width = min(seq_len, max(1, BLOCK_TOKENS // batch))
    num_blocks = -(-seq_len // width)

    def split(x: Array) -> Array:
        padded = jnp.pad(x, [(0, 0), (0, num_blocks * width - seq_len), *[(0, 0)] * (x.ndim - 2)])
        return jnp.moveaxis(padded.reshape(batch, num_blocks, width, *x.shape[2:]), 1, 0)

    return _Block(split(hidden), split(targets), split(mask))


def _joined(blocks: Array, *, seq_len: int) -> Array:
    joined = jnp.moveaxis(blocks, 0, 1)
    return joined.reshape(joined.shape[0], -1, *joined.shape[3:])[:, :seq_len]


def _nll_and_lse(scores: Array, targets: Array) -> tuple[Array, Array]:
    lse = jax.nn.logsumexp(scores, axis=-1)
    return lse - jnp.take_along_axis(scores, targets[..., None], axis=-1)[..., 0], lse
