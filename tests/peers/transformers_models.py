"""Tiny random models of transformers, and its verdict on those that were written for it.

    python transformers_models.py write DIR      models with the logits that transformers gives, a directory each
    python transformers_models.py fixtures DIR   those of them that marin-train's own tests read (tests/hf/fixtures)
    python transformers_models.py read DIR       logits of every DIR/*/ours compared with the file beside it

What transformers computes is float32, on inputs that nobody trains on: one id over and over, the first and the last id
in turn, rows longer than a window and than the original context of a scaled rotary embedding. It runs in an environment
of its own (torch is large): ``nox -s peers``; `marin_models` is the other side.
"""

import json
import sys
from collections.abc import Iterable
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

EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}

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
    "llama-half": {
        "model_type": "llama",
        "dtype": "float16",
        "num_key_value_heads": 4,
        "rope_scaling": {"rope_type": "llama3", **LLAMA3},
    },
    "qwen3": {"model_type": "qwen3"},
    "qwen3-tied": {"model_type": "qwen3", "tie_word_embeddings": True, "dtype": "bfloat16"},
    "qwen3-yarn": {"model_type": "qwen3", "rope_scaling": YARN | {"beta_fast": 16.0, "attention_factor": 1.3}},
    "mixtral": {"model_type": "mixtral", **EXPERTS, "head_dim": 4},
    "qwen3-moe": {"model_type": "qwen3_moe", **EXPERTS, "moe_intermediate_size": 12, "norm_topk_prob": True},
    "qwen3-moe-dense": {
        "model_type": "qwen3_moe",
        **EXPERTS,
        "moe_intermediate_size": 12,
        "dtype": "bfloat16",
        "num_hidden_layers": 3,
        "mlp_only_layers": [0],
        "num_experts_per_tok": 3,
    },
    "gemma3": {"model_type": "gemma3_text", **GEMMA},
    "gemma3-untied": {"model_type": "gemma3_text", **GEMMA, "tie_word_embeddings": False},
    "gemma3-linear": {
        "model_type": "gemma3_text",
        **GEMMA,
        "dtype": "bfloat16",
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
FIXTURES = ("llama-half", "qwen3-tied", "gemma3-linear", "mixtral", "qwen3-moe-dense")
KEPT = 12
"""Logits are kept of so many last positions, which see all before."""
TOLERANCE = 1e-4


def inputs(vocab_size: int, length: int = 40) -> torch.Tensor:
    """Int64[3, length]: a row such as training data hold, and rows that they do not."""
    drawn = torch.randint(0, vocab_size, (length,), generator=torch.Generator().manual_seed(1))
    alternating = torch.arange(length) % 2 * (vocab_size - 1)
    return torch.stack([drawn, alternating, torch.full((length,), vocab_size - 1)])


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
    """What transformers computes in float32 from a directory, at the last positions."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits[:, -KEPT:].contiguous()


def write_fixtures(directory: Path) -> None:
    """What marin-train's own tests read, with the versions that made it and the command that makes it again."""
    write_cases(directory, FIXTURES)
    command = "python tests/peers/transformers_models.py fixtures lib/marin-train/tests/hf/fixtures"
    made = {"command": command, **{name: version(name) for name in ("transformers", "torch")}}
    (directory / "made_by.json").write_text(json.dumps(made, indent=1) + "\n")


def write_cases(directory: Path, names: Iterable[str]) -> None:
    """One directory a case: the model, and in ``reference.safetensors`` inputs and logits."""
    for name in names:
        changes = CASES[name]
        settings = SHAPE | {k: v for k, v in changes.items() if k != "dtype"}
        config = AutoConfig.for_model(settings.pop("model_type"), **settings)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        randomise(model)
        model.to(getattr(torch, changes.get("dtype", "float32")))
        model.save_pretrained(directory / name, max_shard_size=SHARDED.get(name, "1GB"))
        ids = inputs(config.vocab_size)
        reference = {"ids": ids, "logits": logits(directory / name, ids)}
        save_file(reference, directory / name / "reference.safetensors")


def write(directory: Path) -> None:
    """All cases, and a model that sees, whose text model is asked for."""
    write_cases(directory, CASES)
    text = SHAPE | GEMMA
    vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    vision |= {"image_size": 16, "patch_size": 8}
    config = AutoConfig.for_model("gemma3", text_config=text, vision_config=vision, mm_tokens_per_image=4)
    model = Gemma3ForConditionalGeneration(config)
    randomise(model)
    model.save_pretrained(directory / "gemma3-sees")
    with torch.no_grad():
        ids = inputs(SHAPE["vocab_size"])
        found = model.eval()(input_ids=ids).logits[:, -KEPT:].contiguous()
    save_file({"ids": ids, "logits": found}, directory / "gemma3-sees" / "reference.safetensors")


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
    {"write": write, "fixtures": write_fixtures, "read": read}[sys.argv[1]](Path(sys.argv[2]))
