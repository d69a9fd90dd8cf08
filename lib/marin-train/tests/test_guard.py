import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from marin_train.checkpoints import named_leaves
from marin_train.configs import (
    Component,
    DataConfig,
    GuardConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
)
from marin_train.guard import init_guard, judge
from marin_train.losses import Batch
from marin_train.mesh import make_mesh
from marin_train.policy import Policy
from marin_train.train_step import init_state, make_train_step

RULE = GuardConfig(skip_sigma=3.0, window=6, max_nonfinite=2)


@functools.cache
def jitted(config):
    return jax.jit(functools.partial(judge, config=config))


def verdicts(losses, *, norms=None, tokens=None, config=RULE):
    """Whether each step of a run is accepted, and how many in a row were not finite."""
    guard, told = init_guard(config), []
    norms, tokens = norms or [1.0] * len(losses), tokens or [1] * len(losses)
    for loss, norm, num in zip(losses, norms, tokens, strict=True):
        accepted, nonfinite, guard = jitted(config)(
            guard, jnp.float32(loss), grad_norm=jnp.float32(norm), num_tokens=jnp.int32(num)
        )
        told.append((bool(accepted), int(nonfinite)))
    return told


def expected(losses, norms, tokens):
    """The same from the definition, on plain lists."""
    seen, told, row = [], [], 0
    for loss, norm, num in zip(np.float32(losses), np.float32(norms), tokens, strict=True):
        finite = math.isfinite(loss) and math.isfinite(norm)
        row = 0 if finite else row + 1
        accepted = finite
        if len(seen) >= 3:
            for value, before in zip((loss, norm), np.array(seen[-6:], np.float64).T, strict=True):
                accepted = bool(accepted and value <= before.mean() + 3.0 * before.std(ddof=1))
        told.append((accepted, row))
        if finite and num:
            seen.append((loss, norm))
    return told


# Apart by tenths and more, so that no rounding decides.
values = st.sampled_from([1.0, 1.1, 1.3, 0.7, 2.0, 9.0, 70.0, math.inf, math.nan])


@settings(max_examples=25)
@given(st.lists(st.tuples(values, values, st.sampled_from([0, 5, 5, 5])), max_size=20))
@example([(1.3, 1.1, 5)] * 9)
@example([*[(1.0, 1.0, 0)] * 3, (9.0, 1.0, 5)])
@example([(loss, 1.0, 5) for loss in (1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.34)])
def test_verdicts_are_those_of_the_definition(steps):
    losses, norms, tokens = ([step[i] for step in steps] for i in range(3))
    assert verdicts(losses, norms=norms, tokens=tokens) == expected(losses, norms, tokens)


def test_nothing_is_skipped_before_half_of_the_window_is_filled():
    assert verdicts([1.0, 50.0]) == [(True, 0)] * 2
    assert verdicts([1.0, 1.1, 0.9, 50.0])[-1] == (False, 0)


def test_a_level_that_changed_for_good_is_taken_for_normal():
    told = [accepted for accepted, _ in verdicts([1.0, 1.1, 0.9, 1.0, 1.1, 0.9] + [2.0] * 6)]
    assert told[6] is False
    assert told[-1] is True


RUN = TrainConfig(
    model=ModelConfig(
        vocab_size=16, hidden_dim=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, mlp_dim=32, max_seq_len=16
    ),
    data=DataConfig(components=(Component(name="a", path="a"),), seq_len=12),
    steps=12,
    batch_size=4,
    optimizer=OptimizerConfig(learning_rate=1e-2),
    schedule=ScheduleConfig(warmup=0.5, decay=0.5),
    guard=GuardConfig(skip_sigma=8.0, window=6, max_nonfinite=1),
    ema_decay=0.9,
    mesh=MeshConfig(data=1),
)


@functools.cache
def step_of(config, watch=False):
    return make_train_step(config, policy=Policy(scan=True), mesh=make_mesh(config.mesh), watch=watch)


def batch(seed):
    tokens = np.random.default_rng(seed).integers(0, 16, size=(4, 13))
    return Batch(jnp.asarray(tokens, jnp.int32), jnp.ones((4, 12), bool))


