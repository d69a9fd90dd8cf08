"""One model on eight virtual devices, spread in every way, against the same model on one."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from marin_train.configs import Component, DataConfig, MeshConfig, ModelConfig, TrainConfig
from marin_train.errors import ConfigError
from marin_train.mesh import AXES, check_run, make_mesh, mesh_sizes, shard_shape

CHILD = """
import json, re
import jax, jax.numpy as jnp, numpy as np
from marin_train import models
from marin_train.configs import Component, DataConfig, MeshConfig, ModelConfig, OptimizerConfig, TrainConfig
from marin_train.losses import Batch
from marin_train.mesh import make_mesh, shard_shape
from marin_train.policy import Policy
from marin_train.train_step import init_state, make_train_step

MODEL = ModelConfig(
    family="gemma3", vocab_size=38, vocab_multiple=8, hidden_dim=16, num_layers=2, num_heads=8, num_kv_heads=4,
    head_dim=4, mlp_dim=32, max_seq_len=16, sliding_window=6, global_every=2, logit_softcap=20.0, attention_softcap=9.0,
)
MESHES = {
    "one": {"data": 1}, "8 data": {"data": 8}, "2 data, 4 model": {"data": 2, "model": 4},
    "4 data, 2 context": {"data": 4, "context": 2}, "2 x 2 x 2": {"data": 2, "context": 2, "model": 2},
    "2 replica, 2 expert, 2 context": {"replica": 2, "data": 1, "expert": 2, "context": 2},
}

def run(mesh, attention):
    config = TrainConfig(
        model=MODEL, data=DataConfig(components=(Component(name="a", path="a"),), seq_len=16), steps=20, batch_size=8,
        mesh=MeshConfig(**mesh), z_loss=0.01, optimizer=OptimizerConfig(learning_rate=0.01),
    )
    mesh, policy = make_mesh(config.mesh), Policy(attention=attention, scan=True)
    state, step = init_state(config, mesh=mesh), make_train_step(config, policy=policy, mesh=mesh, watch=True)
    rng, losses, gradients = np.random.default_rng(0), [], {}
    for _ in range(config.steps):
        documents = np.sort(rng.integers(1, 4, (8, 16)), axis=1).astype(np.int32)
        places = np.arange(16) - np.maximum.accumulate(
            np.where(np.diff(documents, axis=1, prepend=0) != 0, np.arange(16), 0), axis=1
        )
        batch = Batch(
            rng.integers(0, 38, (8, 17)).astype(np.int32), rng.random((8, 16)) < 0.6, documents, places.astype(np.int32)
        )
        if not losses:
            step = step.lower(state, batch).compile()
            program = step.as_text()
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
        gradients = gradients or {leaf: float(norms["gradient"]) for leaf, norms in metrics["watch"].items()}
    table = models.family(MODEL).parameter_table(MODEL)
    told = {p.path: list(shard_shape(p.dims, p.shape, mesh.shape)) for p in table}
    leaves = jax.tree_util.tree_leaves_with_path(state.model)
    held = {
        jax.tree_util.keystr(path, simple=True, separator="."): list(leaf.addressable_shards[0].data.shape)
        for path, leaf in leaves
    }
    results = re.findall(r"= (.*?) all-gather(?:-start)?\\(", program)
    gathered = sorted({shape for result in results for shape in re.findall(r"\\[([\\d,]+)\\]", result)})
    return {"losses": losses, "gradients": gradients, "told": told, "held": held, "gathered": gathered}

print(json.dumps({name: run(mesh, "blocked" if "4 model" in name else "reference") for name, mesh in MESHES.items()}))
"""
SPREAD = ("8 data", "2 data, 4 model", "4 data, 2 context", "2 x 2 x 2", "2 replica, 2 expert, 2 context")


@pytest.fixture(scope="module")
def runs() -> dict[str, dict[str, Any]]:
    """Twenty steps on each mesh: documents packed with positions of their own, windows, soft-caps, masks, padding."""
    flags = "--xla_force_host_platform_device_count=8"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    child = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, env=environment, check=False)
    assert child.returncode == 0, child.stderr[-3000:]
    return json.loads(child.stdout)


@pytest.mark.parametrize("mesh", SPREAD)
def test_losses_and_gradients_are_those_of_one_device(runs: dict[str, dict[str, Any]], mesh: str) -> None:
    alone, spread = runs["one"], runs[mesh]
    np.testing.assert_allclose(spread["losses"], alone["losses"], rtol=1e-5)
    for leaf, norm in alone["gradients"].items():
        assert spread["gradients"][leaf] == pytest.approx(norm, rel=1e-4), leaf
    assert len(set(alone["losses"])) == 20


@pytest.mark.parametrize("mesh", SPREAD)
def test_a_device_holds_what_the_rules_say_and_no_more(runs: dict[str, dict[str, Any]], mesh: str) -> None:
    assert runs[mesh]["held"] == runs[mesh]["told"]


def test_matrices_are_spread_over_data_and_model_and_whole_in_every_replica(runs: dict[str, dict[str, Any]]) -> None:
    query = "layers.attention.query"  # 2 layers of 16 x 32
    assert runs["8 data"]["held"][query] == [2, 2, 32]
    assert runs["2 data, 4 model"]["held"][query] == [2, 8, 8]
    assert runs["2 replica, 2 expert, 2 context"]["held"][query] == [2, 16, 32]
    assert runs["2 data, 4 model"]["held"]["embed"] == [10, 8]


def test_tensor_parallel_layers_gather_no_share_of_another_device(runs: dict[str, dict[str, Any]]) -> None:
    """Over ``data`` a device gathers its own share of a matrix, a quarter of the 32 columns, and never the others'."""
    gathered = {tuple(int(size) for size in shape.split(",")) for shape in runs["2 data, 4 model"]["gathered"]}
    whole = {tuple(size for size in shape if size != 1) for shape in gathered}
    assert (16, 8) in whole
    # Query, gate and up; their transposes; a sequence's share of the logits, or of what is as wide as the layers.
    assert not whole & {(16, 32), (32, 16), (2, 16, 32), (2, 32, 16), (4, 16, 32), (4, 16, 40), (4, 16, 8, 4)}


