"""Loss curves of 50 steps, one for each small preset, held against recorded ones: a change of results shows.

On the machine and versions that recorded a curve (`fingerprint`) losses are compared bit by bit; elsewhere the compiler
orders sums otherwise, and they are compared to a thousandth. Where there are experts, a rounded score may there lead a
token to another one, and losses part from then on: means of ten steps are compared, to a tenth. Presets are shrunk in
width and depth, and keep what makes them themselves.

Where a change is meant to change results, record them anew:

    JAX_PLATFORMS=cpu python lib/marin-train/tests/test_golden.py
"""

import dataclasses
import hashlib
import json
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marin_train import presets
from marin_train.configs import Component, DataConfig, MeshConfig, ModelConfig, OptimizerConfig, TrainConfig

GOLDEN = Path(__file__).parent / "golden"
NAMES = ("llama_nano", "qwen3_nano", "gemma3_nano", "qwen3_moe_nano", "marin_moe_nano")
VOCAB_SIZE, SEQ_LEN, STEPS = 64, 24, 50
POLICY = "float32-reference-keep-scan"


def shrunk(name: str) -> ModelConfig:
    model: ModelConfig = getattr(presets, name)()
    changes: dict[str, Any] = {"vocab_size": VOCAB_SIZE, "hidden_dim": 32, "num_layers": 3, "num_heads": 4}
    changes |= {"num_kv_heads": 2, "head_dim": 8, "mlp_dim": 64, "max_seq_len": SEQ_LEN}
    if model.moe is not None:
        latent = {"latent_dim": 16, "shared_dim": 16} if model.moe.latent_dim is not None else {}
        experts = dataclasses.replace(model.moe, num_experts=4, expert_dim=16, **latent)
        changes |= {"mlp_dim": 0, "moe": experts}
    if model.rotary_dim is not None:
        changes |= {"rotary_dim": 4, "norm_gate_dim": 8}
    if model.sliding_window is not None:
        changes |= {"sliding_window": 8, "global_every": 3}
    return dataclasses.replace(model, **changes)


def curve(name: str) -> list[float]:
    from marin_train.losses import Batch
    from marin_train.mesh import make_mesh
    from marin_train.policy import by_name
    from marin_train.train_step import init_state, make_train_step

    config = TrainConfig(
        model=shrunk(name),
        data=DataConfig(components=(Component(name="none", path="none"),), seq_len=SEQ_LEN),
        steps=STEPS,
        batch_size=4,
        optimizer=OptimizerConfig(learning_rate=1e-2),
        mesh=MeshConfig(data=1),
        z_loss=1e-3,
    )
    mesh = make_mesh(config.mesh)
    state, step = init_state(config, mesh=mesh), make_train_step(config, policy=by_name(POLICY), mesh=mesh)
    losses = []
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        start, stride = rng.integers(0, VOCAB_SIZE, (4, 1)), rng.integers(1, 4, (4, 1))
        tokens = (start + stride * np.arange(SEQ_LEN + 1)) % VOCAB_SIZE
        state, metrics = step(state, Batch(tokens.astype(np.int32), rng.random((4, SEQ_LEN)) < 0.9))
        losses.append(float(metrics["loss"]))
    return losses


def fingerprint() -> str:
    """What decides the order of sums: the compiler, and the instructions and cores that it finds."""
    import jax
    import jaxlib

    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    facts = [jax.__version__, jaxlib.__version__, platform.machine(), flags, os.cpu_count()]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", NAMES)
def test_a_presets_losses_are_the_recorded_ones(name: str) -> None:
    recorded = json.loads((GOLDEN / f"{name}.json").read_text())
    expected = [float.fromhex(loss) for loss in recorded["losses"]]
    actual = curve(name)
    if recorded["fingerprint"] == fingerprint():
        assert [loss.hex() for loss in actual] == recorded["losses"]
    if shrunk(name).moe is None:
        np.testing.assert_allclose(actual, expected, rtol=1e-3)
    else:
        means = [np.reshape(losses, (-1, 10)).mean(axis=1) for losses in (actual, expected)]
        np.testing.assert_allclose(*means, rtol=0.1)
    # A curve that does not go down would hold a broken step against itself.
    assert np.mean(actual[-5:]) < 0.8 * actual[0]


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for name in NAMES:
        record = {"fingerprint": fingerprint(), "policy": POLICY, "losses": [loss.hex() for loss in curve(name)]}
        (GOLDEN / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
