"""Checkpoints on other meshes than they were written on; one process of eight virtual devices does all of it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from marin_train.configs import ModelConfig, MoEConfig, TrainConfig, to_dict
from marin_train.tracking import read_metrics

CHILD = """
import dataclasses, hashlib, json, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from marin_train import loop
from marin_train.checkpoints import arrays
from marin_train.config_files import from_dict
from marin_train.configs import MeshConfig, TrainConfig
from marin_train.data.mixture import Mixture
from marin_train.errors import InterruptedRunError
from pathlib import Path

config, out = from_dict(TrainConfig, json.loads(sys.argv[1])), Path(sys.argv[2])
told = {"digests": {}, "whole": True, "placed": True}

# One array, cut in every way that eight devices allow.
values = {
    "model.w": np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32),
    "model.b": np.arange(16, dtype=np.int32),
    "model.h": np.random.default_rng(1).normal(size=(16, 8)).astype(jnp.bfloat16),
}
meshes = {"8": (8, 1), "4": (4, 1), "2x4": (2, 4), "1": (1, 1)}
def places(shape):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[: shape[0] * shape[1]]).reshape(shape), ("data", "model"))
    specs = {"model.w": P("data", "model"), "model.b": P("model"), "model.h": P(("data", "model"))}
    return {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
for name, shape in meshes.items():
    told["digests"][name] = arrays.shares(jax.device_put(values, places(shape)))
arrays.save_leaves(out / "part", jax.device_put(values, places((8, 1))))
for name, shape in meshes.items():
    wanted = {n: jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=places(shape)[n]) for n, v in values.items()}
    leaves = arrays.load_leaves(out / "part", wanted)
    told["whole"] &= all(np.array_equal(leaves[n], v) for n, v in values.items())
    told["placed"] &= all(leaves[n].sharding == places(shape)[n] for n in values)

# One run that goes from eight devices to four to one.
batch, seen = Mixture.batch, {}
def noted(self, step, **rows):
    made = batch(self, step, **rows)
    seen[step] = hashlib.sha256(np.ascontiguousarray(made.tokens).tobytes()).hexdigest()
    return made
Mixture.batch = noted

class StopAt:
    def __init__(self, step): self.step = step
    def start(self, record, *, step): pass
    def finish(self, summary): pass
    def log(self, row):
        if row["step"] == self.step:
            import os, signal
            os.kill(os.getpid(), signal.SIGTERM)

streams = {}
for data, stop in ((8, 3), (4, 7), (1, 99)):
    try:
        loop.train(dataclasses.replace(config, mesh=MeshConfig(data=data)), out / "run", trackers=[StopAt(stop)])
    except InterruptedRunError:
        pass
    for step, digest in seen.items():
        assert streams.setdefault(step, digest) == digest
loop.train(dataclasses.replace(config, mesh=MeshConfig(data=8)), out / "one")
told["stream"] = all(streams[step] == digest for step, digest in seen.items()) and len(streams) >= config.steps
print(json.dumps(told))
"""


EXPERTS = ModelConfig(
    family="qwen3_moe",
    vocab_size=64,
    hidden_dim=16,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    mlp_dim=0,
    max_seq_len=32,
    moe=MoEConfig(num_experts=4, top_k=2, expert_dim=8),
)


@pytest.fixture(scope="module", params=["dense", "experts"])
def told(
    request: pytest.FixtureRequest, tiny_config: Callable[..., TrainConfig], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What the process found, and the losses of its two runs."""
    out = tmp_path_factory.mktemp("meshes")
    config = tiny_config(batch_size=8, **({"model": EXPERTS} if request.param == "experts" else {}))
    command = [sys.executable, "-c", CHILD, json.dumps(to_dict(config)), str(out)]
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    losses = {name: [row["loss"] for row in read_metrics(out / name / "metrics.jsonl")] for name in ("run", "one")}
    return json.loads(done.stdout) | losses


def test_the_digest_of_an_array_is_the_same_on_every_mesh(told: dict[str, Any]) -> None:
    first, *others = told["digests"].values()
    assert len(set(first.values())) == 3
    assert all(other == first for other in others)


def test_arrays_saved_from_eight_devices_come_back_on_any_mesh_in_their_places(told: dict[str, Any]) -> None:
    assert told["whole"]
    assert told["placed"]


def test_a_run_from_eight_devices_to_four_to_one_sees_the_same_tokens_and_losses(told: dict[str, Any]) -> None:
    assert told["stream"]
    assert len(told["run"]) == 12
    np.testing.assert_allclose(told["run"], told["one"], rtol=1e-5)
