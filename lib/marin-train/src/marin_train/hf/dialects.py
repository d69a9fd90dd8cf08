"""How transformers' families spell a ``config.json``: names, defaults, and the fields that may have one value alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from marin_train.errors import HuggingFaceError

FULL, SLIDING = "full_attention", "sliding_attention"
"""What a layer sees, in ``layer_types`` and in ``rope_parameters``."""


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How one family spells its configuration.

    Args:
        family: its name here.
        architecture: the class of transformers that scores tokens with it.
        defaults: field -> what transformers takes where a file leaves it out.
        settled: field -> the one value that it may have; also what it is where a file leaves it out.
        local_theta: base of the local layers' rotary embedding where a file leaves it out; None where all have one.
        free_head_dim: whether transformers takes a width that is no multiple of the number of heads.
        expert_width: the field of an expert's width, in a family that has experts.
    """

    family: str
    architecture: str
    defaults: Mapping[str, Any]
    settled: Mapping[str, Any] = field(default_factory=dict)
    local_theta: float | None = None
    free_head_dim: bool = False
    expert_width: str | None = None


SHAPE = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_dim",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "intermediate_size": "mlp_dim",
    "max_position_embeddings": "max_seq_len",
    "rms_norm_eps": "norm_eps",
    "tie_word_embeddings": "tie_embeddings",
    "rope_theta": "rope_theta",
}
"""Their name -> ours, in every dialect."""


def _shape(*values: Any) -> dict[str, Any]:
    return dict(zip(SHAPE, values, strict=True))


DIALECTS = {
    "llama": Dialect(
        family="llama",
        architecture="LlamaForCausalLM",
        defaults=_shape(32_000, 4096, 32, 32, None, None, 11_008, 2048, 1e-6, False, 10_000.0),
        settled={"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
    ),
    "qwen3": Dialect(
        family="qwen3",
        architecture="Qwen3ForCausalLM",
        defaults=_shape(151_936, 4096, 32, 32, 32, 128, 22_016, 32_768, 1e-6, False, 10_000.0)
        | {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28, "layer_types": None},
        settled={"hidden_act": "silu", "attention_bias": False},
        free_head_dim=True,
    ),
    "mixtral": Dialect(
        family="mixtral",
        architecture="MixtralForCausalLM",
        defaults=_shape(32_000, 4096, 32, 32, 8, None, 14_336, 131_072, 1e-5, False, 1_000_000.0)
        | {"num_local_experts": 8, "num_experts_per_tok": 2},
        settled={"hidden_act": "silu", "sliding_window": None},
        expert_width="intermediate_size",
    ),
    "qwen3_moe": Dialect(
        family="qwen3_moe",
        architecture="Qwen3MoeForCausalLM",
        defaults=_shape(151_936, 2048, 24, 32, 4, None, 6144, 32_768, 1e-6, False, 10_000.0)
        | {"num_experts": None, "num_local_experts": None, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
        | {"norm_topk_prob": False, "mlp_only_layers": [], "decoder_sparse_step": 1}
        | {"sliding_window": None, "max_window_layers": 28},
        settled={"hidden_act": "silu", "attention_bias": False, "use_sliding_window": False},
        free_head_dim=True,
        expert_width="moe_intermediate_size",
    ),
    "gemma3_text": Dialect(
        family="gemma3",
        architecture="Gemma3ForCausalLM",
        defaults=_shape(262_208, 2304, 26, 8, 4, 256, 9216, 131_072, 1e-6, True, 1_000_000.0)
        | {"sliding_window": 4096, "sliding_window_pattern": 6, "layer_types": None, "query_pre_attn_scalar": 256}
        | {"final_logit_softcapping": None},
        settled={
            "hidden_activation": "gelu_pytorch_tanh",
            "attention_bias": False,
            "use_bidirectional_attention": False,
        },
        local_theta=10_000.0,
    ),
}
"""By ``model_type``."""

WITHOUT_EFFECT = frozenset(
    (
        *("model_type", "architectures", "_name_or_path", "transformers_version", "torch_dtype", "dtype"),
        *("use_cache", "cache_implementation", "initializer_range", "attention_dropout", "pretraining_tp"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "id2label", "label2id", "return_dict"),
        *("max_length", "length_penalty", "num_beams", "num_beam_groups", "num_return_sequences", "repetition_penalty"),
        *("temperature", "top_k", "top_p", "typical_p", "_sliding_window_pattern"),
        *("router_aux_loss_coef", "output_router_logits", "router_jitter_noise"),
    )
)
"""They name, start or sample a model, and change no logit."""


def text_config(written: Mapping[str, Any], *, where: str = "config.json") -> Mapping[str, Any]:
    """The part of a configuration that concerns text: all of it, but of a model that sees, too.

    Raises:
        HuggingFaceError: that part is not fields and values.
    """
    if written.get("model_type") != "gemma3":
        return written
    shared = ("bos_token_id", "eos_token_id", "tie_word_embeddings")
    shared_values = {name: written[name] for name in shared if name in written}
    text = written.get("text_config") or {}
    if not isinstance(text, Mapping):
        raise HuggingFaceError(f"{where}: text_config={text!r} must be fields and values")
    return {"model_type": "gemma3_text", **shared_values, **text}