@pytest.mark.parametrize("mesh", ["2 data, 4 model", "2 x 2 x 2"])
def test_no_device_gathers_rows_of_the_embedding_that_others_hold(runs: dict[str, dict[str, Any]], mesh: str) -> None:
    rows, columns = runs[mesh]["held"]["embed"]
    whole = {(40, columns), (40, 16), (columns, 40), (16, 40)}
    gathered = {tuple(int(size) for size in shape.split(",")) for shape in runs[mesh]["gathered"]}
    assert (rows, 16) in gathered
    assert not gathered & whole


def test_no_device_gathers_activations_that_lie_along_context(runs: dict[str, dict[str, Any]]) -> None:
    gathered = {tuple(int(size) for size in shape.split(",")) for shape in runs["2 x 2 x 2"]["gathered"]}
    assert (4, 8, 16) in gathered  # half of a sequence, over model
    assert (4, 16, 16) not in gathered


RUN = TrainConfig(
    model=ModelConfig(
        vocab_size=30, hidden_dim=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=4, mlp_dim=30, max_seq_len=15
    ),
    data=DataConfig(components=(Component(name="a", path="a"),), seq_len=15),
    steps=1,
    batch_size=6,
)


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        ({"data": 4}, "batch_size=6 must be a multiple of the mesh's 4 data shares"),
        ({"context": 2}, r"DataConfig\.seq_len=15 must be a multiple of MeshConfig\.context=2"),
        ({"model": 4}, r"ModelConfig\.num_kv_heads=2 must be a multiple of MeshConfig\.model=4"),
        ({"stage": 2, "context": 3}, r"stage=2 and context=3 cannot be had together"),
    ],
)
def test_what_the_mesh_cannot_share_out_is_refused_by_field(mesh: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_run(RUN, dict.fromkeys(AXES, 1) | mesh)


def test_an_axis_takes_the_devices_that_the_others_leave() -> None:
    assert mesh_sizes(MeshConfig(data=-1, model=4), num_devices=32)["data"] == 8
    assert mesh_sizes(MeshConfig(data=-1, model=4), num_devices=2)["data"] == 1
    assert mesh_sizes(MeshConfig(data=1, model=4), num_devices=6)["model"] == 4


def test_devices_that_would_stay_idle_though_an_axis_takes_all_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"data=-1, model=4\) leaves 2 of 6 devices idle; set MeshConfig\.data=1"):
        mesh_sizes(MeshConfig(data=-1, model=4), num_devices=6)


@dataclass(frozen=True)
class Device:
    """What a mesh reads of one."""

    id: int
    slice_index: int
    process_index: int
    platform: str = "gpu"


def test_slices_meet_along_the_outer_axes_in_whatever_order_their_devices_are_shown() -> None:
    devices: Any = [Device(id=i, slice_index=i % 2, process_index=i % 2) for i in range(8)]
    mesh = make_mesh(MeshConfig(replica=2, data=2, model=2), devices=devices)
    assert [{device.slice_index for device in half.flat} for half in mesh.devices[0]] == [{0}, {1}]


def test_a_mesh_that_leaves_a_process_without_a_device_is_refused() -> None:
    devices: Any = [Device(id=i, slice_index=0, process_index=i // 2) for i in range(4)]
    with pytest.raises(ConfigError, match=r"data=2\) takes 2 of 4 devices and leaves none to process 1"):
        make_mesh(MeshConfig(data=2), devices=devices)


def test_a_dim_that_an_axis_does_not_divide_stays_whole() -> None:
    sizes = dict.fromkeys(AXES, 1) | {"data": 3, "model": 2}
    assert shard_shape(("embed", "mlp"), (16, 32), sizes) == (16, 16)
    assert shard_shape(("layer", "embed"), (4, 18), sizes) == (4, 18)
