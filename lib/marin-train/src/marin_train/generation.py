"""Generation: continuations of prompts, batched, by one compiled program that reads all prompts and draws all tokens.

A prompt is read as the beginning of a document: after an end-of-sequence id, as documents stand in training. Prompts
are read in one pass and keep their keys and values, so that every token after them costs one; rows go on from where
their own prompts end. A continuation ends before the end-of-sequence id that the model drew, at ``max_new_tokens``, or
where the window, the sequence length of training, is full. Keys and values take ``2 * layers * rows * width *
kv_heads * head_dim`` numbers, ``width`` being the longest prompt with its continuation.

Randomness is keyed by (seed, row, position): equal calls give equal texts, and a prompt's text does not depend on what
the prompts after it are.
"""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from marin_train.checkpoints import TrainedModel, load_model
from marin_train.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int

    from marin_train.blocks import Past

_COLDEST = 1e-30
"""What float32 holds, and divides by, without a loss; a lower temperature or ``top_p`` says the same."""


def generate(
    checkpoint: str | Path,
    prompts: Sequence[str],
    *,
    max_new_tokens: int = 128,
    temperature: float = 0.8,
    top_p: float = 0.95,
    seed: int = 0,
) -> list[str]:
    """Continues each prompt.

    Args:
        checkpoint: a checkpoint's directory, or a run's, whose newest checkpoint is taken.
        prompts: the beginnings; an empty one asks for a document from its start.
        max_new_tokens: tokens a continuation has at most.
        temperature: 0 takes the likeliest token; 1 draws from the model's distribution.
        top_p: draw only from the likeliest tokens whose probabilities sum to this; 1 draws from all.
        seed: of all draws.

    Returns:
        The continuations alone, without their prompts.

    Raises:
        CheckpointError: there is no whole checkpoint.
        ConfigError: a setting is out of its range, or a prompt fills the window or is not Unicode text.

    See: Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration" (arXiv 1904.09751), for top-p.
    """
    from tokenizers import Tokenizer

    if max_new_tokens < 1 or not 0 <= temperature < math.inf or not 0 < top_p <= 1 or not 0 <= seed < 2**32:
        raise ConfigError(
            f"generate(max_new_tokens={max_new_tokens}, temperature={temperature}, top_p={top_p}, seed={seed}): needs "
            f"max_new_tokens >= 1, temperature >= 0, 0 < top_p <= 1 and 0 <= seed < 2**32"
        )
    for number, prompt in enumerate(prompts):
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"prompt {number} is not Unicode text ({error.reason}); give it in UTF-8") from None
    if not prompts:
        return []
    trained = load_model(checkpoint)
    tokenizer = Tokenizer.from_file(str(trained.tokenizer_file))
    encoded = [_begin(trained) + tokenizer.encode(text, add_special_tokens=False).ids for text in prompts]
    tokens, lengths = _buffer(encoded, window=trained.config.data.seq_len, max_new_tokens=max_new_tokens)
    tokens, ends = _continue(
        trained, tokens, lengths, num_steps=max_new_tokens, temperature=temperature, top_p=top_p, seed=seed
    )
    return [
        tokenizer.decode(row[start:end].tolist(), skip_special_tokens=False)
        for row, start, end in zip(tokens, lengths, ends, strict=True)
    ]


def _begin(trained: TrainedModel) -> list[int]:
    """What stands before a document's text in the training stream: the end of the one before it, and its beginning."""
    ids = (trained.special_ids["eos"], trained.special_ids["bos"])
    return [token for token in ids if token is not None]


