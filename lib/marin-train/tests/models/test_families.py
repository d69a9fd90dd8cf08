"""Every family against one independent forward pass in float64 numpy, written from the papers' formulas."""

import dataclasses
import importlib
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_train import models
from marin_train.blocks import blocked_attention, no_past
from marin_train.blocks.layers import PROJECTED
from marin_train.configs import ModelConfig, MoEConfig, RopeScaling
from marin_train.errors import ConfigError
from marin_train.models import decoder
from marin_train.policy import Policy

LLAMA = ModelConfig(
    vocab_size=19, hidden_dim=12, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=6, mlp_dim=20, max_seq_len=16
)
EXPERTS = MoEConfig(num_experts=5, top_k=2, expert_dim=6, balance="none")


def of_family(family, **fields):
    """A small model of that family, whose layers are all of experts where it has some."""
    uses = importlib.import_module(f"marin_train.models.{family}").USES
    needed = {"moe": EXPERTS, "mlp_dim": 0} if "moe" in uses else {}
    needed |= {"norm_gate_dim": 3} if "norm_gate_dim" in uses else {}
    return dataclasses.replace(LLAMA, family=family, **(needed | fields))


# Kinds of layers repeat after periods that do not divide the depth.
CASES = {
    "llama": LLAMA,
    "llama, windows, partly turned, no positions": dataclasses.replace(
        LLAMA, num_layers=5, sliding_window=3, global_every=2, nope_every=3, rotary_dim=4
    ),
    "qwen3": dataclasses.replace(LLAMA, family="qwen3", norm_eps=1e-3, rope_theta=100.0),
    "gemma3": dataclasses.replace(
        LLAMA,
        family="gemma3",
        num_layers=7,
        num_kv_heads=1,
        sliding_window=4,
        global_every=3,
        rope_theta=1000.0,
        rope_scaling=RopeScaling(kind="linear", factor=2.0),
        local_rope_theta=10.0,
        attention_softcap=2.0,
        query_scale=0.7,
        tie_embeddings=True,
    ),
    "mixtral": of_family("mixtral"),
    "qwen3_moe, dense, latent and shared, biased, weighed by sigmoids": of_family(
        "qwen3_moe",
        num_layers=3,
        mlp_dim=20,
        moe=MoEConfig(
            num_experts=5,
            top_k=3,
            expert_dim=6,
            shared_dim=8,
            latent_dim=10,
            num_dense_layers=1,
            combine="sigmoid",
            renormalise=False,
            scale=1.5,
        ),
    ),
}
BY_BLOCKS = Policy(attention="blocked", remat="full", scan=True)
TOKENS = np.random.default_rng(0).integers(0, LLAMA.vocab_size, size=(2, 9))

ROUNDING = 2e-4
"""Of float32 through seven random layers, whose norms divide by small numbers now and then."""

every_family = pytest.mark.parametrize("config", CASES.values(), ids=CASES)


def norm(x, gain, eps):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * gain


def turn(x, places, theta, size):
    """Of the first `size` dims, pairs (i, i + half) as complex numbers, multiplied by unit ones."""
    half = size // 2
    angles = places[:, None] * theta ** (-np.arange(half) / half)
    turned = (x[..., :half] + 1j * x[..., half:size]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag, x[..., size:]], -1)


def activated(x, config):
    if config.family == "gemma3":
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return x / (1 + np.exp(-x))


