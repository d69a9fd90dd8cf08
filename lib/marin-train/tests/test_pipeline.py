"""The pipeline's schedule by itself, and its results against those of one device, on eight virtual ones."""

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_train.configs import ModelConfig
from marin_train.errors import ConfigError
from marin_train.pipeline import backward_at, check_stages, forward_at, num_ticks

SHAPE = ModelConfig(
    vocab_size=16, hidden_dim=8, num_layers=6, num_heads=2, num_kv_heads=1, head_dim=4, mlp_dim=8, max_seq_len=8
)


@given(st.integers(1, 40), st.integers(1, 12))
def test_every_microbatch_passes_every_stage_once_each_way_after_those_it_depends_on(num_microbatches, num_stages):
    ticks = range(num_ticks(num_microbatches, num_stages=num_stages))
    forward, backward = {}, {}
    for tick in ticks:
        for stage in range(num_stages):
            f, b = forward_at(tick, stage=stage), backward_at(tick, stage=stage, num_stages=num_stages)
            if 0 <= f < num_microbatches:
                assert (f, stage) not in forward
                forward[f, stage] = tick
            if 0 <= b < num_microbatches:
                assert (b, stage) not in backward
                backward[b, stage] = tick
    everything = {(m, stage) for m in range(num_microbatches) for stage in range(num_stages)}
    assert forward.keys() == backward.keys() == everything
    for m, stage in everything:
        if stage:
            assert forward[m, stage] == forward[m, stage - 1] + 1
            assert backward[m, stage - 1] == backward[m, stage] + 1
    assert all(forward[m, num_stages - 1] == backward[m, num_stages - 1] for m in range(num_microbatches))
    assert max(backward.values()) == ticks[-1]


@given(st.integers(1, 40), st.integers(1, 12))
def test_inputs_that_are_under_way_at_a_stage_have_places_of_their_own(num_microbatches, num_stages):
    places = 2 * num_stages - 1
    for stage in range(num_stages):
        held: dict[int, int] = {}
        for tick in range(num_ticks(num_microbatches, num_stages=num_stages)):
            f, b = forward_at(tick, stage=stage), backward_at(tick, stage=stage, num_stages=num_stages)
            if 0 <= f < num_microbatches:
                assert f % places not in held
                held[f % places] = f
            if 0 <= b < num_microbatches:
                assert held.pop(b % places) == b
        assert not held


def test_stages_that_do_not_cut_the_layers_into_equal_shares_are_refused():
    check_stages(SHAPE, 3)
    with pytest.raises(ConfigError, match=r"MeshConfig\.stage=4 must divide ModelConfig\.num_layers=6"):
        check_stages(SHAPE, 4)


def test_stages_whose_layers_would_differ_in_kind_are_refused():
    local = dataclasses.replace(SHAPE, family="gemma3", sliding_window=4, global_every=3, tie_embeddings=True)
    check_stages(local, 2)
    with pytest.raises(ConfigError, match=r"MeshConfig\.stage=3 gives each stage 2 of 6 layers"):
        check_stages(local, 3)


