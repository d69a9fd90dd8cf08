"""A run described before it is run: every parameter, the counts and the cost, from the configuration alone."""

from typing import Any

from marin_train.configs import TrainConfig
from marin_train.data.batch_sizes import BatchSizes


def describe(config: TrainConfig) -> dict[str, Any]:
    """The parameter table, counts and FLOPs of a run as plain values; nothing is allocated.

    Args:
        config: the run; its token stores need not exist.

    Returns:
        ``parameters`` (one entry a leaf), ``num_params``, ``tokens``, ``tokens_per_step``, FLOPs a token with the
        visible half (``causal``) and all of the attention map (``full``), ``flops_total`` by the latter, and the
        bytes of parameters and optimizer state.

    Raises:
        ConfigError: the model's family is not known.
    """
    from marin_train import models
    from marin_train.flops import flops_per_token, num_params

    table = models.family(config.model).parameter_table(config.model)
    per_step = config.batch_size * config.data.seq_len
    tokens = BatchSizes(config.batch_size, config.batch_stages).offset(config.steps) * config.data.seq_len
    flops = {
        name: flops_per_token(config.model, seq_len=config.data.seq_len, causal=causal)
        for name, causal in (("causal", True), ("full", False))
    }
    return {
        "parameters": [
            {"path": p.path, "shape": list(p.shape), "dims": list(p.dims), "role": p.role, "size": p.size}
            for p in table
        ],
        "num_params": num_params(config.model),
        "num_params_non_embedding": sum(p.size for p in table if p.role not in ("embed", "head")),
        "tokens_per_step": per_step,
        "tokens": tokens,
        "flops_per_token": flops,
        "flops_total": flops["full"] * tokens,
        # Parameters and Adam's two moments, four bytes each.
        "state_bytes": 3 * 4 * table.stored_size,
    }


def to_text(description: dict[str, Any]) -> str:
    """The description as a table for people."""
    rows = [(p["path"], "x".join(map(str, p["shape"])), p["role"], f"{p['size']:,}") for p in description["parameters"]]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = [
        f"{path:<{widths[0]}}  {shape:>{widths[1]}}  {role:<{widths[2]}}  {size:>{widths[3]}}"
        for path, shape, role, size in rows
    ]
    flops = description["flops_per_token"]
    return "\n".join(
        [
            *lines,
            "",
            f"parameters      {description['num_params']:,} "
            f"({description['num_params_non_embedding']:,} without embedding and head)",
            f"tokens          {description['tokens']:,} ({description['tokens_per_step']:,} a step)",
            f"FLOPs a token   {flops['causal']:.4g} causal, {flops['full']:.4g} full attention map",
            f"FLOPs in all    {description['flops_total']:.4g}",
            f"state           {description['state_bytes'] / 1e6:,.1f} MB of parameters and optimizer",
        ]
    )
