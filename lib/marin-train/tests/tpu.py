"""What is made for TPUs, built by their own compiler; `nox -s tpu` runs it, on any machine, CI does not.

libtpu knows the topologies of slices and compiles for them where there is no TPU. So it can be seen that a mesh lies
on a slice as its links do, that splash attention and every mesh compile for it, and that a step fits its memory; not
how fast it is.
"""

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import topologies
from jax.sharding import Mesh

from marin_train.configs import Component, DataConfig, MeshConfig, ModelConfig, MoEConfig, TrainConfig
from marin_train.losses import Batch
from marin_train.mesh import make_mesh, sharding
from marin_train.policy import Policy, candidates
from marin_train.train_step import make_train_step, state_template

# It would ask the cloud's metadata server what machine this is.
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")

HBM_BYTES = 16e9
"""Of a v5e chip."""


def _devices(name: str, *, num_slices: int = 1) -> Sequence[Any]:
    return topologies.get_topology_desc(name, platform="tpu", num_slices=num_slices).devices


def _distance(a: Any, b: Any) -> int:
    return sum(abs(x - y) for x, y in zip(a.coords, b.coords, strict=True))


def test_the_shares_of_a_model_are_next_to_each_other() -> None:
    mesh = make_mesh(MeshConfig(replica=2, model=4), devices=_devices("v5e:4x4", num_slices=2))
    for row in mesh.devices.reshape(-1, 4):
        assert [_distance(a, b) for a, b in pairwise(row)] == [1, 1, 1]


@pytest.mark.parametrize("replica", [2, 4])
def test_slices_meet_along_replica_alone(replica: int) -> None:
    mesh = make_mesh(MeshConfig(replica=replica), devices=_devices("v5e:4x4", num_slices=2))
    slices = [{device.slice_index for device in part.flat} for part in mesh.devices[0]]
    assert slices == [{number * 2 // replica} for number in range(replica)]


def _compiled(mesh: Mesh, config: TrainConfig, policy: Policy) -> Any:
    where, rows = sharding(mesh, ("batch", None)), config.batch_size
    batch = Batch(
        jax.ShapeDtypeStruct((rows, config.data.seq_len + 1), jnp.int32, sharding=where),
        jax.ShapeDtypeStruct((rows, config.data.seq_len), jnp.bool, sharding=where),
        jax.ShapeDtypeStruct((rows, config.data.seq_len), jnp.int32, sharding=where),
    )
    step: Any = make_train_step(config, policy=policy, mesh=mesh)
    return step.lower(state_template(config, mesh=mesh), batch).compile()


def _config(family: Any, axes: dict[str, int], **fields: Any) -> TrainConfig:
    model = ModelConfig(
        family=family,
        vocab_size=16_384,
        hidden_dim=512,
        num_layers=4,
        num_heads=4,
        num_kv_heads=2,
        head_dim=128,
        max_seq_len=1024,
        **{"mlp_dim": 2048} | fields,
    )
    return TrainConfig(
        model=model,
        data=DataConfig(components=(Component(name="a", path="a"),), seq_len=1024),
        steps=10,
        batch_size=16,
        mesh=MeshConfig(**axes),
        accumulation=4 if "stage" in axes else 1,
    )


def _check_size(program: Any, config: TrainConfig, mesh: Mesh) -> None:
    memory = program.memory_analysis()
    assert memory.argument_size_in_bytes + memory.temp_size_in_bytes < HBM_BYTES
    shapes = jax.tree.leaves(state_template(config, mesh=mesh))
    held = 4 * sum(np.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in shapes)
    assert memory.argument_size_in_bytes < 1.2 * held + 2**20


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "axes", [{}, {"model": 2}, {"context": 2}, {"stage": 2}], ids=["data", "model", "context", "stage"]
)
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_step_compiles_by_the_first_candidate_and_fits(
    family: Any, axes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The program is built for the mesh's devices; what is asked of the process is what it would run on.
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    mesh = make_mesh(MeshConfig(**axes), devices=_devices("v5e:2x2"))
    windows = {"sliding_window": 512, "global_every": 2} if family == "gemma3" else {}
    config = _config(family, axes, **windows)
    policy = candidates(config, operands="bfloat16", platform="tpu")[0]
    program = _compiled(mesh, config, policy)
    # A ring attends by its own code, and a stage by blocks; elsewhere the kernel is Mosaic's.
    assert ("tpu_custom_call" in program.as_text()) == (axes in ({}, {"model": 2}))
    _check_size(program, config, mesh)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("axes", "exchange"),
    [({}, "all_to_all"), ({"expert": 2}, "all_to_all"), ({"expert": 2}, "ring"), ({"expert": 2, "model": 2}, "ring")],
    ids=["data", "all_to_all", "ring", "model"],
)
@pytest.mark.parametrize("family", ["qwen3_moe", "marin_moe"])
def test_a_step_of_experts_compiles_by_every_dispatch_and_fits(
    family: Any, axes: dict[str, int], exchange: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    mesh = make_mesh(MeshConfig(**axes), devices=_devices("v5e:2x2"))
    latent = {"latent_dim": 256, "shared_dim": 512} if family == "marin_moe" else {}
    own = {"norm_gate_dim": 32, "rotary_dim": 64, "sliding_window": 512, "global_every": 4} if latent else {}
    moe = MoEConfig(num_experts=16, top_k=2, expert_dim=512, exchange=exchange, **latent)
    config = _config(family, axes, mlp_dim=0, moe=moe, **own)
    by_dispatch = {policy.dispatch: policy for policy in candidates(config, operands="bfloat16", platform="tpu")}
    assert set(by_dispatch) == {"ragged", "block"}
    for policy in by_dispatch.values():
        _check_size(_compiled(mesh, config, policy), config, mesh)
