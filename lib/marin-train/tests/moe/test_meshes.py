"""Experts on eight virtual devices, shared out in every way, against all of them on one."""

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from marin_train.configs import Component, DataConfig, MeshConfig, ModelConfig, MoEConfig, TrainConfig
from marin_train.errors import ConfigError
from marin_train.mesh import check_run, mesh_sizes

CHILD = """
import json, re
from functools import partial
import jax, jax.numpy as jnp, numpy as np
from marin_train.configs import (
    Component, DataConfig, MeshConfig, ModelConfig, MoEConfig, OptimizerConfig, TrainConfig,
)
from marin_train.losses import Batch
from marin_train.mesh import in_context, make_mesh, sharding
from marin_train.moe.balance import rule
from marin_train.moe.dispatch import dispatch
from marin_train.moe.experts import Experts
from marin_train.moe.routing import Routes
from marin_train.policy import Policy
from marin_train.train_step import init_state, make_train_step, state_template

MESHES = {
    "one": {"data": 1}, "2 data, 4 model": {"data": 2, "model": 4},
    "2 data, 4 expert": {"data": 2, "expert": 4}, "2 expert, 2 model, 2 data": {"data": 2, "expert": 2, "model": 2},
    "2 context, 2 expert, 2 data": {"data": 2, "context": 2, "expert": 2},
}

def config_of(mesh, family, **moe):
    own = {"norm_gate_dim": 4, "rotary_dim": 2, "sliding_window": 8, "global_every": 2} if family == "marin_moe" else {}
    model = ModelConfig(
        **own, family=family, vocab_size=1000, hidden_dim=16, num_layers=2, num_heads=8, num_kv_heads=4, head_dim=4,
        mlp_dim=32, max_seq_len=16, moe=MoEConfig(
            num_experts=8, top_k=2, expert_dim=8, shared_dim=8, latent_dim=8, num_dense_layers=1, router_z_loss=0.01,
            **moe,
        ),
    )
    return TrainConfig(
        model=model, data=DataConfig(components=(Component(name="a", path="a"),), seq_len=16), steps=20, batch_size=8,
        mesh=MeshConfig(**mesh), optimizer=OptimizerConfig(learning_rate=0.01),
    )

def run(mesh, drawn, dispatch="block", family="qwen3_moe", **moe):
    config = config_of(mesh, family, **moe)
    mesh = make_mesh(config.mesh)
    template = jax.tree.map(lambda leaf: leaf.sharding, state_template(config, mesh=mesh))
    state = init_state(config, mesh=mesh) if drawn is None else jax.device_put(drawn, template)
    begun = jax.device_get(state)
    step = make_train_step(config, policy=Policy(dispatch=dispatch, scan=True), mesh=mesh, watch=True)
    # Of these data no choice of an expert lies so near the edge that rounding turns it, which may happen.
    rng, losses, gradients, program = np.random.default_rng(1), [], {}, ""
    for _ in range(config.steps):
        documents = np.sort(rng.integers(0, 3, (8, 16)), axis=1).astype(np.int32)
        batch = Batch(rng.integers(0, 1000, (8, 17)).astype(np.int32), rng.random((8, 16)) < 0.6, documents)
        if not losses:
            step = step.lower(state, batch).compile()
            program = step.as_text()
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
        gradients = gradients or {leaf: float(norms["gradient"]) for leaf, norms in metrics["watch"].items()}
    results = re.findall(r"= (.*?) all-gather(?:-start)?\\(", program)
    gathered = sorted({shape for result in results for shape in re.findall(r"\\[([\\d,]+)\\]", result)})
    return {"losses": losses, "gradients": gradients, "gathered": gathered}, begun

def replayed(mesh):
    '''The biases after three batches of the same scores, which lie on the mesh.'''
    rng, config = np.random.default_rng(3), MoEConfig(num_experts=8, top_k=2, expert_dim=8)
    mesh = make_mesh(MeshConfig(**mesh))
    bias, biases = jnp.zeros(8), []
    for _ in range(3):
        scores = (rng.normal(size=(8, 64, 8)) + 2 * rng.normal(size=8)).astype(np.float32)
        valid = rng.random((8, 64)) < 0.9
        places = (sharding(mesh, ("batch", "seq", None)), sharding(mesh, ("batch", "seq")))
        placed = jax.device_put((scores, valid), places)

        @jax.jit
        def step(scores, valid, bias):
            with in_context(mesh):
                counts = rule(config).balance(scores, bias, valid=valid, config=config).counts
                return rule(config).updated(bias, counts, config=config)

        bias = step(*placed, jax.device_get(bias))
        biases.append(np.asarray(bias).tobytes().hex())
    return biases

def dropped(exchange):
    '''With too little room: what travelled, against the oracle on one device with what was dropped led nowhere.'''
    rng, config = np.random.default_rng(4), MoEConfig(
        num_experts=8, top_k=2, expert_dim=8, capacity_factor=1.1, exchange=exchange, balance="none",
    )
    x = rng.normal(size=(8, 16, 6)).astype(np.float32)
    scores = rng.normal(size=(8, 16, 8)) + rng.normal(size=8)
    chosen = np.argsort(-scores, axis=-1)[..., :2].astype(np.int32)
    chosen[rng.random((8, 16)) < 0.1] = 8
    weights = np.where(chosen < 8, rng.random(chosen.shape), 0).astype(np.float32)
    shapes = ((8, 6, 4), (8, 6, 4), (8, 4, 6))
    experts = Experts(*(rng.normal(size=shape).astype(np.float32) for shape in shapes))

    @partial(jax.jit, static_argnames=("body", "mesh"))
    def program(x, weights, experts, chosen, body, mesh):
        def cost(x, weights, experts):
            with in_context(mesh):
                done = dispatch(x, Routes(chosen, weights), experts, config=config, policy=Policy(dispatch=body))
            return jnp.sum(jnp.sin(done.output)), done

        return jax.grad(cost, argnums=(0, 1, 2), has_aux=True)(x, weights, experts)

    def compute(*arrays, body, mesh):
        return jax.device_get(program(*jax.device_put(arrays, sharding(mesh, ())), body, mesh))

    many, one = make_mesh(MeshConfig(data=2, expert=4)), make_mesh(MeshConfig(data=1))
    gradients, done = compute(x, weights, experts, chosen, body="block", mesh=many)
    kept = np.where(done.survived, chosen, 8)
    weights = np.where(done.survived, weights, 0)
    truth, expected = compute(x, weights, experts, kept, body="oracle", mesh=one)
    gradients = (gradients[0], np.where(done.survived, gradients[1], 0), gradients[2])
    truth = (truth[0], np.where(done.survived, truth[1], 0), truth[2])
    pairs = zip(jax.tree.leaves((done.output, gradients)), jax.tree.leaves((expected.output, truth)), strict=True)
    return {
        "difference": max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs),
        "traffic": [int(count) for count in done.traffic], "led": int((chosen < 8).sum()),
        "survived": done.survived.tolist(), "chosen": chosen.tolist(),
    }

found, drawn = {}, None
for name, mesh in MESHES.items():
    found[name], begun = run(mesh, drawn, "oracle" if drawn is None else "block")
    drawn = drawn or begun
found["ring"], _ = run(MESHES["2 data, 4 expert"], drawn, exchange="ring")
found["marin_moe, one"], begun = run(MESHES["one"], None, "oracle", family="marin_moe")
found["marin_moe"], _ = run(MESHES["2 context, 2 expert, 2 data"], begun, family="marin_moe")
found["replayed"] = {name: replayed(mesh) for name, mesh in MESHES.items() if "context" not in name}
found["dropped"] = {exchange: dropped(exchange) for exchange in ("all_to_all", "ring")}
print(json.dumps(found))
"""
SPREAD = {
    "2 data, 4 model": "one",
    "2 data, 4 expert": "one",
    "2 expert, 2 model, 2 data": "one",
    "2 context, 2 expert, 2 data": "one",
    "ring": "one",
    "marin_moe": "marin_moe, one",
}
"""Runs on eight devices, and those on one that they are to equal."""


