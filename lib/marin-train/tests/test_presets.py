import jax

from marin_train import models, presets
from marin_train.flops import num_params


def test_published_models_are_counted_to_the_last_parameter_without_allocating():
    before = len(jax.live_arrays())
    assert num_params(presets.llama_3_1_8b()) == 8_030_261_248
    assert num_params(presets.llama_3_2_1b()) == 1_235_814_400
    assert len(jax.live_arrays()) == before


def test_the_nano_model_takes_the_vocabulary_it_is_given():
    config = presets.llama_nano(vocab_size=1234)
    assert models.family(config).parameter_table(config)["embed"].shape[0] == 1234
    assert presets.llama_nano().vocab_size == 8192
