"""Two processes on loopback that hold one state between them, with two virtual devices each."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from marin_train.configs import TrainConfig, to_dict

CHILD = """
import json, sys
from pathlib import Path
import jax, numpy as np
from marin_train.certificates import RunFacts, read_certificate
from marin_train.checkpoints import Cadence, CheckpointWriter, arrays
from marin_train.config_files import from_dict
from marin_train.configs import TrainConfig
from marin_train.digests import add_up

config, out, process = from_dict(TrainConfig, json.loads(sys.argv[1])), Path(sys.argv[2]), int(sys.argv[4])
jax.distributed.initialize(f"localhost:{sys.argv[3]}", 2, process)
mesh = jax.make_mesh((4,), ("data",))
spread, whole = (jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes)) for axes in (["data"], []))
values = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)

def place(values, where):
    return jax.make_array_from_callback(values.shape, where, lambda index: values[index])

model = {"spread": place(values, spread), "whole": place(values + 1, whole)}
state = {"model": model, "step": place(np.int32(3), whole)}
facts = RunFacts(
    config=config, policy={}, tokenizer_file=Path(config.data.components[0].path) / "tokenizer.json", special_ids={},
    stores={}, batch_digest=lambda step: "",
)
# The second one alone was asked to stop, between two steps at which they speak.
cadence = Cadence(config)
stops = [step for step in range(1, 9) if cadence.due(step, stop=process == 1 and step >= 2, busy=False).stop]
with CheckpointWriter(out, facts, like=state) as writer:
    for step in (3, 4):
        writer.save(state, step=step)
    writer.wait()
path = out / "step-00000004"
certificate = read_certificate(path)
for where in (spread, whole):  # as they were saved, and not
    for part, leaves in arrays.by_part(arrays.named_leaves(state)).items():
        wanted = {
            n: jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=where if v.ndim else whole) for n, v in leaves.items()
        }
        arrays.check_leaves(arrays.load_leaves(path / part, wanted), certificate.leaves[part], part=part)
print(json.dumps({
    "stops": stops,
    "digests": [certificate.leaves["model"]["model.spread"].digest, f"{add_up(values):016x}"],
    "there": sorted(path.name for path in out.iterdir()),
}))
"""


@pytest.fixture(scope="module")
def told(tiny_config: Callable[..., TrainConfig], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the two found."""
    out = tmp_path_factory.mktemp("processes") / "checkpoints"
    config = json.dumps(to_dict(tiny_config(log_every=4)))
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, config, str(out), port, str(process)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for process in range(2)
    ]  # fmt: skip
    answers = [child.communicate() for child in children]
    assert [child.returncode for child in children] == [0, 0], [error[-2000:] for _, error in answers]
    return [json.loads(answer.splitlines()[-1]) for answer, _ in answers]  # the collectives greet each other first


def test_two_processes_write_one_checkpoint_that_both_read_back_on_either_sharding(told: list[dict[str, Any]]) -> None:
    for one in told:
        assert one["there"] == ["step-00000003", "step-00000004", "writer"]
        assert len(set(one["digests"])) == 1


def test_processes_stop_after_the_same_step_when_one_of_them_is_asked_to(told: list[dict[str, Any]]) -> None:
    assert [one["stops"] for one in told] == [[4, 8], [4, 8]]