def _buffer(encoded: Sequence[Sequence[int]], *, window: int, max_new_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Prompts as the left part of Int32[rows, width], and their lengths; the rest is not looked at."""
    lengths = np.array([len(ids) for ids in encoded], np.int32)
    if lengths.min() == 0:
        raise ConfigError("an empty prompt needs a tokenizer with an end- or beginning-of-sequence id; give some text")
    if lengths.max() >= window:
        raise ConfigError(f"prompt {lengths.argmax()} has {lengths.max()} tokens, the model's window is {window}")
    tokens = np.zeros((len(encoded), min(window, int(lengths.max()) + max_new_tokens)), np.int32)
    for row, ids in zip(tokens, encoded, strict=True):
        row[: len(ids)] = ids
    return tokens, lengths


class _Rows(NamedTuple):
    """The continuations so far.

    Attributes:
        tokens: Int32[rows, width], prompts and what was drawn.
        ends: Int32[rows], how many of them count.
        done: Bool[rows].
        hidden: Float[rows, embed], of each row's last token.
        past: keys and values of all that counts.
    """

    tokens: "Array"
    ends: "Array"
    done: "Array"
    hidden: "Array"
    past: "Past"


def _continue(
    trained: TrainedModel,
    tokens: np.ndarray,
    lengths: np.ndarray,
    *,
    num_steps: int,
    temperature: float,
    top_p: float,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Draws up to ``num_steps`` tokens a row; the filled buffer, and where each continuation ends."""
    import jax

    stops = np.minimum(lengths + min(num_steps, tokens.shape[1]), tokens.shape[1])
    run = jax.jit(partial(_fill, trained, widest=int(lengths.max()), temperature=temperature, top_p=top_p))
    rows = run(trained.model, tokens, lengths, stops, jax.random.key(seed))
    return np.asarray(rows[0]), np.asarray(rows[1])


def _fill(
    trained: TrainedModel,
    model: Any,
    tokens: "Int[Array, 'rows width']",
    lengths: "Int[Array, ' rows']",
    stops: "Int[Array, ' rows']",
    key: "Array",
    *,
    widest: int,
    temperature: float,
    top_p: float,
) -> tuple["Array", "Array"]:
    """Tokens and ends once no row goes on; prompts have up to ``widest`` tokens."""
    import jax
    import jax.numpy as jnp

    from marin_train.models import family, no_past
    from marin_train.models.decoder import decode, logits

    config, policy, eos = trained.config.model, trained.policy, trained.special_ids["eos"]
    num_rows, width = tokens.shape
    each = jnp.arange(num_rows)
    # What stands behind a shorter prompt is read too; its keys are overwritten before a token can see them.
    past = no_past(config, batch=num_rows, seq_len=width, policy=policy)
    hidden, past = decode(model, tokens[:, :widest], past, at=jnp.zeros_like(lengths), config=config, policy=policy)
    head = family(config).head(model)

    def step(rows: _Rows) -> _Rows:
        scores = logits(rows.hidden[:, None], head, config=config, policy=policy)[:, 0]
        keys = jax.vmap(lambda row, at: jax.random.fold_in(jax.random.fold_in(key, row), at))(each, rows.ends)
        drawn = jax.vmap(partial(draw_token, temperature=temperature, top_p=top_p))(keys, scores)
        done = rows.done if eos is None else rows.done | (drawn == eos)
        # A row that is done writes its last token again.
        at = jnp.minimum(rows.ends, width - 1)
        tokens = rows.tokens.at[each, at].set(jnp.where(done, rows.tokens[each, at], drawn))
        ends = rows.ends + ~done
        last = jnp.maximum(ends - 1, 0)
        hidden, past = decode(model, tokens[each, last][:, None], rows.past, at=last, config=config, policy=policy)
        return _Rows(tokens, ends, done | (ends == stops), hidden[:, 0], past)

    start = _Rows(tokens, lengths, jnp.zeros(num_rows, bool), hidden[each, lengths - 1], past)
    rows = jax.lax.while_loop(lambda rows: ~rows.done.all(), step, start)
    return rows.tokens, rows.ends


def draw_token(key: "Array", logits: "Float[Array, ' vocab']", *, temperature: float, top_p: float) -> "Int[Array, '']":
    """One token id; among equally likely ones at the edge of ``top_p``, those of lower id are kept.

    Args:
        key: of the draw.
        logits: of every token.
        temperature: 0 takes the likeliest.
        top_p: see `generate`.
    """
    import jax
    import jax.numpy as jnp

    if temperature == 0:
        return jnp.argmax(logits).astype(jnp.int32)
    # The likeliest is at 0 whatever the temperature: far from it, fused and rounded differently, exp would be 0 or inf.
    logits = (logits - jnp.max(logits)) / max(temperature, _COLDEST)
    if top_p < 1:
        order = jnp.argsort(-logits)
        probabilities = jax.nn.softmax(logits)[order]
        # The token that reaches top_p is kept, so the likeliest always is.
        kept = jnp.cumsum(probabilities) - probabilities < max(top_p, _COLDEST)
        logits = logits.at[order].set(jnp.where(kept, logits[order], -jnp.inf))
    return jax.random.categorical(key, logits).astype(jnp.int32)
