import dataclasses
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_train import presets
from marin_train.configs import ModelConfig, RopeScaling
from marin_train.errors import HuggingFaceError, MarinTrainError
from marin_train.hf.config_json import DIALECTS, FULL, SLIDING, from_model_config, to_model_config

LLAMA = {"model_type": "llama", "num_hidden_layers": 4}
GEMMA = {"model_type": "gemma3_text", "num_hidden_layers": 7}
SIZES = st.integers(1, 64)
SCALINGS = st.one_of(
    st.none(),
    st.builds(RopeScaling, kind=st.just("linear"), factor=st.floats(1, 64)),
    st.builds(
        RopeScaling,
        kind=st.just("llama3"),
        factor=st.floats(1, 64),
        original_max_seq_len=SIZES,
        low_freq_factor=st.floats(0.5, 2),
        high_freq_factor=st.floats(3, 8),
    ),
    st.builds(
        RopeScaling,
        kind=st.just("yarn"),
        factor=st.floats(1, 64),
        original_max_seq_len=SIZES,
        beta_fast=st.floats(2, 64),
        attention_factor=st.none() | st.floats(0.5, 2),
    ),
    st.builds(
        RopeScaling,
        kind=st.just("longrope"),
        factor=st.floats(1, 64),
        original_max_seq_len=SIZES,
        short_factor=st.lists(st.floats(1, 4), min_size=4, max_size=4).map(tuple),
        long_factor=st.lists(st.floats(1, 4), min_size=4, max_size=4).map(tuple),
    ),
)


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    scaling = draw(SCALINGS)
    kv_heads, groups = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    fields: dict[str, Any] = {
        "family": draw(st.sampled_from(["llama", "qwen3", "gemma3"])),
        "hidden_dim": kv_heads * groups * draw(SIZES),
        "num_heads": kv_heads * groups,
        "num_kv_heads": kv_heads,
        "head_dim": 8 if scaling is not None and scaling.kind == "longrope" else 2 * draw(SIZES),
        "rope_theta": draw(st.floats(1e3, 1e7)),
        "norm_eps": draw(st.floats(1e-8, 1e-3)),
        "tie_embeddings": draw(st.booleans()),
        "rope_scaling": scaling,
        **{name: draw(SIZES) for name in ("vocab_size", "num_layers", "mlp_dim", "max_seq_len")},
    }
    if fields["family"] == "gemma3":
        fields |= {
            "sliding_window": draw(SIZES),
            "global_every": draw(st.integers(2, fields["num_layers"])) if fields["num_layers"] > 1 else None,
            "local_rope_theta": draw(st.floats(1e3, 1e7)),
            "query_scale": draw(st.none() | st.integers(1000, 2000).map(lambda n: n**-0.5)),
            "logit_softcap": draw(st.none() | st.floats(1, 50)),
        }
    return ModelConfig(**fields)


@settings(max_examples=200)
@given(configs())
def test_a_written_configuration_reads_as_it_was(config: ModelConfig) -> None:
    written = json.loads(json.dumps(from_model_config(config, dtype="float32", special_ids={"eos": 3})))
    assert to_model_config(written) == config
    old = {name: value for name, value in written.items() if name != "rope_parameters"}
    assert to_model_config(old) == config
    assert written["eos_token_id"] == 3


@pytest.mark.parametrize(
    ("preset", "published"),
    [
        (
            presets.llama_3_1_8b(),
            {
                "model_type": "llama",
                "vocab_size": 128_256,
                "hidden_size": 4096,
                "intermediate_size": 14_336,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "rms_norm_eps": 1e-5,
                "max_position_embeddings": 131_072,
                "rope_theta": 500_000.0,
                "pretraining_tp": 1,
                "rope_scaling": {
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "rope_type": "llama3",
                    "original_max_position_embeddings": 8192,
                },
            },
        ),
        (
            presets.qwen3_0_6b(),
            {
                "model_type": "qwen3",
                "vocab_size": 151_936,
                "hidden_size": 1024,
                "intermediate_size": 3072,
                "num_hidden_layers": 28,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "max_position_embeddings": 40_960,
                "rope_theta": 1_000_000,
                "tie_word_embeddings": True,
                "sliding_window": None,
                "use_sliding_window": False,
                "max_window_layers": 28,
                "rms_norm_eps": 1e-6,
            },
        ),
    ],
    ids=["llama_3_1_8b", "qwen3_0_6b"],
)
def test_presets_are_what_published_files_say(preset: ModelConfig, published: dict[str, Any]) -> None:
    assert to_model_config(published) == preset


def test_a_gemma_without_windows_has_a_width_for_the_mask_that_transformers_makes() -> None:
    shape = {"hidden_dim": 8, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "head_dim": 4, "mlp_dim": 8}
    config = ModelConfig(family="gemma3", vocab_size=16, max_seq_len=32, **shape)
    written = from_model_config(config, dtype="float32", special_ids={})
    assert (written["sliding_window"], set(written["layer_types"])) == (32, {FULL})
    assert to_model_config(written).sliding_window is None


