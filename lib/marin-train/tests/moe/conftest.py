"""A finished run of a model with experts, for all that looks at routing."""

from collections.abc import Callable
from pathlib import Path

import pytest

from marin_train.configs import ModelConfig, MoEConfig, TrainConfig

MIXTURE = ModelConfig(
    family="qwen3_moe",
    vocab_size=64,
    hidden_dim=16,
    num_layers=3,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    mlp_dim=0,
    max_seq_len=32,
    moe=MoEConfig(num_experts=8, top_k=2, expert_dim=8),
)


@pytest.fixture(scope="session")
def mixture_config(tiny_config: Callable[..., TrainConfig]) -> TrainConfig:
    """A run of 12 steps of a model whose 3 layers have 8 experts, 2 of which see a token."""
    return tiny_config(model=MIXTURE, log_every=5, checkpoint_steps=0)


@pytest.fixture(scope="session")
def mixture_run(mixture_config: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of that run, finished; not to be changed."""
    from marin_train.loop import train

    return train(mixture_config, tmp_path_factory.mktemp("runs") / "mixture").out_dir
