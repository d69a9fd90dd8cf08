"""Tiny random models of transformers, and its verdict on those that were written for it.

    python transformers_models.py write DIR      models with the logits that transformers gives, a directory each
    python transformers_models.py read DIR       logits of every DIR/*/ours compared with the file beside it

What transformers computes is float32, on inputs that nobody trains on: one id over and over, the first and the last id
in turn, rows longer than a window and than the original context of a scaled rotary embedding. It runs in an environment
of its own (torch is large): ``nox -s peers``; `marin_models` is the other side.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, Gemma3ForConditionalGeneration

SHAPE = {
    "vocab_size": 61,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LONGROPE = {"short_factor": [1.0, 1.1, 1.5, 2.0], "long_factor": [1.0, 2.0, 3.0, 4.0]}
GEMMA = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 8}

CASES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama-tied": {"model_type": "llama", "tie_word_embeddings": True, "num_key_value_heads": 1},
    "llama-llama3": {"model_type": "llama", "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
    "llama-linear": {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 4.0}},
    "llama-yarn": {"model_type": "llama", "rope_scaling": YARN},
    "llama-longrope": {
        "model_type": "llama",
        "rope_scaling": {"rope_type": "longrope", **LONGROPE, "original_max_position_embeddings": 16},
    },
    "llama-half": {"model_type": "llama", "dtype": "float16", "num_key_value_heads": 4},
    "qwen3": {"model_type": "qwen3"},
    "qwen3-tied": {"model_type": "qwen3", "tie_word_embeddings": True, "dtype": "bfloat16"},
    "qwen3-yarn": {"model_type": "qwen3", "rope_scaling": YARN | {"beta_fast": 16.0, "attention_factor": 1.3}},
    "gemma3": {"model_type": "gemma3_text", **GEMMA},
    "gemma3-untied": {"model_type": "gemma3_text", **GEMMA, "tie_word_embeddings": False},
    "gemma3-linear": {
        "model_type": "gemma3_text",
        **GEMMA,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "query_pre_attn_scalar": 5,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "gemma3-capped": {
        "model_type": "gemma3_text",
        **GEMMA,
        "final_logit_softcapping": 3.0,
    },
}
SHARDED = {"llama-half": "6KB"}
TOLERANCE = 1e-4


def inputs(vocab_size: int, length: int = 40) -> torch.Tensor:
    """Int64[5, length]: rows that training data hold, and rows that they do not."""
    drawn = torch.randint(0, vocab_size, (2, length), generator=torch.Generator().manual_seed(1))
    alternating = torch.arange(length) % 2 * (vocab_size - 1)
    constant = torch.full((2, length), vocab_size - 1)
    constant[1] = 3
    return torch.cat([drawn, alternating[None], constant])


def randomise(model: torch.nn.Module) -> None:
    """Weights of a size at which logits are about 1, and gains away from what they start at."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
            else:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)


def logits(directory: Path, ids: torch.Tensor) -> torch.Tensor:
    """What transformers computes in float32 from a directory."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits


def write_reference(directory: Path, vocab_size: int) -> None:
    """``reference.safetensors``: inputs, and transformers' logits of them."""
    ids = inputs(vocab_size)
    save_file({"ids": ids, "logits": logits(directory, ids).contiguous()}, directory / "reference.safetensors")
    versions = {name: version(name) for name in ("transformers", "torch")}
    made = {"made_by": "nox -s peers (tests/peers/transformers_models.py write DIR)", **versions}
    (directory / "versions.json").write_text(json.dumps(made, indent=1) + "\n")


def write(directory: Path) -> None:
    """One directory a case, and one of a model that sees, whose text model is asked for."""
    for name, changes in CASES.items():
        settings = SHAPE | {k: v for k, v in changes.items() if k != "dtype"}
        config = AutoConfig.for_model(settings.pop("model_type"), **settings)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        randomise(model)
        model.to(getattr(torch, changes.get("dtype", "float32")))
        model.save_pretrained(directory / name, max_shard_size=SHARDED.get(name, "1GB"))
        write_reference(directory / name, config.vocab_size)
    text = SHAPE | GEMMA
    vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    vision |= {"image_size": 16, "patch_size": 8}
    config = AutoConfig.for_model("gemma3", text_config=text, vision_config=vision, mm_tokens_per_image=4)
    model = Gemma3ForConditionalGeneration(config)
    randomise(model)
    model.save_pretrained(directory / "gemma3-sees")
    with torch.no_grad():
        ids = inputs(SHAPE["vocab_size"])
        found = model.eval()(input_ids=ids).logits
    save_file({"ids": ids, "logits": found.contiguous()}, directory / "gemma3-sees" / "reference.safetensors")


def read(directory: Path) -> None:
    """Compares logits and the tokenizer's ids.

    Raises:
        AssertionError: transformers finds something else.
    """
    for ours in sorted(directory.glob("*/ours")):
        reference = load_file(ours.parent / "ours.safetensors")
        found = logits(ours, reference["ids"].long())
        assert found.shape == reference["logits"].shape, (found.shape, reference["logits"].shape)
        difference = (found - reference["logits"]).abs().max().item()
        assert difference < TOLERANCE, f"{ours.parent.name}: logits differ by {difference}"
        told = ""
        if (ours / "tokenizer.json").is_file():
            expected = json.loads((ours.parent / "tokens.json").read_text())
            tokenizer = AutoTokenizer.from_pretrained(ours)
            assert tokenizer(expected["text"], add_special_tokens=False).input_ids == expected["ids"]
            assert tokenizer.eos_token_id == expected["eos"], tokenizer.eos_token_id
            told = ", tokenizer equal"
        print(f"transformers reads {ours.parent.name}: logits within {difference:.1e} of {found.abs().max():.1f}{told}")


if __name__ == "__main__":
    print(f"transformers {version('transformers')}, torch {version('torch')}")
    {"write": write, "read": read}[sys.argv[1]](Path(sys.argv[2]))
