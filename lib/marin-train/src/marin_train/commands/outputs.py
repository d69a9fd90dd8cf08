"""``generate`` and ``export``: what a trained model is good for, as text and as a directory for others."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from marin_train.commands.console import Checkpoint, print_result


def generate(
    checkpoint: Checkpoint,
    prompt: Annotated[str, tyro.conf.arg(metavar="PROMPT")],
    /,
    *,
    max_new_tokens: int = 128,
    temperature: float = 0.8,
    top_p: float = 0.95,
    seed: int = 0,
    num_samples: int = 1,
    json: bool = False,
) -> None:
    """Continue a prompt.

    Example: marin-train generate runs/nano "import os" --temperature 0.5

    Args:
        checkpoint: a checkpoint, or a run's directory, whose newest one is taken.
        prompt: the beginning; "" asks for a document from its start.
        max_new_tokens: tokens at most.
        temperature: 0 takes the likeliest token; 1 draws from the model's distribution.
        top_p: draw only from the likeliest tokens whose probabilities sum to this.
        seed: of the draws.
        num_samples: continuations to draw.
        json: print prompt and continuations as JSON.
    """
    from marin_train.errors import ConfigError
    from marin_train.generation import generate

    if num_samples < 1:
        raise ConfigError(f"--num-samples {num_samples}: must be positive")
    texts = generate(
        checkpoint,
        [prompt] * num_samples,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
    )
    if json:
        print_result({"prompt": prompt, "continuations": texts})
    else:
        print_result("\n---\n".join(prompt + text for text in texts))


def export(
    checkpoint: Checkpoint,
    /,
    *,
    hf: Path,
    dtype: Literal["float32", "bfloat16"] = "float32",
    overwrite: bool = False,
    json: bool = False,
) -> None:
    """Write a checkpoint as a Hugging Face directory: config.json, safetensors and tokenizer.

    Example: marin-train export runs/nano --hf exported/nano

    Args:
        checkpoint: a checkpoint, or a run's directory, whose newest one is taken.
        hf: the directory to write.
        dtype: of the tensors; float32 loses nothing.
        overwrite: replace the directory where it is there already, if it holds an exported model and nothing else.
        json: print the directory as JSON.
    """
    from marin_train.hf import export_hf

    path = export_hf(checkpoint, hf, dtype=dtype, overwrite=overwrite)
    print_result({"path": str(path)} if json else str(path))
