import math
from dataclasses import replace

import jax
import numpy as np
import pytest

from marin_train import presets
from marin_train.configs import Component, DataConfig, MeshConfig, OptimizerConfig, TrainConfig
from marin_train.description import describe, to_text
from marin_train.errors import ConfigError
from marin_train.mesh import make_mesh
from marin_train.train_step import init_state

RUN = TrainConfig(
    model=presets.llama_nano(vocab_size=512),
    data=DataConfig(components=(Component(name="a", path="nowhere"),), seq_len=64),
    steps=10,
    batch_size=8,
    mesh=MeshConfig(data=1),
    ema_decay=0.9,
)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_what_a_device_holds_of_the_state_is_what_the_state_takes(name: str) -> None:
    config = replace(RUN, optimizer=OptimizerConfig(name=name))
    described = describe(config)
    state = init_state(config, mesh=make_mesh(config.mesh))
    held = {
        part: sum(x.nbytes for x in jax.tree.leaves(getattr(state, part))) for part in ("model", "opt_state", "ema")
    }
    of = described["device_bytes"]
    assert (of["parameters"], of["optimizer"], of["average"]) == (held["model"], held["opt_state"], held["ema"])
    assert described["state_bytes"] == sum(held.values())


def test_a_large_run_is_described_without_its_devices() -> None:
    config = replace(
        RUN,
        model=presets.llama_3_1_8b(),
        data=replace(RUN.data, seq_len=8192),
        batch_size=512,
        accumulation=4,
        mesh=MeshConfig(data=-1, model=8),
        ema_decay=None,
    )
    described = describe(config, num_devices=256)
    assert described["num_params"] == 8_030_261_248
    assert math.prod(described["mesh"].values()) == 256
    assert described["mesh"]["data"] == 32
    # All but the gains, whole on every device, is shared out over all 256.
    gains = 4 * sum(p["size"] for p in described["parameters"] if p["role"] == "gain")
    expected = (4 * 8_030_261_248 - gains) / 256 + gains
    assert described["device_bytes"]["parameters"] == expected
    np.testing.assert_allclose(described["device_bytes"]["optimizer"], 2 * expected, rtol=1e-6)
    by_path = {p["path"]: p for p in described["parameters"]}
    assert by_path["layers.attention.query"]["share"] == [32, 128, 512]
    text = to_text(described)
    assert "32 data x 8 model" in text
    assert "32x128x512" in text


def test_recomputing_layers_and_more_parts_hold_less() -> None:
    one, four = describe(RUN)["device_bytes"], describe(replace(RUN, accumulation=4))["device_bytes"]
    assert one["activations_recomputed"] < one["activations_kept"]
    assert four["activations_kept"] * 4 == one["activations_kept"]


def test_padding_of_the_vocabulary_is_told_apart() -> None:
    described = describe(replace(RUN, model=replace(RUN.model, vocab_size=500, vocab_multiple=128)))
    assert described["num_params_stored"] - described["num_params"] == 2 * 12 * 256
    assert "6,144 that pad the vocabulary" in to_text(described)


def test_a_mesh_that_cannot_share_the_run_out_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be a multiple of the mesh's 3 data shares"):
        describe(replace(RUN, mesh=MeshConfig(data=-1)), num_devices=3)
