"""Model families, one file each; a family is a module that offers the functions of `Family`.

A family copies rather than adds a flag: what differs between two families is read by comparing two short files.
"""

import importlib
from typing import Any, Protocol, cast

from jaxtyping import Array, Float, Int

from marin_train.blocks import Past
from marin_train.configs import ModelConfig
from marin_train.errors import ConfigError
from marin_train.parameters import ParameterTable
from marin_train.policy import Policy

FAMILIES = ("llama",)


class Family(Protocol):
    """What a module in this package offers."""

    Model: type
    """The equinox module whose leaves are the table's parameters."""

    def parameter_table(self, config: ModelConfig) -> ParameterTable:
        """Every parameter of a model with this configuration."""
        ...

    def forward(
        self,
        model: Any,
        tokens: Int[Array, "batch seq"],
        *,
        config: ModelConfig,
        policy: Policy,
        positions: Int[Array, "#batch seq"] | None = None,
        segment_ids: Int[Array, "batch seq"] | None = None,
    ) -> Float[Array, "batch seq embed"]:
        """Hidden states after the last norm, ready for the head."""
        ...

    def decode(
        self,
        model: Any,
        tokens: Int[Array, " batch"],
        past: Past,
        *,
        at: Int[Array, ""],
        config: ModelConfig,
        policy: Policy,
    ) -> tuple[Float[Array, "batch embed"], Past]:
        """`forward` for one token a sequence, those before it being in the past, which then holds it too."""
        ...

    def head(self, model: Any) -> Float[Array, "embed vocab"]:
        """The matrix that turns hidden states into logits."""
        ...


def family(config: ModelConfig) -> Family:
    """The family that `config` names.

    Raises:
        ConfigError: there is none of that name.
    """
    if config.family not in FAMILIES:
        raise ConfigError(f"ModelConfig.family={config.family!r} is not one of: {', '.join(FAMILIES)}")
    return cast(Family, importlib.import_module(f"marin_train.models.{config.family}"))