CHILD = """
import dataclasses, json
import jax, jax.numpy as jnp, numpy as np
from marin_train.configs import Component, DataConfig, MeshConfig, ModelConfig, OptimizerConfig, TrainConfig
from marin_train.data.packing import Sequences
from marin_train.losses import Batch
from marin_train.mesh import make_mesh
from marin_train.policy import Policy
from marin_train.scorer import make_scorer
from marin_train.train_step import init_state, make_train_step, state_template

LLAMA = ModelConfig(
    vocab_size=32, hidden_dim=16, num_layers=4, num_heads=4, num_kv_heads=2, head_dim=4, mlp_dim=32, max_seq_len=12
)
GEMMA = dataclasses.replace(LLAMA, family="gemma3", sliding_window=4, global_every=2, tie_embeddings=True)
MESHES = {
    "one": {"data": 1}, "2 stages": {"stage": 2, "data": 1}, "4 stages": {"stage": 4, "data": 1},
    "2 x 2 x 2": {"stage": 2, "data": 2, "model": 2},
}

def begin(config, mesh, drawn):
    if drawn is None:
        return init_state(config, mesh=mesh)
    return jax.device_put(drawn, jax.tree.map(lambda leaf: leaf.sharding, state_template(config, mesh=mesh)))

def curve(model, mesh, drawn):
    config = TrainConfig(
        model=model, data=DataConfig(components=(Component(name="a", path="a"),), seq_len=12), steps=10, batch_size=12,
        accumulation=6, mesh=MeshConfig(**mesh), z_loss=0.01, optimizer=OptimizerConfig(learning_rate=0.01),
    )
    mesh = make_mesh(config.mesh)
    state, step = begin(config, mesh, drawn), make_train_step(config, policy=Policy(scan=True), mesh=mesh)
    begun = jax.device_get(state)
    rng, told = np.random.default_rng(0), []
    for _ in range(config.steps):
        tokens, mask = rng.integers(0, 32, (12, 13)).astype(np.int32), rng.random((12, 12)) < 0.6
        mask[3] = False
        state, metrics = step(state, Batch(jnp.asarray(tokens), jnp.asarray(mask)))
        told.append([float(metrics["loss"]), float(metrics["grad_norm"])])
    held = state.model.layers.attention.query.sharding.shard_shape(state.model.layers.attention.query.shape)
    return (told, held[0]), begun

# A draw takes long to compile: it is spread over all axes once, and elsewhere the values of one device are placed.
found = {}
for model, names in ((LLAMA, tuple(MESHES)), (GEMMA, ("one", "2 stages"))):
    drawn = None
    for name in names:
        told, begun = curve(model, MESHES[name], None if name == "2 x 2 x 2" else drawn)
        found.setdefault(model.family, {})[name] = told
        drawn = drawn or begun

def temporary_bytes(num_parts):
    config = TrainConfig(
        model=LLAMA, data=DataConfig(components=(Component(name="a", path="a"),), seq_len=12), steps=10,
        batch_size=2 * num_parts, accumulation=num_parts, mesh=MeshConfig(stage=2, data=1),
    )
    mesh = make_mesh(config.mesh)
    rows = (2 * num_parts, 12)
    batch = Batch(jax.ShapeDtypeStruct((rows[0], 13), jnp.int32), jax.ShapeDtypeStruct(rows, jnp.bool))
    step = make_train_step(config, policy=Policy(scan=True), mesh=mesh)
    compiled = step.lower(state_template(config, mesh=mesh), batch).compile().memory_analysis()
    return compiled.temp_size_in_bytes

def scores(mesh):
    config = TrainConfig(
        model=LLAMA, data=DataConfig(components=(Component(name="a", path="a"),), seq_len=12), steps=1, batch_size=2,
        mesh=MeshConfig(**mesh),
    )
    mesh = make_mesh(config.mesh)
    tokens = np.random.default_rng(1).integers(0, 32, (2, 13)).astype(np.int32)
    scorer = make_scorer(LLAMA, policy=Policy(scan=True), mesh=mesh)
    model = begin(config, mesh, model_drawn).model
    return scorer(model, Sequences(tokens, np.ones((2, 12), bool), None, None)).tolist()

model_drawn = init_state(
    TrainConfig(model=LLAMA, data=DataConfig(components=(Component(name="a", path="a"),), seq_len=12), steps=1,
                batch_size=2, mesh=MeshConfig(data=1)),
    mesh=make_mesh(MeshConfig(data=1)),
)
model_drawn = jax.device_get(model_drawn)
found["memory"] = [temporary_bytes(num_parts) for num_parts in (4, 32)]
found["scores"] = [scores(mesh) for mesh in (MESHES["one"], MESHES["2 stages"])]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def curves() -> dict[str, dict[str, list]]:
    flags = "--xla_force_host_platform_device_count=8"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    child = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, env=environment, check=False)
    assert child.returncode == 0, child.stderr[-3000:]
    return json.loads(child.stdout)


@pytest.mark.parametrize(
    ("family", "mesh"),
    [("llama", "2 stages"), ("llama", "4 stages"), ("llama", "2 x 2 x 2"), ("gemma3", "2 stages")],
)
def test_stages_train_as_one_device_does(curves: dict[str, dict[str, list]], family: str, mesh: str) -> None:
    (alone, _), (staged, _) = curves[family]["one"], curves[family][mesh]
    losses, norms = np.transpose(staged)
    expected_losses, expected_norms = np.transpose(alone)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    np.testing.assert_allclose(norms, expected_norms, rtol=1e-4)


def test_each_stage_holds_its_share_of_the_layers(curves: dict[str, dict[str, list]]) -> None:
    held = {mesh: layers for mesh, (_, layers) in curves["llama"].items()}
    assert held == {"one": 4, "2 stages": 2, "4 stages": 1, "2 x 2 x 2": 2}


def test_memory_does_not_grow_with_the_number_of_microbatches(curves: dict[str, list]) -> None:
    few, many = curves["memory"]
    # What they read and where they count lies beside; 28 more microbatches of what a stage is handed would be 86 kB.
    assert many < few + 28 * 2 * 12 * 16 * 4 / 2


def test_a_model_in_stages_is_scored_as_on_one_device(curves: dict[str, list]) -> None:
    alone, staged = curves["scores"]
    np.testing.assert_allclose(staged, alone, rtol=1e-5)
