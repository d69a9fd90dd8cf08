"""The step that one writes in an afternoon: fp32 JAX, no blocks, whole logits. Usage: training_plain.py SHAPE TOKENS
WEIGHTS.
"""

# ruff: noqa: E402 (what importing takes is measured)

import sys
import time
from functools import partial
from typing import Any

from training import BETA2, CLIP, EPS, LEARNING_RATE, WEIGHT_DECAY, Shape, read_shape, serve

started = time.perf_counter()
import jax
import jax.numpy as jnp
import numpy as np
import optax

imports = time.perf_counter() - started


def plain_loss(weights: dict[str, jax.Array], tokens: jax.Array, shape: Shape) -> jax.Array:
    """Mean cross-entropy, written straight down."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    half = shape.head_dim // 2
    angles = jnp.arange(shape.seq_len)[:, None] * 10_000.0 ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]

    def norm(x: jax.Array, gain: jax.Array) -> jax.Array:
        return gain * x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + EPS)

    def turn(x: jax.Array) -> jax.Array:
        a, b = x[..., :half], x[..., half:]
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    x = weights["embed"][inputs]
    visible = jnp.tril(jnp.ones((shape.seq_len, shape.seq_len), bool))
    for i in range(shape.layers):
        layer = {name.removeprefix("layers."): w[i] for name, w in weights.items() if name.startswith("layers.")}
        y = norm(x, layer["attention_norm"])
        heads = (*y.shape[:2], shape.heads, shape.head_dim)
        q, k, v = (jnp.reshape(y @ layer[f"attention.{n}"], heads) for n in ("query", "key", "value"))
        scores = jnp.einsum("bqhd,bkhd->bhqk", turn(q), turn(k)) * shape.head_dim**-0.5
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), -1), v)
        x = x + mixed.reshape(*y.shape[:2], -1) @ layer["attention.output"]
        y = norm(x, layer["mlp_norm"])
        x = x + (jax.nn.silu(y @ layer["mlp.gate"]) * (y @ layer["mlp.up"])) @ layer["mlp.down"]
    logits = norm(x, weights["final_norm"]) @ weights["output"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def main() -> None:
    shape, tokens = read_shape()
    optimizer = optax.chain(
        optax.clip_by_global_norm(CLIP),
        optax.adamw(
            LEARNING_RATE, b2=BETA2, weight_decay=WEIGHT_DECAY, mask=partial(jax.tree.map, lambda x: x.ndim > 2)
        ),
    )

    @partial(jax.jit, donate_argnums=(0, 1))
    def update(weights: Any, state: optax.OptState, batch: jax.Array) -> tuple[Any, optax.OptState, jax.Array]:
        loss, gradients = jax.value_and_grad(plain_loss)(weights, batch, shape)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, loss

    weights: Any = {name: jnp.asarray(leaf) for name, leaf in np.load(sys.argv[3]).items()}
    state = optimizer.init(weights)

    def step(batch: np.ndarray) -> float:
        nonlocal weights, state
        weights, state, loss = update(weights, state, jnp.asarray(batch))
        return float(loss)

    serve(step, tokens, imports=imports)


if __name__ == "__main__":
    main()
