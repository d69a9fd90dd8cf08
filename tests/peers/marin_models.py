"""The models of `transformers_models` read here, and ours written for it.

    python marin_models.py DIR

Every DIR/CASE that transformers wrote is loaded, its logits are compared with those of transformers, and it is written
again as DIR/CASE/ours, in several files where it came in several, with our logits beside it. Models with padded
vocabularies, drawn here, join them, and one that was trained here, by way of ``marin-train export``.
"""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from marin_train import Component, DataConfig, ModelConfig, RopeScaling, TrainConfig, models, train
from marin_train.checkpoints import load_model
from marin_train.configs import MoEConfig
from marin_train.hf import load_hf, save_hf
from marin_train.models import decoder
from marin_train.parameters import init_model
from marin_train.policy import Policy
from marin_zephyr.tokens import byte_tokenizer, tokenize

TOLERANCE = 1e-4
KEPT = 12
SHAPE = {"hidden_dim": 16, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "mlp_dim": 24}
DRAWN = {
    "drawn-llama": ModelConfig(vocab_size=259, max_seq_len=64, vocab_multiple=128, **SHAPE),
    "drawn-qwen3": ModelConfig(
        family="qwen3",
        vocab_size=131,
        max_seq_len=64,
        vocab_multiple=64,
        tie_embeddings=True,
        rope_scaling=RopeScaling(kind="yarn", factor=4.0, original_max_seq_len=16),
        **SHAPE,
    ),
    "drawn-gemma3": ModelConfig(
        family="gemma3",
        vocab_size=67,
        max_seq_len=64,
        vocab_multiple=16,
        tie_embeddings=True,
        sliding_window=8,
        global_every=2,
        local_rope_theta=10_000.0,
        rope_scaling=RopeScaling(kind="linear", factor=8.0),
        **SHAPE,
    ),
    "drawn-mixtral": ModelConfig(
        family="mixtral",
        vocab_size=71,
        max_seq_len=64,
        vocab_multiple=16,
        moe=MoEConfig(num_experts=6, top_k=3, expert_dim=20, balance="none"),
        **SHAPE | {"mlp_dim": 0, "head_dim": 4},
    ),
    "drawn-qwen3-moe": ModelConfig(
        family="qwen3_moe",
        vocab_size=73,
        max_seq_len=64,
        vocab_multiple=16,
        moe=MoEConfig(num_experts=5, top_k=2, expert_dim=20, num_dense_layers=1, renormalise=False, balance="switch"),
        **SHAPE,
    ),
}


def logits(model: Any, ids: np.ndarray, config: ModelConfig) -> np.ndarray:
    """Float32[batch, KEPT, vocab]: of the last positions, without the vocabulary's padding."""
    policy = Policy()

    @jax.jit
    def compute(model: Any, ids: Any) -> Any:
        hidden = decoder.forward(model, ids, config=config, policy=policy)
        return decoder.logits(hidden, models.family(config).head(model), config=config, policy=policy)

    return np.ascontiguousarray(compute(model, jnp.asarray(ids, jnp.int32))[:, -KEPT:, : config.vocab_size])


def read(directory: Path) -> None:
    """Loads one of transformers' models with a padded vocabulary, compares logits, and writes it again.

    Raises:
        AssertionError: the logits, or the tensors that are written again, differ.
    """
    reference = load_file(directory / "reference.safetensors")
    loaded = load_hf(directory, vocab_multiple=16)
    found = logits(loaded.model, reference["ids"], loaded.config)
    difference = float(np.abs(found - reference["logits"]).max())
    assert difference < TOLERANCE, f"{directory.name}: logits differ by {difference}"
    parts = len(list(directory.glob("model*.safetensors")))
    shard_bytes = 6_000 if parts > 1 else 10**9
    save_hf(
        directory / "ours",
        loaded.model,
        config=loaded.config,
        tokenizer=loaded.tokenizer,
        special_ids=loaded.special_ids,
        shard_bytes=shard_bytes,
    )
    save_file({"ids": reference["ids"], "logits": found}, directory / "ours.safetensors")
    size = np.abs(found).max()
    print(f"marin-train reads {directory.name}: logits within {difference:.1e} of {size:.1f}, {parts} files")


def draw(directory: Path, config: ModelConfig) -> None:
    """Writes a model that was drawn here, with ids that lie at both ends of its vocabulary."""
    family = models.family(config)
    model = init_model(family.Model, family.parameter_table(config), seed=0)
    ids = np.random.default_rng(0).integers(0, config.vocab_size, (3, 40))
    ids[1], ids[2, ::2] = config.vocab_size - 1, 0
    save_hf(directory / "ours", model, config=config)
    save_file({"ids": ids, "logits": logits(model, ids, config)}, directory / "ours.safetensors")


def export(directory: Path) -> None:
    """Trains a model of bytes for a few steps and has the command write it, its tokenizer included."""
    directory.mkdir(exist_ok=True)
    text = "The quick brown fox jumps over the lazy dog, naïvely. " * 40
    documents = directory / "documents.jsonl"
    documents.write_text("".join(json.dumps({"text": text}) + "\n" for _ in range(20)))
    store = directory / "store"
    tokenize(documents, store, tokenizer=byte_tokenizer())
    manifest = json.loads((store / "manifest.json").read_text())
    model = ModelConfig(vocab_size=manifest["vocab_size"], max_seq_len=64, vocab_multiple=128, **SHAPE)
    data = DataConfig(components=(Component(name="all", path=str(store)),), seq_len=32)
    train(TrainConfig(model=model, data=data, steps=5, batch_size=4, policy=Policy().name), directory / "run")
    command = [sys.executable, "-m", "marin_train.cli", "export", str(directory / "run"), "--hf"]
    subprocess.run([*command, str(directory / "ours")], check=True)
    trained = load_model(directory / "run")
    ids = np.random.default_rng(0).integers(0, model.vocab_size, (3, 40))
    save_file({"ids": ids, "logits": logits(trained.model, ids, model)}, directory / "ours.safetensors")
    text = "A <strange> line\n\twith ünïcode 語."
    found = Tokenizer.from_file(str(trained.tokenizer_file)).encode(text, add_special_tokens=False).ids
    told = {"text": text, "ids": found, "eos": trained.special_ids["eos"]}
    (directory / "tokens.json").write_text(json.dumps(told))


def main(directory: Path) -> None:
    """All of them."""
    for path in sorted(directory.glob("*/reference.safetensors")):
        read(path.parent)
    for name, config in DRAWN.items():
        draw(directory / name, config)
    export(directory / "trained-llama")


if __name__ == "__main__":
    print(f"marin-train {version('marin-train')}, jax {jax.__version__}")
    main(Path(sys.argv[1]))
