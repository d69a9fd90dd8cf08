"""What every family's model does with its parts: tokens to hidden states, for whole sequences or token by token."""

from functools import partial
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from marin_train.blocks import Context, Emitted, Past, apply_layers, contract
from marin_train.configs import ModelConfig
from marin_train.mesh import constrain
from marin_train.models import family
from marin_train.policy import Policy


def forward(
    model: Any,
    tokens: Int[Array, "batch seq"],
    *,
    config: ModelConfig,
    policy: Policy,
    positions: Int[Array, "#batch seq"] | None = None,
    segment_ids: Int[Array, "batch seq"] | None = None,
) -> Float[Array, "batch seq embed"]:
    """Hidden states after the last norm, ready for the head.

    Args:
        model: the parameters.
        tokens: the sequences.
        config: the model's shape.
        policy: how this machine computes fastest.
        positions: each token's position for the rotary embedding; by default its index in the sequence.
        segment_ids: tokens attend only within equal ids, and 0 is padding; by default the whole sequence is one
            segment.
    """
    return routed_forward(model, tokens, config=config, policy=policy, positions=positions, segment_ids=segment_ids)[0]


def routed_forward(
    model: Any,
    tokens: Int[Array, "batch seq"],
    *,
    config: ModelConfig,
    policy: Policy,
    positions: Int[Array, "#batch seq"] | None = None,
    segment_ids: Int[Array, "batch seq"] | None = None,
    learns: bool = False,
) -> tuple[Float[Array, "batch seq embed"], Any]:
    """`forward`, and what was counted of the routing in layers of experts (`marin_train.moe.Routing`), or None.

    `learns` says whether this is a step of training, where experts may be chosen by what only a batch can tell.
    """
    if positions is None:
        positions = jnp.arange(tokens.shape[1])[None]
    rotations = family(config).rotations(positions, config=config)
    context = Context(rotations=rotations, segment_ids=segment_ids, learns=learns)
    x, emitted = _through_layers(model, tokens, None, context=context, config=config, policy=policy)
    return constrain(family(config).finish(model, x, config=config), "batch", "seq", None), emitted[-1].routing


def _through_layers(
    model: Any,
    tokens: Int[Array, "batch seq"],
    past: Past | None,
    *,
    context: Context,
    config: ModelConfig,
    policy: Policy,
) -> tuple[Float[Array, "batch seq embed"], list[Emitted]]:
    """The last layer's output, and what the layers of each stack emitted: the dense ones before those of experts."""
    parts = family(config)
    x = parts.embed(model, tokens, config=config, policy=policy)
    layer = partial(parts.layer, context=context, config=config, policy=policy)
    kinds, lead = parts.kinds(config), 0 if config.moe is None else config.moe.num_dense_layers
    stacks = [(model.layers, slice(lead, None))]
    if lead:
        stacks.insert(0, (model.lead, slice(0, lead)))
    emitted = []
    for stack, span in stacks:
        carried = jax.tree.map(itemgetter(span), past)
        x, out = apply_layers(layer, stack, x, kinds=kinds[span], policy=policy, carried=carried)
        emitted.append(out)
    return x, emitted


def decode(
    model: Any,
    tokens: Int[Array, "batch new"],
    past: Past,
    *,
    at: Int[Array, " batch"],
    config: ModelConfig,
    policy: Policy,
) -> tuple[Float[Array, "batch new embed"], Past]:
    """`forward` for the tokens that follow a past, which then holds them too.

    Args:
        model: the parameters.
        tokens: the tokens at indices `at` and after.
        past: what `decode` gave for the tokens before, or `no_past`.
        at: the index of the first of these tokens in each sequence.
        config: the model's shape.
        policy: how operands are rounded; attention is the formula's.
    """
    positions = at[:, None] + jnp.arange(tokens.shape[1])
    context = Context(rotations=family(config).rotations(positions, config=config), at=at)
    x, emitted = _through_layers(model, tokens, past, context=context, config=config, policy=policy)
    past = jax.tree.map(lambda *parts: jnp.concatenate(parts), *(out.past for out in emitted))
    return family(config).finish(model, x, config=config), past


def logits(
    hidden: Float[Array, "batch seq embed"],
    head: Float[Array, "embed vocab"],
    *,
    config: ModelConfig,
    policy: Policy,
    first: Int[Array, ""] | int = 0,
) -> Float[Array, "batch seq vocab"]:
    """Scores of every token of the padded vocabulary, float32; those that pad it are -inf.

    Where `head` is a share of the vocabulary, `first` is the token of its first column.
    """
    scores = contract("bsd,dv->bsv", hidden, head, policy=policy, result="float32")
    if config.logit_softcap is not None:
        scores = config.logit_softcap * jnp.tanh(scores / config.logit_softcap)
    if config.padded_vocab_size != config.vocab_size:
        scores = jnp.where(first + jnp.arange(head.shape[1]) < config.vocab_size, scores, -jnp.inf)
    return scores
