"""One GPU's training step in bfloat16, and how much of the machine it uses: 1B dense or active parameters.

    python bench/train_gpu.py                    Llama 3.2's 1B at sequence 4096, the policies that may win, one by one
    python bench/train_gpu.py --model moe        4.5B parameters in 32 experts a layer, of which 4 see a token
    python bench/train_gpu.py --batch-size 8 --policies mixed-dot_product-named-scan
    python bench/train_gpu.py --tiny             a shape for any machine, to see that it runs

Needs jax with CUDA, and this package's dependencies; without an installation, ``PYTHONPATH=lib/marin-train/src``.
Utilisation is of `--peak-tflops`, by default the 989.5 of an H100 or H200 without sparsity, and is told both ways:
counting the scores of visible pairs alone, and all. A policy that does not fit or cannot run is told of as such.
"""

import argparse
import dataclasses
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

# Before jax is imported: what it does not reserve, nothing else here would use.
os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.94")

import jax
import jax.numpy as jnp

from marin_train import Component, DataConfig, TrainConfig, presets
from marin_train.configs import ModelConfig, MoEConfig
from marin_train.flops import flops_per_token, num_params
from marin_train.losses import Batch
from marin_train.mesh import make_mesh
from marin_train.policy import by_name
from marin_train.train_step import init_state, make_train_step

POLICIES = {
    "dense": (
        "mixed-dot_product-full-scan",
        "mixed-dot_product-named-scan",
        "mixed-dot_product-dots-scan",
        "mixed-dot_product-named-unroll",
        "mixed-dot_product-keep-scan",
        "bfloat16-dot_product-full-scan",
    ),
    "moe": (
        "mixed-dot_product-full-scan-ragged",
        "mixed-dot_product-named-scan-ragged",
        "mixed-dot_product-full-scan",
        "mixed-dot_product-named-scan",
    ),
}


def mixture() -> ModelConfig:
    """About 1B active parameters, embeddings included, in the manner of Qwen3-MoE."""
    return ModelConfig(
        family="qwen3_moe",
        vocab_size=128_256,
        hidden_dim=2048,
        num_layers=16,
        num_heads=32,
        num_kv_heads=8,
        head_dim=64,
        mlp_dim=0,
        max_seq_len=131_072,
        tie_embeddings=True,
        moe=MoEConfig(num_experts=32, top_k=4, expert_dim=1280),
    )


def step_seconds(config: TrainConfig, policy: str, *, num_steps: int) -> Iterator[float]:
    """What the first step took, with compiling, and then the others; the loss has to be a number."""
    mesh = make_mesh(config.mesh)
    state = init_state(config, mesh=mesh)
    update = make_train_step(config, policy=by_name(policy), mesh=mesh)
    shape = (config.batch_size, config.data.seq_len)
    tokens = jax.random.randint(jax.random.key(0), (shape[0], shape[1] + 1), 0, config.model.vocab_size)
    batch = Batch(tokens=tokens, loss_mask=jnp.ones(shape, bool))
    for _ in range(num_steps + 1):
        start = time.perf_counter()
        state, metrics = update(state, batch)
        loss = float(metrics["loss"])
        yield time.perf_counter() - start
        if loss != loss:
            raise FloatingPointError("the loss is not a number")


def measure(config: TrainConfig, policy: str, *, num_steps: int, peak: float) -> str:
    """The row of one policy."""
    try:
        compiled, *seconds = step_seconds(config, policy, num_steps=num_steps)
    except (RuntimeError, ValueError, FloatingPointError) as error:
        return f"{(str(error).splitlines() or [repr(error)])[0][:80]}"
    middle = statistics.median(seconds)
    rate = config.batch_size * config.data.seq_len / middle
    causal, full = (
        flops_per_token(config.model, seq_len=config.data.seq_len, causal=causal) * rate / peak
        for causal in (True, False)
    )
    held = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0) / 2**30
    times = f"{1e3 * middle:>10.1f}{1e3 * min(seconds):>9.1f}{1e3 * max(seconds):>9.1f}"
    return f"{times}{rate:>11,.0f}{causal:>9.1%}{full:>9.1%}{held:>9.1f}{compiled:>9.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--model", choices=POLICIES, default="dense")
    parser.add_argument("--policies", nargs="+", help="by default those that may win")
    parser.add_argument("--peak-tflops", type=float, default=989.5)
    parser.add_argument("--tiny", action="store_true", help="a shape for any machine")
    parser.add_argument("--row", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    policies = options.policies or POLICIES[options.model]
    if len(policies) > 1:
        # A process each: the peak of a device's memory is that of its process, and is never reset.
        for number, policy in enumerate(policies):
            rows = ["--row"] if number else []
            subprocess.run([sys.executable, *sys.argv, "--policies", policy, *rows], check=True)
        return
    model = presets.llama_3_2_1b() if options.model == "dense" else mixture()
    seq_len, batch_size = options.seq_len, options.batch_size
    if options.tiny:
        narrow: dict[str, Any] = (
            {"mlp_dim": 128} if model.moe is None else {"moe": dataclasses.replace(model.moe, expert_dim=32)}
        )
        model = dataclasses.replace(
            model, vocab_size=512, hidden_dim=64, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, **narrow
        )
        seq_len, batch_size = 64, 2
    data = DataConfig(components=(Component(name="random", path="none"),), seq_len=seq_len)
    config = TrainConfig(model=model, data=data, steps=1000, batch_size=batch_size)
    if not options.row:
        show_head(config)
    (policy,) = policies
    row = measure(config, policy, num_steps=options.steps, peak=1e12 * options.peak_tflops)
    print(f"{policy:<36}{row}", flush=True)


def show_head(config: TrainConfig) -> None:
    """The machine and the run, and the names of the columns."""
    device, model = jax.devices()[0], config.model
    batch_size, seq_len = config.batch_size, config.data.seq_len
    print(f"jax {jax.__version__}, {device.device_kind}; {num_params(model):,} parameters; {batch_size} x {seq_len}")
    print(f"{'policy':<36}{'median ms':>10}{'min':>9}{'max':>9}{'tokens/s':>11}{'causal':>9}{'full':>9}", end="")
    print(f"{'peak GiB':>9}{'first s':>9}", flush=True)


if __name__ == "__main__":
    main()
