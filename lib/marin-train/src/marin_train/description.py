"""A run described before it is run: every parameter, the counts and the cost, from the configuration alone.

Nothing is allocated and no device is needed: a mesh of 256 chips is described on a laptop. What a device holds of the
state is exact, leaf by leaf; what it holds of activations is counted from the widths of what layers compute, for the
two ends of what a policy may choose (all kept; a layer's input alone).
"""

import math
from typing import Any

from marin_train.configs import ModelConfig, TrainConfig
from marin_train.data.batch_sizes import BatchSizes
from marin_train.errors import ConfigError
from marin_train.tables import align


def describe(config: TrainConfig, *, num_devices: int | None = None) -> dict[str, Any]:
    """The parameter table, counts, FLOPs, mesh and memory of a run as plain values; nothing is allocated.

    Args:
        config: the run; its token stores need not exist.
        num_devices: how many there will be, for an axis that takes what is left; by default as many as the others need.

    Returns:
        ``parameters`` (one entry a leaf, with the shape of a device's share), ``num_params``, ``num_params_active``,
        ``tokens``, ``tokens_per_step``, FLOPs a token with the visible half (``causal``) and all of the attention map
        (``full``), ``flops_total`` by the latter, ``mesh`` (devices by axis), ``state_bytes`` of all devices together
        where nothing is held twice, and ``device_bytes`` of one, by what they are of.

    Raises:
        ConfigError: the model's family is not known, or the mesh cannot share the run out, or there is no device.
    """
    from marin_train import models
    from marin_train.flops import flops_per_token
    from marin_train.mesh import AXES, check_run, mesh_sizes, shard_shape

    if num_devices is not None and num_devices < 1:
        raise ConfigError(f"--devices {num_devices}: must be positive")
    table = models.family(config.model).parameter_table(config.model)
    sizes = mesh_sizes(config.mesh, num_devices=num_devices or 1)
    check_run(config, sizes)
    per_step = config.batch_size * config.data.seq_len
    tokens = BatchSizes(config.batch_size, config.batch_stages).offset(config.steps) * config.data.seq_len
    flops = {
        name: flops_per_token(config.model, seq_len=config.data.seq_len, causal=causal)
        for name, causal in (("causal", True), ("full", False))
    }
    whole, share = _state_bytes(config, dict.fromkeys(AXES, 1)), _state_bytes(config, sizes)
    return {
        "parameters": [
            {
                "path": p.path,
                "shape": list(p.shape),
                "share": list(shard_shape(p.dims, p.shape, sizes)),
                "dims": list(p.dims),
                "role": p.role,
                "size": p.size,
            }
            for p in table
        ],
        "num_params": table.size,
        "num_params_active": table.active_size,
        "num_params_stored": table.stored_size,
        "num_params_non_embedding": table.non_embedding_size,
        "tokens_per_step": per_step,
        "tokens": tokens,
        "flops_per_token": flops,
        "flops_total": flops["full"] * tokens,
        "mesh": sizes,
        "state_bytes": sum(whole.values()),
        "device_bytes": share | {"gradients": share["parameters"]} | _activation_bytes(config, sizes),
    }


def _state_bytes(config: TrainConfig, sizes: dict[str, int]) -> dict[str, int]:
    """What one device of such a mesh holds of the state."""
    import jax
    from jax.sharding import AbstractMesh

    from marin_train.mesh import AXES
    from marin_train.train_step import state_template

    state = state_template(config, mesh=AbstractMesh(tuple(sizes.values()), AXES))

    def held(tree: Any) -> int:
        leaves = jax.tree.leaves(tree)
        return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)

    parts = {"parameters": state.model, "optimizer": (state.opt_state, state.guard), "average": state.ema}
    return {name: held(tree) for name, tree in parts.items() if tree is not None}


