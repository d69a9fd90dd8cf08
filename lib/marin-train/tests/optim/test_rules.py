"""Every optimizer against its formula in numpy, and what all of them owe a run."""

import dataclasses
import json
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_train import models
from marin_train.certificates import read_certificate
from marin_train.configs import (
    Component,
    DataConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
)
from marin_train.errors import ConfigError, ParameterError
from marin_train.loop import train
from marin_train.losses import Batch, summed_loss
from marin_train.mesh import make_mesh
from marin_train.optim import make_optimizer
from marin_train.optim.groups import RULES
from marin_train.optim.hyperball import scale_by_hyperball
from marin_train.optim.muon import matrix_norm, orthogonalize
from marin_train.parameters import Constant, ParameterTable, init_model
from marin_train.policy import by_name
from marin_train.train_step import state_template

NAMES = ("adamw", "adamc", "lion", "adafactor", "muon", "soap", "adamh", "muonh")
SHAPE = ModelConfig(
    vocab_size=9, hidden_dim=4, num_layers=2, num_heads=1, num_kv_heads=1, head_dim=4, mlp_dim=6, max_seq_len=8
)
TABLE = models.family(SHAPE).parameter_table(SHAPE)
STEPS = 5


def rules(name, **fields):
    decay = 0.0 if name in ("adamh", "muonh") else 0.2
    chosen = {"learning_rate": 0.03, "weight_decay": decay, "clip_norm": None}
    if name in RULES:
        chosen["adam_learning_rate"] = 0.01
    return OptimizerConfig(name=name, **chosen | fields)


def a_run(optimizer, **fields):
    return TrainConfig(
        model=SHAPE,
        data=DataConfig(components=(Component(name="a", path="a"),), seq_len=8),
        steps=STEPS,
        batch_size=1,
        optimizer=optimizer,
        **{"schedule": ScheduleConfig(name="linear", warmup=0)} | fields,
    )


def updated(config, model, *, steps=STEPS):
    """The leaves by path after so many updates with random gradients, and those gradients."""
    optimizer = make_optimizer(config, TABLE)
    update, state, rng, told = jax.jit(optimizer.update), optimizer.init(model), np.random.default_rng(3), []
    for _ in range(steps):
        gradients = jax.tree.map(lambda w: jnp.asarray(rng.normal(size=w.shape), jnp.float32), model)
        updates, state = update(gradients, state, model)
        model = optax.apply_updates(model, updates)
        told.append(by_path(gradients))
    return by_path(model), told


def by_path(tree):
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf, float) for path, leaf in leaves}


class Adam:
    def __init__(self, o):
        self.o, self.m, self.v, self.t = o, 0.0, 0.0, 0

    def __call__(self, g):
        o, self.t = self.o, self.t + 1
        self.m, self.v = o.beta1 * self.m + (1 - o.beta1) * g, o.beta2 * self.v + (1 - o.beta2) * g * g
        return (self.m / (1 - o.beta1**self.t)) / (np.sqrt(self.v / (1 - o.beta2**self.t)) + o.eps)


class Lion:
    def __init__(self, o):
        self.o, self.m = o, 0.0

    def __call__(self, g):
        u = np.sign(self.o.beta1 * self.m + (1 - self.o.beta1) * g)
        self.m = self.o.beta2 * self.m + (1 - self.o.beta2) * g
        return u


class Muon:
    """Newton-Schulz as a polynomial of singular values."""

    def __init__(self, o):
        self.o, self.m = o, 0.0

    def __call__(self, g):
        self.m = self.o.momentum * self.m + g
        left, values, right = np.linalg.svd(g + self.o.momentum * self.m, full_matrices=False)
        values = values / np.sqrt((values**2).sum(-1, keepdims=True))
        for _ in range(self.o.ns_steps):
            values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
        u = left * values[..., None, :] @ right
        return u * 0.2 * max(u.shape[-2:]) ** 0.5 if self.o.name == "muon" else u


def norm(w):
    return np.sqrt((w**2).sum((-2, -1), keepdims=True))


def by_formula(config, start, gradients, parameter):
    """A leaf's value after those gradients, in float64."""
    o, role, w = config.optimizer, parameter.role, start
    hidden = role == "matrix"
    held = o.name in ("adamh", "muonh") and role in ("matrix", "head")
    direction = {"lion": Lion, "muon": Muon, "muonh": Muon}.get(o.name, Adam)(o)
    if o.name in ("muon", "muonh") and not hidden:
        direction = Adam(o)
    whole = o.name not in RULES
    peak = o.learning_rate if whole or hidden or held else o.adam_learning_rate
    for step, g in enumerate(gradients):
        shape = (STEPS - step) / STEPS
        u = direction(g)
        if o.cautious:
            agrees = (u * g > 0).astype(float)
            u = u * agrees / np.maximum(agrees.mean(axis=(-2, -1)[-min(w.ndim, 2) :], keepdims=True), 1e-3)
        if held:
            radius = norm(w)
            moved = w - peak * shape * radius * u / norm(u)
            w = radius * moved / norm(moved)
        else:
            decay = o.weight_decay * (role in ("matrix", "head"))
            w = w - peak * shape * (u + decay * (shape if o.name == "adamc" and hidden else 1.0) * w)
    return w


