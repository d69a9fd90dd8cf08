"""Marin's mixture of experts against its formulas in float64, packed, causal, and token by token."""

import dataclasses
import json
from functools import partial

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from marin_train import models, presets
from marin_train.configs import ModelConfig, MoEConfig, OptimizerConfig
from marin_train.errors import ConfigError, HuggingFaceError
from marin_train.flops import flops_per_token
from marin_train.hf import load_hf, save_hf
from marin_train.loop import train
from marin_train.models import decoder
from marin_train.policy import Policy
from marin_train.tracking import read_metrics

CONFIG = ModelConfig(
    family="marin_moe",
    vocab_size=64,
    hidden_dim=16,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    mlp_dim=20,
    max_seq_len=16,
    rope_theta=100.0,
    rotary_dim=4,
    sliding_window=4,
    global_every=4,
    query_scale=1.3 * 8**-0.5,
    norm_gate_dim=5,
    moe=MoEConfig(
        num_experts=6, top_k=2, expert_dim=7, shared_dim=9, latent_dim=10, combine="sigmoid", num_dense_layers=1
    ),
)
TOKENS = np.random.default_rng(0).integers(0, 64, size=(2, 13))
PLAIN = Policy()


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def normed(x):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + CONFIG.norm_eps)


def gated_norm(norm, x):
    y = normed(x) * norm.gain
    narrow = y @ norm.down
    return y * sigmoid((narrow * sigmoid(narrow)) @ norm.up)


def convolved(x, weight):
    out = x.copy()
    for t in range(len(x)):
        for back in range(min(t + 1, 4)):
            out[t] += weight[3 - back] * x[t - back]
    return out


def turned(x, places):
    angles = places[:, None] * 100.0 ** (-np.arange(2) / 2)
    pairs = (x[:, :2] + 1j * x[:, 2:4]) * np.exp(1j * angles)
    return np.concatenate([pairs.real, pairs.imag, x[:, 4:]], axis=1)


def attended(attention, h, number):
    n, heads = len(h), []
    distance = np.arange(n)[:, None] - np.arange(n)
    visible = (distance >= 0) & ((distance < 4) | (number % 4 == 0))
    keys = convolved(h @ attention.key, attention.key_convolution)
    for head in range(4):
        own, theirs = slice(8 * head, 8 * head + 8), slice(8 * (head // 2), 8 * (head // 2) + 8)
        query, key, value = normed(h @ attention.query[:, own]), normed(keys[:, theirs]), h @ attention.value[:, theirs]
        if number % 4:
            query, key = turned(query, np.arange(n)), turned(key, np.arange(n))
        weights = np.where(visible, np.exp(1.3 * 8**-0.5 * query @ key.T), 0)
        y = weights / weights.sum(1, keepdims=True) @ value
        y -= (y * value).sum(1, keepdims=True) / ((value**2).sum(1, keepdims=True) + 1e-6) * value
        heads.append(2 * sigmoid(h @ attention.gate[:, head])[:, None] * y)
    return convolved(np.concatenate(heads, 1) @ attention.output, attention.output_convolution)


def gated(mlp, h):
    g = h @ mlp.gate
    return (g * sigmoid(g) * (h @ mlp.up)) @ mlp.down


def routed(mlp, h):
    rows = []
    for x in h:
        scores = x @ mlp.router
        chosen = np.argsort(-(scores + mlp.router_bias))[:2]
        weights = sigmoid(scores[chosen]) / sigmoid(scores[chosen]).sum()
        latent = normed(x @ mlp.down) * mlp.latent_norm
        experts = [jax.tree.map(lambda leaf: leaf[e], mlp.experts) for e in chosen]  # noqa: B023
        rows.append(sum(w * gated(e, latent) for w, e in zip(weights, experts, strict=True)) @ mlp.up)
    return np.stack(rows) + gated(mlp.shared, h)


def by_formula(model, tokens):
    m = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), model)
    x = gated_norm(m.embed_norm, m.embed[tokens])
    for number in range(1, 5):
        stack, place = (m.lead, 0) if number == 1 else (m.layers, number - 2)
        layer = jax.tree.map(lambda leaf: leaf[place], stack)  # noqa: B023
        x = x + attended(layer.attention, gated_norm(layer.attention_norm, x), number)
        h = gated_norm(layer.mlp_norm, x)
        x = x + convolved(gated(layer.mlp, h) if number == 1 else routed(layer.mlp, h), layer.mlp_convolution)
    return gated_norm(m.final_norm, x)


@pytest.fixture(scope="module")
def model(draw_model):
    return draw_model(CONFIG)


forward = jax.jit(partial(decoder.forward, config=CONFIG, policy=PLAIN))


def test_forward_equals_the_formulas(model):
    expected = np.stack([by_formula(model, row) for row in TOKENS])
    np.testing.assert_allclose(forward(model, TOKENS), expected, atol=2e-4)