def _activation_bytes(config: TrainConfig, sizes: dict[str, int]) -> dict[str, int]:
    """In float32, of the part of a batch that a device goes through at a time; and the logits of a block."""
    from marin_train.losses import BLOCK_TOKENS, WIDE_BLOCK_TOKENS
    from marin_train.mesh import RULES

    model, data = config.model, math.prod(sizes[axis] for axis in RULES["batch"])
    largest = max(config.batch_size, *(stage.batch_size for stage in config.batch_stages), 0)
    sequences = largest // (data * config.accumulation)
    tokens = sequences * config.data.seq_len // sizes["context"]
    layers, in_parts = model.num_layers // sizes["stage"], sizes["model"]
    # Between layers, sequences lie in shares where they can.
    between = model.hidden_dim / (in_parts if config.data.seq_len % (sizes["context"] * in_parts) == 0 else 1)
    inside = 2 * (model.num_heads + model.num_kv_heads) * model.head_dim + _widest_feed_forward(model)
    width = 4 * between + inside / in_parts  # what its two halves read, and their norms; its projections
    # Of several devices none is a CPU, but in tests.
    block = max(WIDE_BLOCK_TOKENS if math.prod(sizes.values()) > 1 else BLOCK_TOKENS["cpu"], sequences)
    return {
        "activations_kept": round(4 * tokens * layers * width),
        "activations_recomputed": round(4 * tokens * (layers * between + width)),
        "logits": 2 * 4 * block * model.padded_vocab_size // sizes["model"],  # and their gradient
    }


def _widest_feed_forward(model: ModelConfig) -> float:
    """Values a token between the products of a feed-forward part: gate, up and their product; of experts, a row each
    route, with what comes in and goes out, and a quarter of rows that fill up blocks."""
    if model.moe is None:
        return 3 * model.mlp_dim
    width = model.hidden_dim if model.moe.latent_dim is None else model.moe.latent_dim
    routed = 1.25 * model.moe.top_k * (3 * model.moe.expert_dim + 2 * width)
    return max(3 * model.mlp_dim, routed + 3 * model.moe.shared_dim)


def to_text(description: dict[str, Any]) -> str:
    """The description as a table for people."""
    spread = math.prod(description["mesh"].values()) > 1
    rows = [
        ("parameter", "role", "size", "shape", "a device"),
        *(
            (p["path"], p["role"], f"{p['size']:,}", _shown(p["shape"]), _shown(p["share"]))
            for p in description["parameters"]
        ),
    ]
    lines = align(rows if spread else [row[:-1] for row in rows], left={0, 1})
    flops, held = description["flops_per_token"], description["device_bytes"]
    active = description["num_params_active"]
    stored = description["num_params_stored"] - description["num_params"]
    padding = f", and {stored:,} that pad the vocabulary" if stored else ""
    state = " + ".join(f"{_size(held[name])} {name}" for name in ("parameters", "optimizer", "average") if name in held)
    mesh = " x ".join(f"{size} {axis}" for axis, size in description["mesh"].items() if size > 1) or "one device"
    facts = {
        "parameters": f"{description['num_params']:,} "
        f"({description['num_params_non_embedding']:,} without embedding and head{padding})",
        **({"active": f"{active:,} that a token meets"} if active != description["num_params"] else {}),
        "tokens": f"{description['tokens']:,} ({description['tokens_per_step']:,} a step)",
        "FLOPs a token": f"{flops['causal']:.4g} causal, {flops['full']:.4g} full attention map",
        "FLOPs in all": f"{description['flops_total']:.4g}",
        "mesh": mesh,
        "a device holds": f"{state} + {_size(held['gradients'])} gradients",
        "activations": f"{_size(held['activations_kept'])} kept, {_size(held['activations_recomputed'])} with layers "
        f"recomputed, {_size(held['logits'])} logits",
        "state": f"{_size(description['state_bytes'])} in a checkpoint",
    }
    wide = max(map(len, facts))
    return "\n".join([*lines, "", *(f"{name:<{wide}}  {fact}" for name, fact in facts.items())])


def _shown(shape: list[int]) -> str:
    return "x".join(map(str, shape))


def _size(num_bytes: int) -> str:
    size, units = float(num_bytes), ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.3g} {units[0]}" if size < 1000 else f"{size:,.0f} {units[0]}"
