"""The same model in PyTorch. Usage: training_torch.py SHAPE TOKENS WEIGHTS float32|bfloat16; the latter autocasts."""

# ruff: noqa: E402 (what importing takes is measured)

import sys
import time

from training import BETA2, CLIP, EPS, LEARNING_RATE, WEIGHT_DECAY, Shape, read_shape, serve

started = time.perf_counter()
import numpy as np
import torch  # type: ignore[import-not-found]
from torch.nn import functional  # type: ignore[import-not-found]

imports = time.perf_counter() - started


def logits_of(weights: dict, inputs: "torch.Tensor", shape: Shape) -> "torch.Tensor":
    """Scores of every next token."""
    half = shape.head_dim // 2
    angles = torch.arange(shape.seq_len)[:, None] * 10_000.0 ** (-torch.arange(half) / half)
    cos, sin = angles.cos(), angles.sin()

    def turn(x: "torch.Tensor") -> "torch.Tensor":
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

    def heads(x: "torch.Tensor") -> "torch.Tensor":
        return x.view(*x.shape[:2], shape.heads, shape.head_dim).transpose(1, 2)

    x = functional.embedding(inputs, weights["embed"])
    for i in range(shape.layers):
        layer = {name.removeprefix("layers."): w[i] for name, w in weights.items() if name.startswith("layers.")}
        y = functional.rms_norm(x, (shape.hidden,), layer["attention_norm"], EPS)
        q, k, v = (heads(y @ layer[f"attention.{n}"]) for n in ("query", "key", "value"))
        mixed = functional.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True)
        x = x + mixed.transpose(1, 2).reshape(x.shape) @ layer["attention.output"]
        y = functional.rms_norm(x, (shape.hidden,), layer["mlp_norm"], EPS)
        x = x + (functional.silu(y @ layer["mlp.gate"]) * (y @ layer["mlp.up"])) @ layer["mlp.down"]
    return functional.rms_norm(x, (shape.hidden,), weights["final_norm"], EPS) @ weights["output"]


def main() -> None:
    shape, tokens = read_shape()
    weights = {name: torch.tensor(leaf, requires_grad=True) for name, leaf in np.load(sys.argv[3]).items()}
    groups = [
        {"params": [w for w in weights.values() if w.ndim > 2], "weight_decay": WEIGHT_DECAY},
        {"params": [w for w in weights.values() if w.ndim <= 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, LEARNING_RATE, betas=(0.9, BETA2), fused=True)

    def step(batch: np.ndarray) -> float:
        batch = torch.from_numpy(batch).long()
        with torch.autocast("cpu", torch.bfloat16, enabled=sys.argv[4] == "bfloat16"):
            logits = logits_of(weights, batch[:, :-1], shape)
        loss = functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    serve(step, tokens, imports=imports)


if __name__ == "__main__":
    main()
