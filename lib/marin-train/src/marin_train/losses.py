"""Next-token cross-entropy over blocks of the sequence, so that the logits of a whole batch never exist.

Logits are the largest array of a small model's step: batch x sequence x vocabulary. The loss needs one number of each
row, so a loop walks over blocks of the sequence, and where a gradient is wanted it takes it in the same walk, while a
block's logits are at hand: three products a block, where recomputing them later would take four. It is a compiled loop
and not straight-line code because every turn then writes to the same few megabytes, which stay in cache. Walking along
the sequence leaves the batch dim whole, and with it the way the batch is spread over devices.

The loss of a batch is the sum over its unmasked tokens divided by their number, over the global batch: a mean of
per-device means would weigh tokens by where they happened to lie. On a mesh, each device walks over its own tokens and
its own share of the vocabulary, and sums are added up over devices: nothing of the size of logits is ever sent.

See: Chowdhery et al. 2022, "PaLM" (arXiv 2204.02311), section 5, for the z-loss; Hsu et al. 2024, "Liger Kernel"
(arXiv 2410.10989), section 3.2, for taking the gradient in the forward walk.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from marin_train.blocks import contract
from marin_train.configs import ModelConfig
from marin_train.mesh import RULES, axis_sizes, over_mesh
from marin_train.models import family
from marin_train.models.decoder import logits, routed_forward
from marin_train.policy import Policy

BLOCK_TOKENS = {"cpu": 512}
"""Tokens a block, over the batch, by platform: on a CPU, logits of a block stay within a few tens of megabytes."""

WIDE_BLOCK_TOKENS = 4096
"""Elsewhere: the head's gradient is read and written once a block, which few tokens' products would not outweigh."""


_SPREAD = (*RULES["batch"], *RULES["seq"])
"""Mesh axes over which tokens are spread."""

_HIDDEN, _HEAD, _TOKENS = ("batch", "seq", None), (None, "vocab"), ("batch", "seq")

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
    """What a batch, or a part of one, costs; divided by the global batch's `num_tokens`, its loss. Only `objective` and
    `auxiliary` have a gradient.

    Args:
        objective: sum over unmasked tokens of the cross-entropy plus the z-loss.
        cross_entropy: that of the cross-entropy alone, nats.
        num_tokens: the number of unmasked tokens.
        routing: what was counted of the routing, in a model of experts (`marin_train.moe.Routing`).
        auxiliary: mean over the layers of experts of what their routing adds to the objective, a sum over the tokens
            that are no padding; it is divided by the global batch's number of those.
    """

    objective: Float[Array, ""]
    cross_entropy: Float[Array, ""]
    num_tokens: Int[Array, ""]
    routing: Any = None
    auxiliary: Float[Array, ""] | float = 0.0


def num_routed(batch: Batch) -> Int[Array, ""] | int:
    """Tokens of a batch that are no padding, which are those that routers see."""
    return batch.loss_mask.size if batch.segment_ids is None else jnp.sum(batch.segment_ids != 0, dtype=jnp.int32)


def token_losses(model: Any, batch: Batch, *, config: ModelConfig, policy: Policy) -> Float[Array, "batch seq"]:
    """The cross-entropy of every prediction, masked or not.

    Args:
        model: the parameters.
        batch: the sequences.
        config: the model's shape.
        policy: how its products are computed.

    Returns:
        Nats, float32.
    """

    def walk(hidden: Array, head: Array, targets: Array) -> Array:
        def block(_: None, xs: _Block) -> tuple[None, Array]:
            scores = logits(xs.hidden, head, config=config, policy=policy, first=_first_token(head, sizes))
            return None, _nll_and_lse(scores, xs.targets, sizes)[0]

        _, losses = jax.lax.scan(block, None, _in_blocks(hidden, targets=targets, mask=targets))
        return _joined(losses, seq_len=hidden.shape[1])

    run, sizes = over_mesh(walk, inputs=(_HIDDEN, _HEAD, _TOKENS), outputs=_TOKENS)
    hidden, _ = _hidden(model, batch, learns=False, config=config, policy=policy)
    return run(hidden, family(config).head(model), batch.tokens[:, 1:])


def summed_loss(model: Any, batch: Batch, *, config: ModelConfig, policy: Policy, z_loss: float = 0.0) -> LossSums:
    """The sums over the unmasked tokens of a batch.

    Args:
        model: the parameters.
        batch: the sequences, or a part of them.
        config: the model's shape.
        policy: how its products are computed.
        z_loss: weight of the squared log-normaliser in the objective.
    """
    hidden, routing = _hidden(model, batch, learns=True, config=config, policy=policy)
    objective, cross_entropy = summed_cross_entropy(
        hidden,
        family(config).head(model),
        targets=batch.tokens[:, 1:],
        mask=batch.loss_mask,
        z_loss=z_loss,
        config=config,
        policy=policy,
    )
    return LossSums(
        objective,
        cross_entropy,
        jnp.sum(batch.loss_mask, dtype=jnp.int32),
        jax.lax.stop_gradient(routing),
        0.0 if routing is None else jnp.mean(routing.objective),
    )


def _hidden(
    model: Any, batch: Batch, *, learns: bool, config: ModelConfig, policy: Policy
) -> tuple[Float[Array, "batch seq embed"], Any]:
    return routed_forward(
        model,
        batch.tokens[:, :-1],
        config=config,
        policy=policy,
        positions=batch.positions,
        segment_ids=batch.segment_ids,
        learns=learns,
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

    Args:
        hidden: states ready for the head.
        head: the matrix that turns them into logits.
        targets: the tokens to predict.
        mask: whether a prediction counts.
        z_loss: weight of the squared log-normaliser.
        config: the model's shape.
        policy: how products are computed.

    Returns:
        Nats, float32, over all devices. Only the first has a gradient.
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

    def walk(hidden: Array, head: Array, targets: Array, mask: Array) -> _Sums:
        def block(sums: _Sums, xs: _Block) -> tuple[_Sums, None]:
            scores = logits(xs.hidden, head, config=config, policy=policy, first=_first_token(head, sizes))
            nll, lse = _nll_and_lse(scores, xs.targets, sizes)
            return _added(sums, nll, lse=lse, mask=xs.mask, z_loss=z_loss), None

        sums, _ = jax.lax.scan(block, (jnp.zeros(()), jnp.zeros(())), _in_blocks(hidden, targets=targets, mask=mask))
        return _total(sums, _SPREAD, sizes)

    run, sizes = over_mesh(walk, inputs=(_HIDDEN, _HEAD, _TOKENS, _TOKENS), outputs=((), ()))
    return run(hidden, head, targets, mask)


def _summed_forward(
    how: _How, hidden: Array, head: Array, targets: Array, mask: Array
) -> tuple[_Sums, tuple[Array, Array]]:
    sizes = axis_sizes()
    scatters = head.shape[0] % sizes["data"] == 0
    walk = partial(_walk_with_gradients, how, sizes, scatters)
    run, _ = over_mesh(
        walk,
        inputs=(_HIDDEN, _HEAD, _TOKENS, _TOKENS),
        outputs=(((), ()), (_HIDDEN, ("embed" if scatters else None, "vocab"))),
    )
    return run(hidden, head, targets, mask)


def _walk_with_gradients(
    how: _How, sizes: Mapping[str, int], scatters: bool, hidden: Array, head: Array, targets: Array, mask: Array
) -> tuple[_Sums, tuple[Array, Array]]:
    """A device's share: the sums over all devices, and its shares of the gradients of hidden states and head."""
    z_loss, config, policy = how
    first = _first_token(head, sizes)
    vocabulary = first + jnp.arange(head.shape[1])

    def block(carry: tuple[_Sums, Array], xs: _Block) -> tuple[tuple[_Sums, Array], Array]:
        sums, head_gradient = carry
        scores = logits(xs.hidden, head, config=config, policy=policy, first=first)
        nll, lse = _nll_and_lse(scores, xs.targets, sizes)
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
    hidden_gradient = _total(_joined(hidden_gradients, seq_len=hidden.shape[1]), ("model",), sizes)
    if scatters and sizes["data"] > 1:
        head_gradient = jax.lax.psum_scatter(head_gradient, "data", scatter_dimension=0, tiled=True)
        head_gradient = _total(head_gradient, tuple(axis for axis in _SPREAD if axis != "data"), sizes)
    else:
        head_gradient = _total(head_gradient, _SPREAD, sizes)
    return _total(sums, _SPREAD, sizes), (hidden_gradient, head_gradient)


