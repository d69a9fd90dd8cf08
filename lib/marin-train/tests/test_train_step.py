import dataclasses
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
from marin_train.mesh import make_mesh
from marin_train.policy import Policy
from marin_train.train_step import Batch, init_state, make_train_step

RUN = TrainConfig(
    model=ModelConfig(
        vocab_size=16, hidden_dim=16, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=8, mlp_dim=32, max_seq_len=16
    ),
    data=DataConfig(components=(Component(name="a", path="a"),), seq_len=12),
    steps=60,
    batch_size=8,
    optimizer=OptimizerConfig(learning_rate=1e-2),
    schedule=ScheduleConfig(warmup=0.1, decay=0.2),
    mesh=MeshConfig(data=1),
)


def random_batch(seed):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 16, size=(RUN.batch_size, RUN.data.seq_len + 1))
    return Batch(jnp.asarray(tokens, jnp.int32), jnp.asarray(rng.random((RUN.batch_size, RUN.data.seq_len)) < 0.7))


def run(batches, *, policy, config=RUN):
    mesh = make_mesh(config.mesh)
    state, step = init_state(config, policy=policy, mesh=mesh), make_train_step(config, policy=policy, mesh=mesh)
    rows = []
    for batch in batches:
        state, metrics = step(state, batch)
        rows.append({name: float(value) for name, value in metrics.items()})
    return state, rows


def test_a_tiny_model_learns_one_batch_by_heart():
    batch = random_batch(0)._replace(loss_mask=jnp.ones((8, 12), bool).at[:, :3].set(False))
    config = dataclasses.replace(RUN, steps=150)
    _, rows = run([batch] * 150, policy=Policy(scan=True), config=config)
    assert rows[0]["loss"] == pytest.approx(np.log(16), rel=0.3)
    assert rows[-1]["loss"] < 0.1
    assert rows[0]["num_tokens"] == 8 * 9


def test_the_next_token_is_learnt_and_not_the_one_it_reads():
    # Each id is followed by its successor with a stride that no shift of the labels by one could confuse.
    rng = np.random.default_rng(0)
    starts = rng.integers(0, 16, size=(60, 8, 1))
    tokens = (starts + 5 * np.arange(13)) % 16
    batches = [Batch(jnp.asarray(t, jnp.int32), jnp.ones((8, 12), bool)) for t in tokens]
    state, rows = run(batches, policy=Policy(scan=True))
    assert rows[-1]["loss"] < 0.2

    from marin_train import models

    family = models.family(RUN.model)
    hidden = family.forward(state.model, batches[0].tokens[:, :-1], config=RUN.model, policy=Policy())
    predicted = jnp.argmax(hidden @ family.head(state.model), axis=-1)
    assert np.mean(np.asarray(predicted == batches[0].tokens[:, 1:])) > 0.95


def test_rounded_operands_reach_the_loss_of_float32_within_a_hundredth():
    batches = [random_batch(seed % 4) for seed in range(40)]
    exact = run(batches, policy=Policy())[1]
    rounded = run(batches, policy=Policy(operands="bfloat16", attention="blocked", remat=True, scan=True))[1]
    np.testing.assert_allclose([r["loss"] for r in rounded], [r["loss"] for r in exact], rtol=0.01)
    assert exact[-1]["loss"] < exact[0]["loss"]


def test_policies_of_equal_precision_give_equal_losses():
    batches = [random_batch(seed) for seed in range(4)]
    expected = run(batches, policy=Policy())[1]
    other = run(batches, policy=Policy(attention="blocked", remat=True, scan=True))[1]
    for a, b in zip(other, expected, strict=True):
        assert a == pytest.approx(b, rel=1e-5)


def test_two_runs_give_bitwise_equal_losses():
    batches = [random_batch(seed) for seed in range(4)]
    policy = Policy(operands="bfloat16", attention="blocked", scan=True)
    assert run(batches, policy=policy)[1] == run(batches, policy=policy)[1]


def test_the_rate_follows_the_schedule_and_steps_are_counted():
    state, rows = run([random_batch(0)] * 7, policy=Policy(scan=True))
    np.testing.assert_allclose([r["lr"] for r in rows], [*(1e-2 * (i + 1) / 6 for i in range(6)), 1e-2], rtol=1e-6)
    assert int(state.step) == 7


def test_a_step_updates_its_state_in_place():
    mesh = make_mesh(RUN.mesh)
    state = init_state(RUN, policy=Policy(scan=True), mesh=mesh)
    step = make_train_step(RUN, policy=Policy(scan=True), mesh=mesh)
    pointers = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves((state.model, state.opt_state))}
    new, _ = step(state, random_batch(0))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.model))
    after = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves((new.model, new.opt_state))}
    assert after == pointers


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
        policy = here.Policy(attention="blocked", scan=True)
        state, rows = here.run([here.random_batch(seed) for seed in range(3)], policy=policy, config=config)
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
    one = run([random_batch(seed) for seed in range(3)], policy=Policy(attention="blocked", scan=True))[1]
    for a, b in zip(eight, one, strict=True):
        assert a == pytest.approx(b, rel=1e-5)
    assert "TrainConfig.batch_size=7 must be a multiple of the mesh's 8" in refused