@pytest.mark.parametrize("cautious", [False, True])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("soap", "adafactor")])
def test_five_updates_are_the_formulas(name, cautious, draw_model):
    config, model = a_run(rules(name, cautious=cautious)), draw_model(SHAPE)
    after, gradients = updated(config, model)
    for path, start in by_path(model).items():
        expected = by_formula(config, start, [g[path] for g in gradients], TABLE[path])
        np.testing.assert_allclose(after[path], expected, rtol=2e-4, atol=2e-5, err_msg=path)


def test_soap_is_adam_in_an_eigenbasis_that_turns(draw_model):
    config, model = a_run(rules("soap", refresh_steps=2)), draw_model(SHAPE)
    after, gradients = updated(config, model)
    # A square matrix: the null space of an oblong one's first gradient has no axes of its own to compare.
    o, path = config.optimizer, "layers.attention.query"
    for layer in range(SHAPE.num_layers):
        w, mean, square = by_path(model)[path][layer], 0.0, 0.0
        for step, g in enumerate(told[path][layer] for told in gradients):
            if step == 0:
                left, right = g @ g.T, g.T @ g
                (_, left_axes), (_, right_axes) = np.linalg.eigh(left), np.linalg.eigh(right)
                left_axes, right_axes = left_axes[:, ::-1], right_axes[:, ::-1]
            else:
                left = o.beta2 * left + (1 - o.beta2) * g @ g.T
                right = o.beta2 * right + (1 - o.beta2) * g.T @ g
            if step in (2, 4):
                left_axes, right_axes = np.linalg.qr(left @ left_axes)[0], np.linalg.qr(right @ right_axes)[0]
            u = np.zeros_like(w)
            if step:
                mean = o.beta1 * mean + (1 - o.beta1) * g
                square = o.beta2 * square + (1 - o.beta2) * (left_axes.T @ g @ right_axes) ** 2
                u = left_axes.T @ (mean / (1 - o.beta1**step)) @ right_axes
                u = left_axes @ (u / (np.sqrt(square / (1 - o.beta2**step)) + o.eps)) @ right_axes.T
            w = w - o.learning_rate * (STEPS - step) / STEPS * (u + o.weight_decay * w)
        np.testing.assert_allclose(after[path][layer], w, rtol=2e-3, atol=2e-4)


RATES = {"adafactor": 0.1, "lion": 1e-3, "adamh": 0.05}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("adamw", "muonh")])
def test_every_rule_lowers_the_loss(name, tiny_config):
    config = tiny_config(optimizer=rules(name, learning_rate=RATES.get(name, 1e-2)))
    family = models.family(config.model)
    table = family.parameter_table(config.model)
    optimizer, model = make_optimizer(config, table), init_model(family.Model, table, seed=0)
    tokens = jnp.asarray(np.random.default_rng(0).integers(1, 64, size=(4, 17)), jnp.int32)
    batch = Batch(tokens=tokens, loss_mask=jnp.ones((4, 16), bool))
    policy = by_name(config.policy)

    @jax.jit
    def step(model, state):
        loss, gradients = jax.value_and_grad(
            lambda m: summed_loss(m, batch, config=config.model, policy=policy, z_loss=0.0).objective / 64
        )(model)
        updates, state = optimizer.update(gradients, state, model)
        return optax.apply_updates(model, updates), state, loss

    state, losses = optimizer.init(model), []
    for _ in range(10):
        model, state, loss = step(model, state)
        losses.append(float(loss))
    assert losses[-1] < losses[0] - 0.1, losses


def test_a_run_goes_on_from_the_state_that_was_saved(tiny_config, tmp_path):
    config = tiny_config(optimizer=rules("muonh", learning_rate=0.05, cautious=True))
    train(config, tmp_path / "run")
    last = tmp_path / "run" / "checkpoints" / "step-00000012"
    leaves = read_certificate(last).leaves
    shutil.rmtree(last)
    train(config, tmp_path / "run")
    assert read_certificate(last).leaves == leaves
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses[-1] < losses[0] - 0.05


def test_every_state_is_saved_and_placed_beside_its_parameter(tiny_config):
    mesh = make_mesh(MeshConfig())
    for name in NAMES:
        config = dataclasses.replace(tiny_config(), optimizer=rules(name))
        template = state_template(config, mesh=mesh)
        leaves = jax.tree_util.tree_leaves_with_path(template.opt_state)
        paths = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]
        assert len(set(paths)) == len(paths)
        model = {
            jax.tree_util.keystr(path, simple=True, separator="."): leaf
            for path, leaf in jax.tree_util.tree_leaves_with_path(template.model)
        }
        placed = 0
        for path, (_, leaf) in zip(paths, leaves, strict=True):
            for parameter, declared in model.items():
                if path.endswith(f".{parameter}") and leaf.shape == declared.shape:
                    assert leaf.sharding == declared.sharding
                    placed += 1
        assert placed or name == "adafactor"


