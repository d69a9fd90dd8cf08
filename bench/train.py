"""One training step, against a plain hand-written one: the same Llama shape, batch and optimizer, interleaved.

    uv run bench/train.py                 the shape of the quickstart's model at sequence 512, batch 8
    uv run bench/train.py --seq-len 256   as the quickstart trains it

The peer is what one writes in an afternoon: fp32, no blocks, whole logits, optax's AdamW. Rows: median and range of a
step over the rounds, its ratio to the peer's median in the same run, and what compiling took.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from marin_train import Component, DataConfig, ModelConfig, TrainConfig, presets
from marin_train.mesh import make_mesh
from marin_train.policy import by_name
from marin_train.train_step import Batch, init_state, make_train_step

POLICIES = ("float32-blocked-keep-unroll", "bfloat16-blocked-keep-unroll", "bfloat16-blocked-full-scan")


def plain_parameters(model: ModelConfig) -> dict:
    """Weights of the peer: a dict, layers in a list."""
    keys = iter(jax.random.split(jax.random.key(0), 8 * model.num_layers + 2))
    width, inner = model.hidden_dim, model.num_heads * model.head_dim

    def draw(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape) * shape[0] ** -0.5

    layers = [
        {
            "norm1": jnp.ones(width), "norm2": jnp.ones(width),
            "q": draw(width, inner), "k": draw(width, inner), "v": draw(width, inner), "o": draw(inner, width),
            "gate": draw(width, model.mlp_dim), "up": draw(width, model.mlp_dim), "down": draw(model.mlp_dim, width),
        }
        for _ in range(model.num_layers)
    ]  # fmt: skip
    return {
        "embed": draw(model.vocab_size, width), "layers": layers, "norm": jnp.ones(width),
        "head": draw(width, model.vocab_size),
    }  # fmt: skip


def plain_loss(parameters: dict, tokens: jax.Array, model: ModelConfig) -> jax.Array:
    """Mean cross-entropy, written straight down."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    seq_len, half = inputs.shape[1], model.head_dim // 2
    angles = jnp.arange(seq_len)[:, None] * model.rope_theta ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]

    def norm(x: jax.Array, gain: jax.Array) -> jax.Array:
        return gain * x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + model.norm_eps)

    def turn(x: jax.Array) -> jax.Array:
        a, b = x[..., :half], x[..., half:]
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    x = parameters["embed"][inputs]
    visible = jnp.tril(jnp.ones((seq_len, seq_len), bool))
    for layer in parameters["layers"]:
        y = norm(x, layer["norm1"])
        q, k, v = (jnp.reshape(y @ layer[n], (*y.shape[:2], model.num_heads, model.head_dim)) for n in "qkv")
        scores = jnp.einsum("bqhd,bkhd->bhqk", turn(q), turn(k)) * model.head_dim**-0.5
        weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), -1)
        x = x + jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(*y.shape[:2], -1) @ layer["o"]
        y = norm(x, layer["norm2"])
        x = x + (jax.nn.silu(y @ layer["gate"]) * (y @ layer["up"])) @ layer["down"]
    logits = norm(x, parameters["norm"]) @ parameters["head"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def plain_step(model: ModelConfig, tokens: jax.Array) -> Callable[[], float]:
    """The peer's step as a call that returns its loss."""
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-3, b2=0.95, weight_decay=0.1))

    @jax.jit
    def update(parameters: Any, state: optax.OptState) -> tuple[Any, optax.OptState, jax.Array]:
        loss, gradients = jax.value_and_grad(plain_loss)(parameters, tokens, model)
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state, loss

    held: list = [plain_parameters(model)]
    held.append(optimizer.init(held[0]))

    def step() -> float:
        held[0], held[1], loss = update(*held)
        return float(loss)

    return step


def our_step(config: TrainConfig, policy_name: str, tokens: jax.Array) -> Callable[[], float]:
    """One policy's step as a call that returns its loss."""
    mesh, policy = make_mesh(config.mesh), by_name(policy_name)
    state = init_state(config, mesh=mesh)
    update = make_train_step(config, policy=policy, mesh=mesh)
    batch = Batch(tokens=tokens, loss_mask=jnp.ones((tokens.shape[0], tokens.shape[1] - 1), bool))

    def step() -> float:
        nonlocal state
        state, metrics = update(state, batch)
        return float(metrics["loss"])

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    model = presets.llama_nano()
    shape = (options.batch_size, options.seq_len + 1)
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, model.vocab_size, shape, dtype=np.int32))
    data = DataConfig(components=(Component(name="random", path="none"),), seq_len=options.seq_len)
    config = TrainConfig(model=model, data=data, steps=1000, batch_size=options.batch_size)
    steps = {"plain JAX, fp32": plain_step(model, tokens), **{p: our_step(config, p, tokens) for p in POLICIES}}
    compiled, times = {}, {name: [] for name in steps}
    for name, step in steps.items():
        start = time.perf_counter()
        step()
        compiled[name] = time.perf_counter() - start
    for _ in range(options.rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    peer = statistics.median(times["plain JAX, fp32"])
    print(f"{'step':<32}{'median ms':>10}{'min':>8}{'max':>8}{'x peer':>8}{'compile s':>11}")
    for name, runs in times.items():
        low, middle, high = min(runs), statistics.median(runs), max(runs)
        row = f"{1e3 * middle:>10.0f}{1e3 * low:>8.0f}{1e3 * high:>8.0f}{middle / peer:>8.2f}{compiled[name]:>11.1f}"
        print(f"{name:<32}{row}")


if __name__ == "__main__":
    main()
