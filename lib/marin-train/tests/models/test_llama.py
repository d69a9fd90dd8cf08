"""The forward pass against an independent one in float64 numpy, written from the paper's formulas."""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest

from marin_train import models
from marin_train.blocks import no_past
from marin_train.configs import ModelConfig
from marin_train.errors import ConfigError
from marin_train.models import decoder
from marin_train.policy import Policy

SHAPE = ModelConfig(
    vocab_size=19, hidden_dim=12, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=6, mlp_dim=20, max_seq_len=16
)


def norm(x, gain, eps):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * gain


def turn(x, positions, theta):
    """Pairs (i, i + half) as complex numbers, multiplied by unit ones."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * theta ** (-np.arange(half) / half)
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], -1)


def numpy_forward(model, tokens, config, positions=None, segments=None):
    m = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), model)
    group = config.num_heads // config.num_kv_heads
    rows = []
    for row, ids in enumerate(np.asarray(tokens)):
        place = np.arange(len(ids)) if positions is None else np.asarray(positions[row])
        segment = np.zeros(len(ids)) if segments is None else np.asarray(segments[row])
        x = m.embed[ids]
        for i in range(config.num_layers):
            layer = jax.tree.map(lambda leaf: leaf[i], m.layers)  # noqa: B023
            h = norm(x, layer.attention_norm, config.norm_eps)
            q, k, v = h @ layer.attention.query, h @ layer.attention.key, h @ layer.attention.value
            out = np.zeros((len(ids), config.num_heads * config.head_dim))
            for head in range(config.num_heads):
                mine = slice(head * config.head_dim, (head + 1) * config.head_dim)
                theirs = slice(head // group * config.head_dim, (head // group + 1) * config.head_dim)
                queries, keys = turn(q[:, mine], place, config.rope_theta), turn(k[:, theirs], place, config.rope_theta)
                for t in range(len(ids)):
                    seen = [s for s in range(t + 1) if segment[s] == segment[t]]
                    scores = np.array([queries[t] @ keys[s] for s in seen]) / np.sqrt(config.head_dim)
                    weights = np.exp(scores - scores.max())
                    out[t, mine] = (weights / weights.sum()) @ v[seen, theirs]
            x = x + out @ layer.attention.output
            h = norm(x, layer.mlp_norm, config.norm_eps)
            gate = h @ layer.mlp.gate
            x = x + (gate / (1 + np.exp(-gate)) * (h @ layer.mlp.up)) @ layer.mlp.down
        rows.append(norm(x, m.final_norm, config.norm_eps))
    return np.stack(rows)


@pytest.mark.parametrize(
    "policy",
    [
        Policy(),
        Policy(attention="blocked", scan=True),
        Policy(attention="blocked", remat="full"),
        Policy(remat="full", scan=True),
    ],
    ids=lambda policy: policy.name,
)
def test_forward_equals_the_formulas(policy, draw_model):
    model = draw_model(SHAPE)
    tokens = np.random.default_rng(0).integers(0, SHAPE.vocab_size, size=(2, 9))
    hidden = jax.jit(lambda m, t: decoder.forward(m, t, config=SHAPE, policy=policy))(model, tokens)
    np.testing.assert_allclose(hidden, numpy_forward(model, tokens, SHAPE), atol=1e-5)


def test_decoding_token_by_token_equals_the_formulas(draw_model):
    model = draw_model(SHAPE)
    tokens = np.random.default_rng(0).integers(0, SHAPE.vocab_size, size=(2, 9))
    decode = jax.jit(lambda m, t, past, at: decoder.decode(m, t, past, at=at, config=SHAPE, policy=Policy()))
    past, hidden = no_past(SHAPE, batch=2, seq_len=12), []
    for at in range(9):
        state, past = decode(model, tokens[:, [at]], past, np.int32(at))
        hidden.append(state)
    np.testing.assert_allclose(np.concatenate(hidden, axis=1), numpy_forward(model, tokens, SHAPE), atol=1e-5)


def test_positions_and_segments_reach_every_layer(draw_model):
    model = draw_model(SHAPE)
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, SHAPE.vocab_size, size=(2, 9))
    positions = np.array([[0, 1, 2, 3, 0, 1, 2, 0, 1], [5, 6, 7, 8, 9, 10, 11, 0, 1]])
    segments = np.array([[0, 0, 0, 0, 1, 1, 1, 2, 2], [0, 0, 0, 0, 0, 0, 0, 1, 1]])
    forward = jax.jit(partial(decoder.forward, config=SHAPE, policy=Policy(scan=True)))
    hidden = forward(model, tokens, positions=positions, segment_ids=segments)
    np.testing.assert_allclose(hidden, numpy_forward(model, tokens, SHAPE, positions, segments), atol=1e-5)


def test_a_tied_head_is_the_embeddings_transpose(draw_model):
    config = dataclasses.replace(SHAPE, tie_embeddings=True)
    model = draw_model(config)
    assert model.output is None
    np.testing.assert_array_equal(models.family(config).head(model), model.embed.T)


def test_an_unknown_family_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"ModelConfig\.family='lama' is not one of: llama"):
        models.family(dataclasses.replace(SHAPE, family="lama"))