def test_norms_drift_by_less_than_a_hundred_thousandth_over_200_steps(draw_model):
    model = draw_model(SHAPE)
    for name in ("adamh", "muonh"):
        config = dataclasses.replace(a_run(rules(name, learning_rate=0.3)), steps=200)
        after, _ = updated(config, model, steps=200)
        for p in TABLE:
            if p.role in ("matrix", "head"):
                drift = norm(after[p.path]) / norm(by_path(model)[p.path]) - 1
                assert np.abs(drift).max() < 1e-6, p.path


@settings(max_examples=15)
@given(scale=st.floats(1e-2, 1e3), seed=st.integers(0, 1000))
def test_a_larger_matrix_moves_as_much_further(scale, seed):
    rng, rule = np.random.default_rng(seed), scale_by_hyperball(lambda _: 0.1)
    w, u = (jnp.asarray(rng.normal(size=(2, 3, 5)), jnp.float32) for _ in range(2))
    once, _ = rule.update(u, rule.init(w), w)
    scaled, _ = rule.update(7.0 * u, rule.init(scale * w), scale * w)
    np.testing.assert_allclose(scaled, scale * once, rtol=1e-3, atol=2e-6 * scale)


def test_each_matrix_of_a_stack_is_orthogonalized_and_held_by_itself():
    rng, rule = np.random.default_rng(0), scale_by_hyperball(lambda _: 0.1)
    w, u = (jnp.asarray(rng.normal(size=(2, 3, 5, 4)), jnp.float32) for _ in range(2))
    u = u.at[1, 2].multiply(1e4)
    stacked, _ = rule.update(u, rule.init(w), w)
    alone, _ = rule.update(u[0, 1], rule.init(w[0, 1]), w[0, 1])
    np.testing.assert_allclose(stacked[0, 1], alone, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(
        orthogonalize(u, num_steps=5)[0, 1], orthogonalize(u[0, 1], num_steps=5), rtol=1e-4, atol=1e-6
    )
    assert matrix_norm(w).shape == (2, 3, 1, 1)


def test_a_matrix_that_starts_at_zero_is_refused_by_name(draw_model):
    zero = ParameterTable(
        tuple(dataclasses.replace(p, init=Constant(0.0)) if p.path == "layers.mlp.down" else p for p in TABLE)
    )
    config = a_run(rules("adamh"))
    with pytest.raises(ConfigError, match=r"layers\.mlp\.down starts at zero"):
        make_optimizer(config, zero)
    make_optimizer(a_run(rules("muon")), zero)
    model = jax.tree.map(jnp.zeros_like, draw_model(SHAPE))
    with pytest.raises(ConfigError, match="starts at zero"):
        make_optimizer(config, TABLE).init(model)


def test_a_role_without_a_rule_is_refused(monkeypatch):
    rule = {role: group for role, group in RULES["muonh"].items() if role != "gain"}
    monkeypatch.setitem(RULES, "muonh", rule)
    with pytest.raises(ParameterError, match="has the role 'gain', for which the optimizer 'muonh' has no rule"):
        make_optimizer(a_run(rules("muonh")), TABLE)


def test_decay_is_refused_where_norms_are_held():
    with pytest.raises(ConfigError, match=r"weight_decay=0\.1 changes nothing"):
        OptimizerConfig(name="adamh")


SHARDED = """
import jax, numpy as np, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from marin_train.optim.hyperball import scale_by_hyperball
from marin_train.optim.muon import scale_by_muon
import optax
rule = optax.chain(scale_by_muon(momentum=0.9, ns_steps=5, match_adam=False), scale_by_hyperball(lambda _: 0.1))
rng = np.random.default_rng(0)
w, g = (jnp.asarray(rng.normal(size=(2, 8, 12)), jnp.float32) for _ in range(2))
def three(w, g):
    state = rule.init(w)
    for _ in range(3):
        u, state = rule.update(g, state, w)
        w = w + u
    return w
alone = jax.jit(three)(w, g)
mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
place = NamedSharding(mesh, P(None, "a", "b"))
spread = jax.jit(three, out_shardings=place)(jax.device_put(w, place), jax.device_put(g, place))
assert len(spread.sharding.device_set) == 4
np.testing.assert_allclose(spread, alone, rtol=1e-5, atol=1e-6)
"""


def test_norms_are_those_of_whole_matrices_when_matrices_are_sharded(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    subprocess.run([sys.executable, "-c", SHARDED], check=True)
