"""Generation: continuations of prompts, batched, by one compiled program that moves all of them on by a token.

A prompt is read as the beginning of a document: after an end-of-sequence id, as documents stand in training. All rows
stand at the same position and keep the keys and values of the tokens before it, so that a step costs one token; the
token behind it is the prompt's, as long as there is one, and then drawn. A continuation ends before the
end-of-sequence id that the model drew, at ``max_new_tokens``, or where the window, the sequence length of training, is
full.

Randomness is keyed by (seed, row, position): equal calls give equal texts, and a prompt's text does not depend on what
the prompts after it are.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from marin_train.checkpoints import TrainedModel, load_model
from marin_train.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int

    from marin_train.blocks import Past

_ASK_EVERY = 16
"""Steps between two looks at whether all rows have ended: each look waits for the device."""


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
        ConfigError: a setting is out of its range, or a prompt fills the window.

    See: Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration" (arXiv 1904.09751), for top-p.
    """
    from tokenizers import Tokenizer

    if max_new_tokens < 1 or not 0 <= temperature < math.inf or not 0 < top_p <= 1 or not 0 <= seed < 2**32:
        raise ConfigError(
            f"generate(max_new_tokens={max_new_tokens}, temperature={temperature}, top_p={top_p}, seed={seed}): needs "
            f"max_new_tokens >= 1, temperature >= 0, 0 < top_p <= 1 and 0 <= seed < 2**32"
        )
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
    import jax.numpy as jnp

    from marin_train.blocks import no_past

    num_rows, width = tokens.shape
    step = _make_step(trained, temperature=temperature, top_p=top_p)
    stops = jnp.asarray(np.minimum(lengths + num_steps, width))
    rows = _Rows(jnp.asarray(tokens), jnp.asarray(lengths), jnp.zeros(num_rows, bool))
    past, key = no_past(trained.config.model, batch=num_rows, seq_len=width), jax.random.key(seed)
    for at in range(width - 1):
        rows, past = step(trained.model, rows, past, np.int32(at), stops, key)
        if at % _ASK_EVERY == _ASK_EVERY - 1 and bool(rows.done.all()):
            break
    return np.asarray(rows.tokens), np.asarray(rows.ends)


class _Rows(NamedTuple):
    """The continuations so far.

    Attributes:
        tokens: Int32[rows, width], prompts and what was drawn.
        ends: Int32[rows], how many of them count.
        done: Bool[rows].
    """

    tokens: "Array"
    ends: "Array"
    done: "Array"


def _make_step(trained: TrainedModel, *, temperature: float, top_p: float) -> Callable[..., tuple[_Rows, "Past"]]:
    """The compiled step: reads the token at a position, and appends one to each row that ends there and is not done."""
    import jax
    import jax.numpy as jnp

    from marin_train.models import family
    from marin_train.models.decoder import decode, logits

    config, policy, eos = trained.config.model, trained.policy, trained.special_ids["eos"]
    head = family(config).head

    def step(model: Any, rows: _Rows, past: "Past", at: "Array", stops: "Array", key: "Array") -> tuple[_Rows, "Past"]:
        hidden, past = decode(model, rows.tokens[:, at][:, None], past, at=at, config=config, policy=policy)
        scores = logits(hidden, head(model), config=config, policy=policy)[:, 0]
        keys = jax.vmap(lambda row: jax.random.fold_in(jax.random.fold_in(key, row), at + 1))(jnp.arange(stops.size))
        drawn = jax.vmap(lambda k, row: _draw(k, row, temperature=temperature, top_p=top_p))(keys, scores)
        at_end = rows.ends == at + 1
        done = rows.done | (at_end & (drawn == eos) if eos is not None else False)
        grows = at_end & ~done
        tokens = rows.tokens.at[:, at + 1].set(jnp.where(grows, drawn, rows.tokens[:, at + 1]))
        ends = rows.ends + grows
        return _Rows(tokens, ends, done | (ends == stops)), past

    return jax.jit(step, donate_argnums=2)


def _draw(key: "Array", logits: "Float[Array, ' vocab']", *, temperature: float, top_p: float) -> "Int[Array, '']":
    """One token id; among equally likely ones at the edge of ``top_p``, those of lower id are kept."""
    import jax
    import jax.numpy as jnp

    if temperature == 0:
        return jnp.argmax(logits).astype(jnp.int32)
    logits = logits / temperature
    if top_p < 1:
        order = jnp.argsort(-logits)
        probabilities = jax.nn.softmax(logits)[order]
        # The token that reaches top_p is kept, so the likeliest always is.
        kept = jnp.cumsum(probabilities) - probabilities < top_p
        logits = logits.at[order].set(jnp.where(kept, logits[order], -jnp.inf))
    return jax.random.categorical(key, logits).astype(jnp.int32)
