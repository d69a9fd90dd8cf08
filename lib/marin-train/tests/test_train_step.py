import functools
import json
import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_train.configs import (
    Component,
    DataConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
)
from marin_train.errors import ConfigError  # noqa: F401 - the child process reads it here
from marin_train.losses import Batch, summed_loss
from marin_train.mesh import make_mesh
from marin_train.policy import Policy
from marin_train.train_step import init_state, make_train_step

RUN = TrainConfig(
    model=ModelConfig(
        vocab_size=16, hidden_dim=16, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=8, mlp_dim=32, max_seq_len=16
    ),
    data=DataConfig(components=(Component(name="a", path="a"),), seq_len=12),
    steps=100,
    batch_size=8,
    optimizer=OptimizerConfig(learning_rate=1e-2),
    schedule=ScheduleConfig(warmup=0.06, decay=0.2),
    mesh=MeshConfig(data=1),
)
PLAIN = Policy(scan=True)
ROUNDED = Policy(operands="bfloat16", attention="blocked", remat="full", scan=True)


def random_batch(seed):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 16, size=(RUN.batch_size, RUN.data.seq_len + 1))
    return Batch(jnp.asarray(tokens, jnp.int32), jnp.asarray(rng.random((RUN.batch_size, RUN.data.seq_len)) < 0.7))


def packed_batch(seed):
    """Documents that stay apart, their positions from 0 each, some padding behind them."""
    rng, batch = np.random.default_rng(seed), random_batch(seed)
    segment_ids = np.sort(rng.integers(0, 4, size=batch.loss_mask.shape), axis=1)[:, ::-1].astype(np.int32)
    places = np.arange(segment_ids.shape[1], dtype=np.int32)
    begins = np.diff(segment_ids, axis=1, prepend=-1) != 0
    positions = places - np.maximum.accumulate(np.where(begins, places, 0), axis=1)
    mask = batch.loss_mask & (segment_ids > 0)
    return batch._replace(loss_mask=mask, segment_ids=jnp.asarray(segment_ids), positions=jnp.asarray(positions))