def mixed(layer, h, config, number, places, segments):
    """What attention of the layer of that number, from one, adds up for each token."""
    attention, offset = layer.attention, config.family == "gemma3"
    sees_all = config.sliding_window is None or (config.global_every is not None and number % config.global_every == 0)
    theta = config.rope_theta if sees_all or config.local_rope_theta is None else config.local_rope_theta
    if config.rope_scaling is not None and sees_all:
        places = places / config.rope_scaling.factor
    if config.nope_every and number % config.nope_every == 0:
        places = 0 * places
    index = np.arange(len(h))
    distance = index[:, None] - index
    visible = (distance >= 0) & (segments[:, None] == segments)
    if not sees_all:
        visible &= distance < config.sliding_window
    heads = []
    for head in range(config.num_heads):
        of = lambda n: slice(n * config.head_dim, (n + 1) * config.head_dim)  # noqa: E731
        theirs = of(head // (config.num_heads // config.num_kv_heads))
        query, key = h @ attention.query[:, of(head)], h @ attention.key[:, theirs]
        if config.family not in ("llama", "mixtral"):
            query = norm(query, offset + attention.query_norm, config.norm_eps)
            key = norm(key, offset + attention.key_norm, config.norm_eps)
        query, key = (turn(x, places, theta, config.rotary_dim or config.head_dim) for x in (query, key))
        scores = query @ key.T * (config.query_scale or config.head_dim**-0.5)
        if config.attention_softcap:
            scores = config.attention_softcap * np.tanh(scores / config.attention_softcap)
        weights = np.where(visible, np.exp(scores), 0)
        heads.append(weights / weights.sum(-1, keepdims=True) @ h @ attention.value[:, theirs])
    return np.concatenate(heads, -1) @ attention.output


def gated(mlp, h, config):
    return (activated(h @ mlp.gate, config) * (h @ mlp.up)) @ mlp.down


def fed(mlp, h, config):
    """What a feed-forward part adds up for each token; that of experts one token after the other."""
    moe = config.moe
    if not hasattr(mlp, "router"):
        return gated(mlp, h, config)
    rows = []
    for x in h:
        scores = x @ mlp.router
        chosen = np.argsort(-(scores + (0 if mlp.router_bias is None else mlp.router_bias)))[: moe.top_k]
        shares = np.exp(scores) / np.exp(scores).sum() if moe.combine == "softmax" else 1 / (1 + np.exp(-scores))
        weights = moe.scale * shares[chosen] / (shares[chosen].sum() if moe.renormalise else 1)
        seen = x if mlp.down is None else norm(x @ mlp.down, mlp.latent_norm, config.norm_eps)
        out = sum(
            weight * gated(jax.tree.map(lambda leaf: leaf[expert], mlp.experts), seen, config)  # noqa: B023
            for weight, expert in zip(weights, chosen, strict=True)
        )
        out = out if mlp.up is None else out @ mlp.up
        rows.append(out if mlp.shared is None else out + gated(mlp.shared, x, config))
    return np.stack(rows)


def by_formula(model, config, positions=None, segments=None):
    m = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), model)
    gemma, rows = config.family == "gemma3", []
    for row, ids in enumerate(TOKENS):
        places = np.arange(len(ids)) if positions is None else positions[row]
        segment = np.zeros(len(ids)) if segments is None else segments[row]
        x = m.embed[ids] * (np.sqrt(config.hidden_dim) if gemma else 1)
        lead = 0 if config.moe is None else config.moe.num_dense_layers
        for i in range(config.num_layers):
            stack, place = (m.lead, i) if i < lead else (m.layers, i - lead)
            layer = jax.tree.map(lambda leaf: leaf[place], stack)  # noqa: B023
            h = norm(x, gemma + layer.attention_norm, config.norm_eps)
            out = mixed(layer, h, config, i + 1, places, segment)
            x = x + (norm(out, 1 + layer.attention_post_norm, config.norm_eps) if gemma else out)
            h = norm(x, gemma + layer.mlp_norm, config.norm_eps)
            out = fed(layer.mlp, h, config)
            x = x + (norm(out, 1 + layer.mlp_post_norm, config.norm_eps) if gemma else out)
        rows.append(norm(x, gemma + m.final_norm, config.norm_eps))
    return np.stack(rows)


