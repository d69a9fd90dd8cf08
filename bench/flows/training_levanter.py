"""Levanter's own trainer in fp32, drawn by itself. Usage: training_levanter.py SHAPE TOKENS SCRATCH.

Its sequences are a token shorter than the others': it takes the targets from the inputs.
"""

# ruff: noqa: E402 (what importing takes is measured)

import logging
import os
import sys
import time
from typing import Any

from training import BETA2, CLIP, LEARNING_RATE, WEIGHT_DECAY, read_shape, serve

started = time.perf_counter()
import haliax as hax  # type: ignore[import-not-found]
import jax
import jax.numpy as jnp
import jmp  # type: ignore[import-not-found]
import numpy as np
from levanter.checkpoint import CheckpointerConfig  # type: ignore[import-not-found]
from levanter.layers.attention import AttentionMask  # type: ignore[import-not-found]
from levanter.models.llama import LlamaConfig  # type: ignore[import-not-found]
from levanter.models.lm_model import LmExample  # type: ignore[import-not-found]
from levanter.optim.config import AdamConfig  # type: ignore[import-not-found]
from levanter.tracker import NoopConfig  # type: ignore[import-not-found]
from levanter.trainer import Trainer, TrainerConfig  # type: ignore[import-not-found]

imports = time.perf_counter() - started


def main() -> None:
    logging.basicConfig(level=logging.ERROR)
    shape, tokens = read_shape()
    model = LlamaConfig(
        max_seq_len=shape.seq_len, hidden_dim=shape.hidden, intermediate_dim=shape.mlp, num_layers=shape.layers,
        num_heads=shape.heads, num_kv_heads=shape.heads,
    )  # fmt: skip
    trainer = TrainerConfig(
        train_batch_size=shape.batch, num_train_steps=1000, require_accelerator=False, tracker=NoopConfig(),
        mp=jmp.get_policy("f32"), log_jaxprs=False, log_xla_hlo=False, log_dir=f"{sys.argv[3]}/logs", id="bench",
        checkpointer=CheckpointerConfig(base_path=f"{sys.argv[3]}/checkpoints"),
    )  # fmt: skip
    trainer.initialize()
    optimizer = AdamConfig(
        learning_rate=LEARNING_RATE, lr_schedule="constant", warmup=0, beta2=BETA2, weight_decay=WEIGHT_DECAY,
        max_grad_norm=CLIP,
    ).build(1000)  # fmt: skip

    def cost(model: Any, example: Any, *, key: Any = None) -> Any:
        return model.compute_next_token_loss(example, key=key)

    with Trainer(trainer, optimizer, cost, add_default_hooks=False) as run:
        state = run.initial_state(
            jax.random.PRNGKey(0), model_init=lambda: model.build(hax.Axis("vocab", shape.vocab), key=jax.random.key(1))
        )
        axes = run.TrainBatch, model.max_Pos
        weight = hax.named(jnp.ones((shape.batch, shape.seq_len)).at[:, -1].set(0.0), axes)

        def step(batch: np.ndarray) -> float:
            nonlocal state
            ids = hax.named(jnp.asarray(batch[:, :-1]), axes)
            info = run.train_step(state, LmExample(tokens=ids, loss_weight=weight, attn_mask=AttentionMask.causal()))
            state = info.state
            return float(info.loss)

        serve(step, tokens, imports=imports)
    os._exit(0)


if __name__ == "__main__":
    main()