def counting_batch(seed):
    """Each id is followed by the one five above it, a third of the time by any: no shift of the labels looks alike."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 16, size=(RUN.batch_size, RUN.data.seq_len + 1))
    for t in range(1, tokens.shape[1]):
        follows = rng.random(len(tokens)) < 2 / 3
        tokens[:, t] = np.where(follows, (tokens[:, t - 1] + 5) % 16, tokens[:, t])
    return Batch(jnp.asarray(tokens, jnp.int32), jnp.ones((RUN.batch_size, RUN.data.seq_len), bool))


# Compiling is most of what these tests take: they share a step for each policy, and the first state.
@functools.cache
def compiled(config, policy):
    return make_train_step(config, policy=policy, mesh=make_mesh(config.mesh))


@functools.cache
def first_state(config):
    state = init_state(config, mesh=make_mesh(config.mesh))
    return jax.device_get(state), jax.tree.map(lambda leaf: leaf.sharding, state)


def start(config):
    state, shardings = first_state(config)
    return jax.tree.map(lambda leaf, place: jax.device_put(jnp.array(leaf), place), state, shardings)


def run(batches, *, policy, config=RUN):
    step, state = compiled(config, policy), start(config)
    rows = []
    for batch in batches:
        state, metrics = step(state, batch)
        rows.append({name: float(value) for name, value in metrics.items()})
    return state, rows


def test_rounded_operands_reach_the_loss_of_float32_within_a_hundredth():
    batches = [counting_batch(seed) for seed in range(RUN.steps)]
    exact, rounded = (np.array([row["loss"] for row in run(batches, policy=policy)[1]]) for policy in (PLAIN, ROUNDED))
    np.testing.assert_allclose(rounded, exact, rtol=0.01)
    assert not np.array_equal(rounded, exact)
    assert np.mean(exact[-10:]) < 0.75 * exact[0]


@functools.cache
def loss_and_gradient(policy):
    def loss(model):
        sums = summed_loss(model, random_batch(0), config=RUN.model, policy=policy)
        return sums.objective / sums.num_tokens

    return jax.jit(jax.value_and_grad(loss))(start(RUN).model)


@pytest.mark.parametrize(
    "policy",
    [Policy(attention="blocked"), Policy(attention="blocked", remat="full", scan=True)],
    ids=lambda policy: policy.name,
)
def test_policies_of_equal_precision_give_equal_losses_and_gradients(policy):
    for a, b in zip(*(jax.tree.leaves(loss_and_gradient(each)) for each in (policy, PLAIN)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("policy", [PLAIN, ROUNDED], ids=lambda policy: policy.name)
def test_two_runs_give_bitwise_equal_losses(policy):
    batches = [random_batch(seed) for seed in range(4)]
    assert run(batches, policy=policy)[1] == run(batches, policy=policy)[1]


def test_the_rate_follows_the_schedule_and_steps_are_counted():
    state, rows = run([random_batch(0)] * 7, policy=PLAIN)
    np.testing.assert_allclose([r["lr"] for r in rows], [*(1e-2 * (i + 1) / 6 for i in range(6)), 1e-2], rtol=1e-6)
    assert int(state.step) == 7


def test_a_step_updates_its_state_in_place():
    step, state = compiled(RUN, PLAIN), start(RUN)
    before = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves((state.model, state.opt_state))}
    new, _ = step(state, random_batch(0))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.model))
    after = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves((new.model, new.opt_state))}
    assert after == before


def test_a_batch_without_a_counted_target_is_a_step_of_finite_numbers():
    batch = random_batch(0)
    state, rows = run([batch._replace(loss_mask=jnp.zeros_like(batch.loss_mask)), batch], policy=PLAIN)
    assert (rows[0]["loss"], rows[0]["grad_norm"], rows[0]["num_tokens"]) == (0, 0, 0)
    assert rows[1]["loss"] > 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


def test_segments_and_positions_reach_the_step():
    batch = packed_batch(0)
    variants = [batch, *(batch._replace(**{name: getattr(batch, name)[::-1]}) for name in ("segment_ids", "positions"))]
    assert len({run([variant], policy=PLAIN)[1][0]["loss"] for variant in variants}) == 3


MIXED_BATCHES = (random_batch, packed_batch, packed_batch)


def losses_on(num_devices):
    """Losses and gradient norms of three steps in a process that sees so many devices."""
    code = textwrap.dedent(f"""
        import dataclasses, importlib.util, json, sys
        import jax
        spec = importlib.util.spec_from_file_location("here", {__file__!r})
        here = importlib.util.module_from_spec(spec)
        sys.modules["here"] = here
        spec.loader.exec_module(here)
        assert len(jax.devices()) == {num_devices}
        config = dataclasses.replace(here.RUN, mesh=here.MeshConfig())
        policy = here.PLAIN
        state, rows = here.run([make(i) for i, make in enumerate(here.MIXED_BATCHES)], policy=policy, config=config)
        assert all(len(leaf.sharding.device_set) == {num_devices} for leaf in jax.tree.leaves(state))
        try:
            odd = dataclasses.replace(config, batch_size=7)
            here.make_train_step(odd, policy=policy, mesh=here.make_mesh(config.mesh))
        except here.ConfigError as error:
            refused = str(error)
        else:
            refused = None
        print(json.dumps([rows, refused]))
    """)
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={num_devices}", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | flags, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_eight_devices_give_the_losses_of_one_though_masks_differ_between_them():
    eight, refused = losses_on(8)
    one = run([make(seed) for seed, make in enumerate(MIXED_BATCHES)], policy=PLAIN)[1]
    for a, b in zip(eight, one, strict=True):
        assert a == pytest.approx(b, rel=1e-5)
    assert "TrainConfig.batch_size=7 must be a multiple of the mesh's 8" in refused