@pytest.fixture(scope="module")
def runs() -> dict[str, Any]:
    """One child with eight devices, since a process has the number that it started with."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    env = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    child = subprocess.run([sys.executable, "-c", CHILD], env=env, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr[-3000:]
    return json.loads(child.stdout.splitlines()[-1])


@pytest.mark.parametrize("mesh", SPREAD)
def test_losses_and_gradients_are_those_of_one_device_where_every_expert_computes_every_token(mesh, runs):
    one = runs[SPREAD[mesh]]
    np.testing.assert_allclose(runs[mesh]["losses"], one["losses"], rtol=1e-5)
    assert runs[mesh]["gradients"].keys() == one["gradients"].keys()
    for leaf, norm in one["gradients"].items():
        assert runs[mesh]["gradients"][leaf] == pytest.approx(norm, rel=1e-4, abs=1e-7), leaf
    assert one["gradients"]["layers.mlp.router_bias"] == 0


@pytest.mark.parametrize("mesh", ["2 data, 4 expert", "ring"])
def test_no_device_gathers_the_experts_of_others(mesh, runs):
    held = 8 // 4
    whole = [shape for shape in runs[mesh]["gathered"] if shape.split(",")[-3:] in (["8", "8", "8"],)]
    assert not whole
    assert any(shape.split(",")[-3:] == [str(held), "8", "8"] for shape in runs[mesh]["gathered"])


def test_given_equal_scores_the_biases_are_bitwise_equal_on_every_mesh(runs):
    one, *others = runs["replayed"].values()
    assert len(others) == 3
    assert len(set(one)) == 3
    assert all(other == one for other in others)


@pytest.mark.parametrize("exchange", ["all_to_all", "ring"])
def test_what_finds_no_room_is_counted_and_all_else_is_computed_as_by_the_oracle(exchange, runs):
    found = runs["dropped"][exchange]
    assert found["difference"] < 1e-5
    _, by_sender, by_receiver = found["traffic"]
    survived = np.array(found["survived"])
    assert by_sender > 0
    assert by_receiver > 0
    assert survived.sum() + by_sender + by_receiver == found["led"]
    assert not survived[np.array(found["chosen"]) == 8].any()


def test_both_exchanges_drop_the_same_routes(runs):
    first, second = (runs["dropped"][exchange] for exchange in ("all_to_all", "ring"))
    assert first["survived"] == second["survived"]


@pytest.mark.parametrize(
    ("mesh", "named"),
    [
        (MeshConfig(expert=3, data=1), r"MoEConfig\.num_experts=8 must be a multiple of MeshConfig\.expert=3"),
        (MeshConfig(model=4, data=1), r"MoEConfig\.expert_dim=6 must be a multiple of MeshConfig\.model=4"),
    ],
)
def test_experts_that_cannot_be_shared_out_equally_are_refused(mesh, named):
    model = ModelConfig(
        family="mixtral",
        vocab_size=16,
        hidden_dim=16,
        num_layers=1,
        num_heads=4,
        num_kv_heads=4,
        head_dim=4,
        mlp_dim=0,
        max_seq_len=16,
        moe=MoEConfig(num_experts=8, top_k=2, expert_dim=6),
    )
    data = DataConfig(components=(Component(name="a", path="a"),), seq_len=16)
    config = TrainConfig(model=model, data=data, steps=1, batch_size=12, mesh=mesh)
    with pytest.raises(ConfigError, match=named):
        check_run(config, mesh_sizes(mesh, num_devices=4))