@cache
def forward(config, policy):
    return jax.jit(partial(decoder.forward, config=config, policy=policy))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks of queries a sequence."""
    monkeypatch.setattr(blocked_attention, "BLOCK", 4)


@pytest.mark.parametrize("policy", [Policy(), BY_BLOCKS], ids=lambda policy: policy.name)
@every_family
def test_forward_equals_the_formulas(config, policy, draw_model):
    model = draw_model(config)
    np.testing.assert_allclose(forward(config, policy)(model, TOKENS), by_formula(model, config), atol=ROUNDING)


def test_gradients_by_blocks_are_those_of_all_scores(draw_model):
    config = dataclasses.replace(CASES["gemma3"], num_layers=1)
    model, segments = draw_model(config), np.array([[0, 0, 0, 0, 1, 1, 1, 2, 2], [0, 0, 0, 0, 0, 0, 0, 1, 1]])

    def gradient(policy):
        def cost(model):
            hidden = decoder.forward(model, TOKENS, config=config, policy=policy, segment_ids=segments)
            return jnp.sum(jnp.sin(hidden))

        return jax.jit(jax.grad(cost))(model)

    expected, got = (jax.tree.leaves(gradient(policy)) for policy in (Policy(), Policy(attention="blocked")))
    scale = max(np.abs(leaf).max() for leaf in expected)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=ROUNDING * scale)


@every_family
def test_documents_packed_into_a_sequence_are_apart(config, draw_model):
    model = draw_model(config)
    positions = np.array([[0, 1, 2, 3, 0, 1, 2, 0, 1], [5, 6, 7, 8, 9, 10, 11, 0, 1]])
    segments = np.array([[1, 1, 1, 1, 2, 2, 2, 3, 3], [1, 1, 1, 1, 1, 1, 1, 2, 2]])
    hidden = forward(config, BY_BLOCKS)(model, TOKENS, positions=positions, segment_ids=segments)
    np.testing.assert_allclose(hidden, by_formula(model, config, positions, segments), atol=ROUNDING)


@every_family
def test_decoding_token_by_token_and_in_chunks_equals_the_formulas(config, draw_model):
    model = draw_model(config)
    decode = jax.jit(partial(decoder.decode, config=config, policy=Policy(scan=True)))
    for sizes in ([1] * 9, [4, 4, 1]):
        past, hidden, at = no_past(config, batch=2, seq_len=12, policy=Policy()), [], 0
        for size in sizes:
            state, past = decode(model, TOKENS[:, at : at + size], past, at=np.full(2, at, np.int32))
            hidden.append(state)
            at += size
        np.testing.assert_allclose(np.concatenate(hidden, axis=1), by_formula(model, config), atol=ROUNDING)


@every_family
def test_hidden_states_keep_the_type_of_activations(config, draw_model):
    model, policy = draw_model(config), Policy(operands="bfloat16", activations="bfloat16", scan=True)
    hidden = jax.eval_shape(partial(decoder.forward, config=config, policy=policy), model, TOKENS)
    assert hidden.dtype == jnp.bfloat16
    past = no_past(config, batch=2, seq_len=12, policy=policy)
    decode = partial(decoder.decode, config=config, policy=policy)
    hidden, after = jax.eval_shape(decode, model, TOKENS, past, at=jnp.zeros(2, jnp.int32))
    assert hidden.dtype == jnp.bfloat16
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), past)


@every_family
def test_the_arrays_that_a_backward_pass_may_keep_are_named(config, draw_model):
    program = str(jax.make_jaxpr(partial(decoder.forward, config=config, policy=Policy()))(draw_model(config), TOKENS))
    for name in (*PROJECTED, "attention_mixed"):
        assert program.count(f"name={name}") == config.num_layers


@pytest.mark.parametrize("family", models.FAMILIES)
def test_a_tied_head_is_the_embeddings_transpose(family, draw_model):
    config = of_family(family, tie_embeddings=True)
    model = draw_model(config)
    assert model.output is None
    np.testing.assert_array_equal(models.family(config).head(model), model.embed.T)


def test_a_fresh_gemma_has_norms_that_scale_by_one():
    config = CASES["gemma3"]
    gains = [p for p in models.family(config).parameter_table(config) if p.role == "gain"]
    assert len(gains) == 4 + 2 + 1
    assert all(p.init.value == 0 for p in gains)


def test_an_unknown_family_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"ModelConfig\.family='lama' is not one of: llama"):
        models.family(dataclasses.replace(LLAMA, family="lama"))


CHANGED = {
    "rope_scaling": RopeScaling(kind="linear", factor=2.0),
    "rotary_dim": 4,
    "nope_every": 2,
    "sliding_window": 4,
    "global_every": 2,
    "local_rope_theta": 10.0,
    "attention_softcap": 2.0,
    "logit_softcap": 3.0,
    "query_scale": 0.7,
    "norm_gate_dim": 2,
}


@pytest.mark.parametrize("family", models.FAMILIES)
@pytest.mark.parametrize("field", CHANGED)
def test_a_field_changes_the_logits_or_is_refused(family, field, draw_model):
    plain = of_family(family)
    # What needs a window is compared with a window alone.
    if field in ("global_every", "local_rope_theta"):
        plain = dataclasses.replace(plain, sliding_window=4)
    changed = dataclasses.replace(plain, **{field: CHANGED[field]})
    users = [name for name in models.FAMILIES if field in models.family(of_family(name)).USES]
    if family not in users:
        with pytest.raises(ConfigError, match=rf"ModelConfig\.\w+=.* in family '{family}'.*: .*{users[0]}"):
            models.family(changed)
        return

    assert np.abs(logits(plain, draw_model) - logits(changed, draw_model)).max() > 1e-3


def test_experts_are_needed_by_families_that_have_them_and_refused_by_others():
    assert {*CHANGED, "moe"} == set(models.OPTIONAL)
    with pytest.raises(
        ConfigError, match=r"ModelConfig\.moe=.* changes nothing in family 'llama'.*: mixtral, qwen3_moe, marin_moe"
    ):
        models.family(dataclasses.replace(LLAMA, moe=EXPERTS, mlp_dim=0))
    with pytest.raises(ConfigError, match=r"family='mixtral' needs ModelConfig\.moe"):
        models.family(dataclasses.replace(LLAMA, family="mixtral"))


@cache
def logits(config, draw_model):
    model = draw_model(config)
    # Not compiled: two dozen configurations share almost all of their operations.
    hidden = decoder.forward(model, TOKENS, config=config, policy=Policy())
    return decoder.logits(hidden, models.family(config).head(model), config=config, policy=Policy())