def _summed_backward(how: _How, gradients: tuple[Array, Array], cotangents: _Sums) -> tuple[Array, Array, None, None]:
    hidden_gradient, head_gradient = gradients
    return (cotangents[0] * hidden_gradient).astype(hidden_gradient.dtype), cotangents[0] * head_gradient, None, None


_summed.defvjp(_summed_forward, _summed_backward)


def _added(sums: _Sums, nll: Array, *, lse: Array, mask: Array, z_loss: float) -> _Sums:
    cost = nll + z_loss * jnp.square(lse)
    return sums[0] + jnp.sum(jnp.where(mask, cost, 0.0)), sums[1] + jnp.sum(jnp.where(mask, nll, 0.0))


def _in_blocks(hidden: Array, *, targets: Array, mask: Array) -> _Block:
    batch, seq_len = targets.shape
    tokens = BLOCK_TOKENS.get(jax.default_backend(), WIDE_BLOCK_TOKENS)
    width = min(seq_len, max(1, tokens // batch))
    num_blocks = -(-seq_len // width)

    def split(x: Array) -> Array:
        padded = jnp.pad(x, [(0, 0), (0, num_blocks * width - seq_len), *[(0, 0)] * (x.ndim - 2)])
        return jnp.moveaxis(padded.reshape(batch, num_blocks, width, *x.shape[2:]), 1, 0)

    return _Block(split(hidden), split(targets), split(mask))


def _joined(blocks: Array, *, seq_len: int) -> Array:
    joined = jnp.moveaxis(blocks, 0, 1)
    return joined.reshape(joined.shape[0], -1, *joined.shape[3:])[:, :seq_len]


def _nll_and_lse(scores: Array, targets: Array, sizes: Mapping[str, int]) -> tuple[Array, Array]:
    """Of each prediction, over the whole vocabulary, of which this device may have a share."""
    if sizes["model"] == 1:
        lse = jax.nn.logsumexp(scores, axis=-1)
        return lse - jnp.take_along_axis(scores, targets[..., None], axis=-1)[..., 0], lse
    peak = jax.lax.pmax(jnp.max(scores, axis=-1), "model")
    lse = peak + jnp.log(jax.lax.psum(jnp.sum(jnp.exp(scores - peak[..., None]), axis=-1), "model"))
    column = targets - jax.lax.axis_index("model") * scores.shape[-1]
    is_here = (column >= 0) & (column < scores.shape[-1])
    found = jnp.take_along_axis(scores, jnp.clip(column, 0, scores.shape[-1] - 1)[..., None], axis=-1)[..., 0]
    return lse - jax.lax.psum(jnp.where(is_here, found, 0.0), "model"), lse


def _first_token(head: Array, sizes: Mapping[str, int]) -> Array | int:
    """The token of the first column of this device's share of the head."""
    return jax.lax.axis_index("model") * head.shape[1] if sizes["model"] > 1 else 0


def _total(tree: Any, axes: Iterable[str], sizes: Mapping[str, int]) -> Any:
    """The sum over those axes that have more than one device."""
    spread = tuple(axis for axis in axes if sizes[axis] > 1)
    return jax.lax.psum(tree, spread) if spread else tree