def test_what_a_file_leaves_out_is_what_transformers_takes() -> None:
    config = to_model_config({"model_type": "llama", "num_attention_heads": 16, "num_key_value_heads": None})
    assert (config.head_dim, config.num_kv_heads, config.rope_theta, config.tie_embeddings) == (256, 16, 1e4, False)
    config = to_model_config(GEMMA)
    assert (config.head_dim, config.rope_theta, config.local_rope_theta, config.tie_embeddings) == (256, 1e6, 1e4, True)
    assert (config.sliding_window, config.global_every) == (4096, 6)
    every_third = {"layer_types": [SLIDING, SLIDING, FULL] * 2 + [SLIDING]}
    assert to_model_config(GEMMA | every_third).global_every == 3
    scaled = {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "mscale": 2.0, "mscale_all_dim": 1.0}}
    scaling = to_model_config(LLAMA | scaled).rope_scaling
    assert scaling is not None
    assert scaling.original_max_seq_len == 2048
    assert scaling.attention_factor == pytest.approx(1.13863 / 1.06931, abs=1e-5)


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ({"model_type": "mamba"}, "model_type='mamba'"),
        (LLAMA | {"attention_bias": True}, "attention_bias=True"),
        (LLAMA | {"hidden_act": "gelu"}, "hidden_act='gelu'"),
        (LLAMA | {"quantization_config": {"bits": 4}}, "quantization_config"),
        (LLAMA | {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        (LLAMA | {"sliding_window": 8}, "sliding_window=8"),
        (LLAMA | {"hidden_size": "big"}, "hidden_size='big'"),
        (LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        (LLAMA | {"rope_scaling": {"type": "linear"}}, "without a factor"),
        (LLAMA | {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "truncate": False}}, "truncate"),
        (GEMMA | {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0"),
        (GEMMA | {"layer_types": [FULL, SLIDING] * 3 + [FULL]}, "layer_types"),
        (GEMMA | {"rope_parameters": {SLIDING: {"rope_type": "linear", "factor": 2.0}}}, SLIDING),
        ({"model_type": "qwen3", "use_sliding_window": True}, "layer_types"),
    ],
)
def test_what_would_change_the_result_is_refused_by_name(written: dict[str, Any], named: str) -> None:
    with pytest.raises(HuggingFaceError, match=r"config\.json") as refused:
        to_model_config(written)
    assert named in str(refused.value)


@pytest.mark.parametrize(
    "changes",
    [{"nope_every": 4}, {"rotary_dim": 4}, {"sliding_window": 8}, {"family": "gemma3", "attention_softcap": 5.0}],
    ids=lambda changes: list(changes)[-1],
)
def test_what_a_file_cannot_express_is_refused_by_name(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(to_model_config(LLAMA), **changes)
    with pytest.raises(HuggingFaceError, match=f"ModelConfig.{list(changes)[-1]}"):
        from_model_config(config, dtype="float32", special_ids={})


VALUES = st.sampled_from(
    [
        *(None, True, 0, 1, -1, 2**70, 10**400, 0.5, float("nan"), float("inf"), "", "x", "8", [], [[]], {}, [FULL]),
        *({"rope_type": []}, {"rope_type": "yarn", "mscale": 1, "mscale_all_dim": "x"}, {FULL: 1, SLIDING: []}),
    ]
)


@settings(max_examples=300)
@given(
    st.sampled_from(["llama", "qwen3", "gemma3_text", "gemma3", [], None]),
    st.dictionaries(
        st.sampled_from(
            [
                *DIALECTS["gemma3_text"].defaults,
                *DIALECTS["qwen3"].defaults,
                *("rope_scaling", "rope_parameters", "rope_local_base_freq", "original_max_position_embeddings"),
                *("text_config", "hidden_act"),
            ]
        ),
        VALUES,
        max_size=3,
    ),
)
def test_whatever_a_file_holds_is_read_or_refused(model_type: Any, fields: dict[str, Any]) -> None:
    with suppress(MarinTrainError):
        to_model_config({"num_hidden_layers": 2, **fields, "model_type": model_type})


def test_a_refused_file_is_named(tmp_path: Path) -> None:
    from marin_train.hf import load_hf

    for content in ("", "[]", '{"model_type": 3}'):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(MarinTrainError, match=r"config\.json"):
            load_hf(tmp_path)


@pytest.mark.parametrize("off", [{"layer_types": None}, {"query_pre_attn_scalar": 0}, {"sliding_window": None}])
def test_what_another_family_reads_may_stand_in_a_file_where_it_is_off(off):
    assert to_model_config({"model_type": "llama", **off}) == to_model_config({"model_type": "llama"})
