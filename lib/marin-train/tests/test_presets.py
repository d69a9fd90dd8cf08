import jax
import pytest

from marin_train import models, presets
from marin_train.flops import num_params

# Counted by transformers 5.24.0: the parameters of AutoModelForCausalLM.from_config on the device "meta".
PUBLISHED = {
    "llama_3_1_8b": 8_030_261_248,
    "llama_3_2_1b": 1_235_814_400,
    "llama_3_2_3b": 3_212_749_824,
    "qwen3_0_6b": 596_049_920,
    "qwen3_1_7b": 1_720_574_976,
    "qwen3_4b": 4_022_468_096,
    "qwen3_8b": 8_190_735_360,
    "mixtral_8x7b": 46_702_792_704,
    "qwen3_30b_a3b": 30_532_122_624,
    "gemma3_270m": 268_098_176,
    "gemma3_1b": 999_885_952,
    "gemma3_4b": 3_880_263_168,
}


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_published_models_are_counted_to_the_last_parameter_without_allocating(name, count):
    before = len(jax.live_arrays())
    assert num_params(getattr(presets, name)()) == count
    assert len(jax.live_arrays()) == before


@pytest.mark.parametrize("name", ["llama_nano", "llama_30m", "qwen3_nano", "qwen3_moe_nano", "gemma3_nano"])
def test_a_small_model_takes_the_vocabulary_it_is_given(name):
    preset = getattr(presets, name)
    config = preset(vocab_size=1234)
    assert models.family(config).parameter_table(config)["embed"].shape[0] == 1234
    assert preset().vocab_size == 8192


def test_the_30m_model_has_about_so_many_parameters():
    assert num_params(presets.llama_30m()) == pytest.approx(30e6, rel=0.02)
