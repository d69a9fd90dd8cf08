import subprocess
import sys

import pytest

import marin_train

CONTRACT = {
    "ModelConfig", "OptimizerConfig", "ScheduleConfig", "DataConfig", "MeshConfig", "TrainConfig",
    "train", "evaluate", "generate", "presets",
}  # fmt: skip


def test_all_names_are_there_and_sorted() -> None:
    assert marin_train.__all__ == sorted(marin_train.__all__)
    assert set(marin_train.__all__) >= CONTRACT
    for name in marin_train.__all__:
        assert getattr(marin_train, name) is not None


def test_dir_is_all() -> None:
    assert dir(marin_train) == marin_train.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        marin_train.trian  # noqa: B018


def test_stating_a_run_imports_neither_jax_nor_numpy() -> None:
    script = """
import sys
from marin_train import Component, DataConfig, TrainConfig, presets
model = presets.llama_nano()
TrainConfig(model=model, data=DataConfig(components=(Component(name="a", path="a"),), seq_len=8), steps=1, batch_size=1)
loaded = {"jax", "numpy", "orbax", "equinox"} & set(sys.modules)
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", script], check=True)
