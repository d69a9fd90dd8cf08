"""Our step. Usage: training_ours.py SHAPE TOKENS WEIGHTS POLICY; writes its first weights to WEIGHTS where absent."""

# ruff: noqa: E402 (what importing takes is measured)

import sys
import time
from pathlib import Path
from typing import Any

from training import BETA2, CLIP, EPS, LEARNING_RATE, WEIGHT_DECAY, Shape, read_shape, serve

started = time.perf_counter()
import jax
import jax.numpy as jnp
import numpy as np

from marin_train import Component, DataConfig, ModelConfig, OptimizerConfig, ScheduleConfig, TrainConfig
from marin_train.checkpoints import named_leaves
from marin_train.losses import BLOCK_TOKENS, Batch
from marin_train.measurements import measure
from marin_train.mesh import make_mesh
from marin_train.policy import Policy
from marin_train.train_step import init_state, make_train_step

imports = time.perf_counter() - started


def make_config(shape: Shape, policy: str) -> TrainConfig:
    model = ModelConfig(
        vocab_size=shape.vocab, hidden_dim=shape.hidden, num_layers=shape.layers, num_heads=shape.heads,
        num_kv_heads=shape.heads, head_dim=shape.head_dim, mlp_dim=shape.mlp, max_seq_len=shape.seq_len,
        rope_theta=10_000.0, norm_eps=EPS,
    )  # fmt: skip
    return TrainConfig(
        model=model,
        data=DataConfig(components=(Component(name="stdlib", path="none"),), seq_len=shape.seq_len),
        steps=1000,
        batch_size=shape.batch,
        optimizer=OptimizerConfig(learning_rate=LEARNING_RATE, beta2=BETA2, weight_decay=WEIGHT_DECAY, clip_norm=CLIP),
        schedule=ScheduleConfig(warmup=0.0, decay=0.0),
        policy=policy,
    )


def analytic_mb(shape: Shape, policy: Policy, *, num_params: int) -> float:
    """What a step has to hold at its fullest, each array counted once, in MB.

    Parameters, two moments and gradients, float32. Of each layer, what the backward pass wants: its input where layers
    are recomputed; else the residual stream twice, each norm's output, queries, keys, values and mixed values, and the
    feed-forward width three times; and that once more while one is recomputed. A block's logits and their gradient,
    and the hidden states' gradient. Operands are kept as rounded.
    """
    tokens, narrow = shape.batch * shape.seq_len, 2 if policy.operands == "bfloat16" else 4
    layer = tokens * (2 * 4 * shape.hidden + 6 * narrow * shape.hidden + (2 * 4 + narrow) * shape.mlp)
    kept = shape.layers * layer if policy.remat == "keep" else shape.layers * 4 * tokens * shape.hidden + layer
    logits = 2 * 4 * BLOCK_TOKENS["cpu"] * shape.vocab
    return (16 * num_params + kept + logits + 4 * tokens * shape.hidden) / 2**20


def main() -> None:
    shape, tokens = read_shape()
    config, weights = make_config(shape, sys.argv[4]), Path(sys.argv[3])
    begun = time.perf_counter()
    policy, mesh = measure(config).policy, make_mesh(config.mesh)
    chosen = time.perf_counter() - begun
    state: Any = init_state(config, mesh=mesh)
    if not weights.exists():
        leaves: dict[str, Any] = {name: np.asarray(leaf) for name, leaf in named_leaves(state.model).items()}
        np.savez(weights, **leaves)
    mask = jnp.ones((shape.batch, shape.seq_len), bool)
    first = Batch(tokens=jnp.asarray(tokens[0]), loss_mask=mask)
    update = make_train_step(config, policy=policy, mesh=mesh)
    begun = time.perf_counter()
    program = update.lower(state, first).compile()  # type: ignore[attr-defined]
    compiled = time.perf_counter() - begun
    found = program.memory_analysis()
    held = found.argument_size_in_bytes + found.temp_size_in_bytes
    held += found.output_size_in_bytes - found.alias_size_in_bytes
    num_params = sum(leaf.size for leaf in jax.tree.leaves(state.model))

    def step(batch: np.ndarray) -> float:
        nonlocal state
        state, metrics = program(state, Batch(tokens=jnp.asarray(batch), loss_mask=mask))
        return float(metrics["loss"])

    serve(
        step, tokens, imports=imports, choice=chosen, compile=compiled, policy=policy.name, num_params=num_params,
        step_mb=held / 2**20, analytic_mb=analytic_mb(shape, policy, num_params=num_params),
    )  # fmt: skip


if __name__ == "__main__":
    main()
