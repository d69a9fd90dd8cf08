"""Experts in a ``config.json``: how many, how wide, which layers have them, and how they are weighed.

What a router was trained with (its losses, a jitter) changes no logit, and is not read: a run states its own rule of
balance. A rule that moves a bias makes a model that these families cannot express, since they have no place for it.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from marin_train.configs import ModelConfig, MoEConfig
from marin_train.errors import HuggingFaceError
from marin_train.hf.dialects import Dialect

TRAINED_BY = ("balance", "balance_strength", "router_z_loss", "exchange", "capacity_factor")
"""Fields of `MoEConfig` that say how experts are trained; of a model that is read, they are the plainest."""

UNBALANCED = MoEConfig(num_experts=1, top_k=1, expert_dim=1, balance="none")
"""Where these are as they are of a model that is read."""


def read_experts(values: Mapping[str, Any], dialect: Dialect, *, where: str) -> MoEConfig | None:
    """The experts that the fields state; None in a family that has none."""
    if not dialect.expert_width:
        return None
    names = ("num_experts", "num_local_experts")
    written = {values[name] for name in names if values.get(name) is not None}
    if len(written) != 1:
        raise HuggingFaceError(f"{where}: {' and '.join(f'{name}={values.get(name)!r}' for name in names)} disagree")
    fields = {
        "num_experts": written.pop(),
        "top_k": values["num_experts_per_tok"],
        "expert_dim": values[dialect.expert_width],
    }
    for name, value in fields.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise HuggingFaceError(f"{where}: {value!r} as {name} of experts must be a whole number")
    renormalise = values.get("norm_topk_prob", True)
    if not isinstance(renormalise, bool):
        raise HuggingFaceError(f"{where}: norm_topk_prob={renormalise!r} must be of type bool")
    num_dense = _num_dense_layers(values, where=where)
    return MoEConfig(**fields, renormalise=renormalise, num_dense_layers=num_dense, balance="none")


def _num_dense_layers(values: Mapping[str, Any], *, where: str) -> int:
    """Of the layers, how many come before the first of experts; none may come behind it."""
    dense, every = values.get("mlp_only_layers") or [], values.get("decoder_sparse_step", 1)
    num_layers = values["num_hidden_layers"]
    if not isinstance(dense, list) or not isinstance(every, int) or every < 1:
        raise HuggingFaceError(f"{where}: mlp_only_layers={dense!r}, decoder_sparse_step={every!r}: no such layers")
    is_dense = [layer in dense or (layer + 1) % every != 0 for layer in range(num_layers)]
    first = is_dense.index(False) if False in is_dense else num_layers
    if any(is_dense[first:]):
        raise HuggingFaceError(
            f"{where}: mlp_only_layers={dense}, decoder_sparse_step={every}: computed here are dense layers before "
            f"all that have experts"
        )
    return first


def write_experts(config: ModelConfig, dialect: Dialect) -> dict[str, Any]:
    """The fields that state a model's experts.

    Raises:
        HuggingFaceError: experts are chosen by a bias, or something else that the family cannot express.
    """
    moe = config.moe
    if moe is None or not dialect.expert_width:
        return {}
    if moe.is_biased:
        raise HuggingFaceError(
            f"MoEConfig.balance={moe.balance!r} chooses experts by a bias, for which transformers' "
            f"{dialect.architecture} has no place; only family 'marin_moe' is written with it"
        )
    written = {
        "num_local_experts": moe.num_experts,
        "num_experts_per_tok": moe.top_k,
        dialect.expert_width: moe.expert_dim,
        "output_router_logits": False,
        "router_aux_loss_coef": moe.strength if moe.balance == "switch" else 0.0,
    }
    if "norm_topk_prob" in dialect.defaults:
        dense = list(range(moe.num_dense_layers))
        written |= {"num_experts": moe.num_experts, "norm_topk_prob": moe.renormalise}
        written |= {"mlp_only_layers": dense, "decoder_sparse_step": 1}
    return written


def plain(moe: MoEConfig | None) -> MoEConfig | None:
    """The experts without how they are trained."""
    if moe is None:
        return None
    return dataclasses.replace(moe, **{name: getattr(UNBALANCED, name) for name in TRAINED_BY})