@pytest.mark.parametrize("policy", [Policy(attention="blocked", remat="full", scan=True, dispatch="ragged")])
def test_every_policy_computes_the_same(policy, model):
    other = jax.jit(partial(decoder.forward, config=CONFIG, policy=policy))(model, TOKENS)
    np.testing.assert_allclose(other, forward(model, TOKENS), atol=1e-4)


def test_documents_packed_into_a_sequence_are_as_apart_as_alone(model):
    segments = np.array([[1] * 5 + [2] * 8, [3] * 9 + [0] * 4])
    places = np.array([[*range(5), *range(8)], [*range(9), *range(4)]])
    packed = forward(model, TOKENS, positions=places, segment_ids=segments)
    for row, span in ((0, slice(0, 5)), (0, slice(5, 13)), (1, slice(0, 9))):
        alone = by_formula(model, TOKENS[row, span])
        np.testing.assert_allclose(packed[row, span], alone, atol=2e-4)


def test_no_token_changes_what_comes_before_it(model):
    changed = TOKENS.copy()
    changed[:, 7] = (changed[:, 7] + 1) % 64
    before, after = forward(model, TOKENS), forward(model, changed)
    np.testing.assert_array_equal(before[:, :7], after[:, :7])
    assert np.abs(before[:, 7:] - after[:, 7:]).max() > 1e-2


def test_token_by_token_is_as_whole_sequences_also_where_rows_have_different_lengths(model):
    lengths = np.array([3, 6])
    past = models.no_past(CONFIG, batch=2, seq_len=13, policy=PLAIN)
    step = jax.jit(partial(decoder.decode, config=CONFIG, policy=PLAIN))
    whole = forward(model, TOKENS)
    hidden, past = step(model, TOKENS[:, :6], past, at=np.zeros(2, np.int32))
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(hidden[row, :length], whole[row, :length], atol=1e-4)
    for more in range(4):
        at = (lengths + more).astype(np.int32)
        hidden, past = step(model, TOKENS[np.arange(2), at][:, None], past, at=at)
        np.testing.assert_allclose(hidden[:, 0], whole[np.arange(2), at], atol=1e-4)


def test_the_flagship_is_counted_to_the_last_parameter_without_allocating():
    before = len(jax.live_arrays())
    config = presets.marin_moe_535b()
    table = models.family(config).parameter_table(config)
    assert table.size == 535_477_106_688
    assert 24e9 < table.active_size < 25e9
    # Its published plan: 18.005T tokens are 2.695e24 FLOPs, of which attention's share follows from windows.
    assert flops_per_token(config, seq_len=8192, causal=True) * 18.005e12 == pytest.approx(2.695e24, rel=0.1)
    assert len(jax.live_arrays()) == before


def test_a_small_one_learns_under_a_hyperball_optimizer(tiny_config, tmp_path):
    optimizer = OptimizerConfig(name="muonh", learning_rate=0.02, weight_decay=0.0)
    model = dataclasses.replace(CONFIG, num_layers=2, global_every=2)
    config = tiny_config(model=model, steps=30, optimizer=optimizer, policy="float32-blocked-full-scan")
    train(config, tmp_path / "run")
    losses = [row["loss"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")]
    assert np.mean(losses[-5:]) < losses[0] - 0.3
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["num_experts"] == 6


def test_the_rank_of_its_norms_gates_has_to_be_given():
    config = dataclasses.replace(CONFIG, norm_gate_dim=None)
    with pytest.raises(ConfigError, match=r"needs ModelConfig\.norm_gate_dim"):
        models.family(config).parameter_table(config)


def test_a_directory_of_it_is_read_back_bitwise_with_its_bias_and_all_fields(model, tmp_path):
    config = dataclasses.replace(CONFIG, moe=dataclasses.replace(CONFIG.moe, capacity_factor=1.5, balance_strength=0.5))
    written = json.loads((save_hf(tmp_path / "out", model, config=config) / "config.json").read_text())
    assert written["model_type"] == "marin_moe"
    back = load_hf(tmp_path / "out")
    assert back.config == config
    assert np.abs(back.model.layers.mlp.router_bias).max() > 0
    for a, b in zip(jax.tree.leaves(back.model), jax.tree.leaves(model), strict=True):
        np.testing.assert_array_equal(a, b)
    assert "model.layers.1.mlp.gate.e_score_correction_bias" in load_file(tmp_path / "out" / "model.safetensors")


def test_fields_of_a_directory_that_make_no_model_are_named(model, tmp_path):
    file = save_hf(tmp_path / "out", model, config=CONFIG) / "config.json"
    written = json.loads(file.read_text())
    file.write_text(json.dumps(written | {"model": written["model"] | {"num_heads": 3}}))
    with pytest.raises(ConfigError, match=r"num_kv_heads=2 must divide num_heads=3"):
        load_hf(tmp_path / "out")
    file.write_text(json.dumps({"model_type": "marin_moe"}))
    with pytest.raises(HuggingFaceError, match=r"config\.json: model is not there"):
        load_hf(tmp_path / "out")