def run(state, seeds, *, config=RUN):
    rows = []
    for seed in seeds:
        state, metrics = step_of(config)(state, batch(seed))
        rows.append({name: value.item() for name, value in metrics.items()})
    return state, rows


def new_state(config=RUN):
    return init_state(config, mesh=make_mesh(config.mesh))


def parts(state):
    return jax.device_get((state.model, state.opt_state, state.ema))


def test_a_refused_step_changes_nothing_but_its_number_and_the_schedule_goes_on():
    state, _ = run(new_state(), range(4))
    before = parts(state)
    # Measured against losses a tenth of its own, the step is out of line.
    guard = dataclasses.replace(state.guard, losses=state.guard.losses / 10)
    state, (row,) = run(dataclasses.replace(state, guard=guard), [4])
    assert (row["skipped"], row["nonfinite"], int(state.step)) == (1, 0, 5)
    after = parts(state)
    # Of the optimizer only the schedule's own counter may differ, and that is set from the step before it is used.
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(a, b)
    state, rows = run(state, [5])
    assert rows[0]["lr"] == pytest.approx(1e-2 * 6 / 6)


def test_the_update_after_a_refused_step_has_the_rate_of_its_number():
    state, _ = run(new_state(), range(4))
    held = jax.tree.map(jnp.copy, state)
    skipped = dataclasses.replace(held, step=held.step + 1)
    # The same moments and batch, once as step 5 and once as step 6: updates differ as the rates do.
    before = parts(state)[0]
    moved = [jax.tree.map(np.subtract, parts(run(s, [9])[0])[0], before) for s in (state, skipped)]
    for a, b in zip(*map(jax.tree.leaves, moved), strict=True):
        np.testing.assert_allclose(b, a * (6 / 5), rtol=1e-2, atol=1e-6)


def test_a_step_without_finite_numbers_reaches_no_state():
    state = new_state()
    spoiled = jax.tree.map(lambda leaf: leaf * jnp.inf, state.model)
    before = parts(dataclasses.replace(state, model=spoiled))
    state, (row, again) = run(dataclasses.replace(state, model=spoiled), [0, 1])
    assert (row["skipped"], row["nonfinite"]) == (1, 1)
    assert again["nonfinite"] == 2
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(parts(state)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_average_of_parameters_is_that_of_the_definition():
    state = new_state()
    mean = jax.device_get(state.model)
    for seed in range(3):
        state, _ = run(state, [seed])
        mean = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, mean, jax.device_get(state.model))
    for a, b in zip(jax.tree.leaves(state.ema), jax.tree.leaves(mean), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_watching_tells_every_leaf_and_changes_nothing():
    plain, watched = new_state(), new_state()
    plain, quiet = step_of(RUN)(plain, batch(0))
    leaves = named_leaves(jax.device_get(watched.model))
    watched, metrics = step_of(RUN, watch=True)(watched, batch(0))
    norms = metrics["watch"]
    assert norms.keys() == leaves.keys()
    assert math.hypot(*(float(leaf["gradient"]) for leaf in norms.values())) == pytest.approx(
        float(quiet["grad_norm"]), rel=1e-5
    )
    for name, leaf in leaves.items():
        assert float(norms[name]["parameter"]) == pytest.approx(float(np.linalg.norm(np.ravel(leaf))), rel=1e-5)
        assert float(norms[name]["update"]) > 0
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(watched), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_a_step_sends_nothing_to_the_device_and_asks_nothing_of_it(monkeypatch):
    state, ready = new_state(), batch(0)
    state, metrics = step_of(RUN)(state, ready)
    fetched, value = [], type(metrics["loss"])._value
    monkeypatch.setattr(
        type(metrics["loss"]), "_value", property(lambda self: fetched.append(self) or value.fget(self))
    )
    with jax.transfer_guard("disallow"):
        for _ in range(3):
            state, metrics = step_of(RUN)(state, ready)
    assert not fetched
    float(metrics["loss"])
    assert len(fetched) == 1
