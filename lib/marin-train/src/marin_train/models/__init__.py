"""Model families, one file each; a family is a module that offers the functions of `Family`.

A family copies rather than adds a flag: what differs between two families is read by comparing two short files. What
they have in common is in `marin_train.blocks`, and in `marin_train.models.decoder`, which puts a family's parts
together.
"""

import importlib
from collections.abc import Sequence
from typing import Any, Protocol, cast

from jaxtyping import Array, Float, Int

from marin_train import blocks
from marin_train.blocks import Context, Emitted, Kind, Past, Rotation
from marin_train.configs import ModelConfig
from marin_train.errors import ConfigError
from marin_train.parameters import ParameterTable
from marin_train.policy import Policy

FAMILIES = ("llama", "qwen3", "gemma3", "mixtral", "qwen3_moe", "marin_moe")

OPTIONAL = {
    "moe": None,
    "rope_scaling": None,
    "rotary_dim": None,
    "nope_every": 0,
    "sliding_window": None,
    "global_every": None,
    "local_rope_theta": None,
    "attention_softcap": None,
    "logit_softcap": None,
    "query_scale": None,
    "norm_gate_dim": None,
}
"""Fields of `ModelConfig` that not every family has a use for, and the value that leaves each out."""


class Family(Protocol):
    """What a module in this package offers."""

    USES: frozenset[str]
    """Those of the `OPTIONAL` fields that change a model of this family."""

    Model: type
    """The equinox module whose leaves are the table's parameters; its ``layers`` are stacked on a leading dim, and so
    are, in families whose layers are of experts, the dense ones before them: ``lead``, or None."""

    def parameter_table(self, config: ModelConfig) -> ParameterTable:
        """Every parameter of a model with this configuration."""
        ...

    def kinds(self, config: ModelConfig) -> Sequence[Kind]:
        """What each layer does differently from the others."""
        ...

    def rotations(self, positions: Int[Array, "#batch seq"], *, config: ModelConfig) -> dict[str, Rotation]:
        """The turns of queries and keys, by the names that `kinds` give."""
        ...

    def embed(
        self, model: Any, tokens: Int[Array, "batch seq"], *, config: ModelConfig, policy: Policy
    ) -> Float[Array, "batch seq embed"]:
        """The input of the first layer, in the type of the policy's activations."""
        ...

    def layer(
        self,
        kind: Kind,
        parameters: Any,
        x: Float[Array, "batch seq embed"],
        past: Past | None,
        *,
        context: Context,
        config: ModelConfig,
        policy: Policy,
    ) -> tuple[Float[Array, "batch seq embed"], Emitted]:
        """One layer; the past, where there is one, then holds its keys and values too."""
        ...

    def finish(
        self, model: Any, x: Float[Array, "batch seq embed"], *, config: ModelConfig
    ) -> Float[Array, "batch seq embed"]:
        """Hidden states ready for the head."""
        ...

    def head(self, model: Any) -> Float[Array, "embed vocab"]:
        """The matrix that turns hidden states into logits."""
        ...


def family(config: ModelConfig) -> Family:
    """The family that `config` names.

    Raises:
        ConfigError: there is none of that name, or `config` sets a field that it has no use for, or lacks one that
            it needs.
    """
    if config.family not in FAMILIES:
        raise ConfigError(f"ModelConfig.family={config.family!r} is not one of: {', '.join(FAMILIES)}")
    named = _module(config.family)
    if "moe" in named.USES and config.moe is None:
        raise ConfigError(f"ModelConfig.family={config.family!r} needs ModelConfig.moe, which states its experts")
    for field, left_out in OPTIONAL.items():
        if getattr(config, field) != left_out and field not in named.USES:
            users = [name for name in FAMILIES if field in _module(name).USES]
            raise ConfigError(
                f"ModelConfig.{field}={getattr(config, field)!r} changes nothing in family {config.family!r}; leave it "
                f"out, or take a family that has it: {', '.join(users)}"
            )
    return named


def no_past(config: ModelConfig, *, batch: int, seq_len: int, policy: Policy) -> Any:
    """Room for what every layer needs of the tokens before, a place for each that may come.

    Args:
        config: the model's shape.
        batch: sequences.
        seq_len: tokens of the longest that there may be.
        policy: what is kept has the types of its operands and activations.
    """
    make = getattr(family(config), "no_past", blocks.no_past)
    return make(config, batch=batch, seq_len=seq_len, policy=policy)


def _module(name: str) -> Family:
    return cast(Family, importlib.import_module(f"marin_train.models.{name}"))
