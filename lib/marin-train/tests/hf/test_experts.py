"""Experts of Hugging Face directories: which layers have them, what a bias makes of one, and who trains on from one."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_train.configs import ModelConfig, MoEConfig, TrainConfig
from marin_train.errors import ConfigError, HuggingFaceError
from marin_train.hf import load_hf, save_hf
from marin_train.hf.config_json import from_model_config, to_model_config
from marin_train.initial import examine_source, first_state
from marin_train.mesh import one_device

FIXTURES = Path(__file__).parent / "fixtures"
SHAPE = {"hidden_dim": 16, "num_heads": 4, "num_kv_heads": 2, "head_dim": 4, "vocab_size": 61, "max_seq_len": 64}
QWEN = {"model_type": "qwen3_moe", "num_hidden_layers": 4, "num_experts": 8}


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    family = draw(st.sampled_from(["mixtral", "qwen3_moe"]))
    num_layers = draw(st.integers(1, 6))
    num_dense = draw(st.integers(0, num_layers - 1)) if family == "qwen3_moe" else 0
    num_experts = draw(st.integers(1, 16))
    moe = MoEConfig(
        num_experts=num_experts,
        top_k=draw(st.integers(1, num_experts)),
        expert_dim=draw(st.integers(1, 64)),
        num_dense_layers=num_dense,
        renormalise=family == "mixtral" or draw(st.booleans()),
        balance="none",
    )
    mlp_dim = draw(st.integers(1, 64)) if num_dense else 0
    return ModelConfig(family=family, num_layers=num_layers, mlp_dim=mlp_dim, moe=moe, **SHAPE)


@settings(max_examples=100)
@given(configs())
def test_a_written_configuration_of_experts_reads_as_it_was(config: ModelConfig) -> None:
    assert to_model_config(from_model_config(config, dtype="float32", special_ids={})) == config


@pytest.mark.parametrize("field", [{"mlp_only_layers": [3]}, {"mlp_only_layers": [0, 2]}, {"decoder_sparse_step": 3}])
def test_dense_layers_behind_one_of_experts_are_refused(field: dict) -> None:
    with pytest.raises(HuggingFaceError, match="dense layers before all that have experts"):
        to_model_config(QWEN | field | {"num_hidden_layers": 7})


def test_layers_that_are_all_dense_are_refused_as_no_model_of_experts() -> None:
    with pytest.raises(ConfigError, match=r"num_dense_layers=4 must be below ModelConfig\.num_layers=4"):
        to_model_config(QWEN | {"mlp_only_layers": [0, 1, 2, 3]})


def test_two_names_of_the_number_of_experts_have_to_agree() -> None:
    with pytest.raises(HuggingFaceError, match="num_experts=8 and num_local_experts=4 disagree"):
        to_model_config(QWEN | {"num_local_experts": 4})


@pytest.mark.parametrize("changes", [{"shared_dim": 8}, {"latent_dim": 8}, {"combine": "sigmoid"}, {"scale": 2.0}])
def test_what_transformers_cannot_express_is_refused(changes: dict) -> None:
    moe = MoEConfig(num_experts=4, top_k=2, expert_dim=8, balance="none", **changes)
    config = ModelConfig(family="mixtral", num_layers=1, mlp_dim=0, moe=moe, **SHAPE)
    with pytest.raises(HuggingFaceError, match=r"ModelConfig\.moe=.*cannot express it"):
        from_model_config(config, dtype="float32", special_ids={})


def test_a_model_with_a_bias_is_not_written_for_who_has_no_place_for_it(draw_model, tmp_path: Path) -> None:
    moe = MoEConfig(num_experts=4, top_k=2, expert_dim=8)
    config = ModelConfig(family="mixtral", num_layers=1, mlp_dim=0, moe=moe, **SHAPE)
    with pytest.raises(HuggingFaceError, match=r"MoEConfig\.balance='quantile' chooses experts by a bias"):
        save_hf(tmp_path / "out", draw_model(config), config=config)
    assert not (tmp_path / "out").exists()


def test_who_trains_on_by_a_bias_begins_with_none_and_with_all_else_as_published(tiny_config) -> None:
    published = load_hf(FIXTURES / "mixtral")
    quantile = dataclasses.replace(published.config.moe, balance="quantile")
    config: TrainConfig = tiny_config(
        model=dataclasses.replace(published.config, moe=quantile), init_from=str(FIXTURES / "mixtral")
    )
    model = first_state(config, mesh=one_device(), fingerprint=examine_source(config)).model
    np.testing.assert_array_equal(model.layers.mlp.router_bias, np.zeros((2, 4)))
    begun = dataclasses.replace(model.layers.mlp, router_bias=None)
    for a, b in zip(jax.tree.leaves(begun), jax.tree.leaves(published.model.layers.mlp), strict=True):
        np.testing.assert_array_equal(a, b)
