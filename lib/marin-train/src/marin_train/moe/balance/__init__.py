"""Balance rules, one file each and one signature: which experts see a token, and what keeps their loads equal.

A rule is a module that offers the function of `Rule`, and where it moves a bias those of `BiasRule`. It sees scores of
whole batches (or of a whole part of one): on a mesh they are global arrays, so that a rule need not know of devices.
What moves a bias is counted in integers, which add up in any order to the same: the bias is then the same, to the bit,
on every mesh and in any number of parts, given the same scores.
"""

import importlib
from typing import Any, NamedTuple, Protocol, cast

from jaxtyping import Array, Bool, Float, Int

from marin_train.configs import MoEConfig
from marin_train.moe.routing import Scores


class Balanced(NamedTuple):
    """What a rule makes of the scores of a layer's tokens.

    Args:
        chosen: the experts of each token, ``num_experts`` for an empty slot; ``top_k`` slots, or more where the rule
            gives some tokens more experts than others.
        objective: what the rule adds to the loss, summed over the tokens that are no padding. It has a gradient.
        counts: integers that the bias is moved by; None where the rule has no bias.
    """

    chosen: Int[Array, "batch seq slots"]
    objective: Float[Array, ""]
    counts: Any = None


class Rule(Protocol):
    """What every module in this package offers."""

    IS_CAUSAL: bool
    """Whether a token's experts depend on no token after it. Under a rule where they do, a model that is evaluated or
    generates chooses by the scores alone."""

    def balance(
        self,
        scores: Scores,
        bias: Float[Array, " experts"] | None,
        *,
        valid: Bool[Array, "batch seq"] | None,
        config: MoEConfig,
    ) -> Balanced:
        """Chooses each token's experts, and counts what the rule goes by.

        Args:
            scores: the router's, float32.
            bias: of each expert's scores, where the rule has one; nothing that is computed of it has a gradient.
            valid: which tokens are no padding; None for all. Padding counts nowhere; what is chosen for it is not
                looked at.
            config: the experts.
        """
        ...


class BiasRule(Rule, Protocol):
    """What a module whose rule moves a bias (`MoEConfig.is_biased`) offers too."""

    def merge(self, a: Any, b: Any) -> Any:
        """The counts of two parts of a batch, with or without a leading layer dim; zeros change nothing."""
        ...

    def updated(self, bias: Float[Array, "*layer experts"], counts: Any, *, config: MoEConfig) -> Array:
        """The bias for the next batch, from the one that this batch was chosen with and what was counted then."""
        ...


def rule(config: MoEConfig, *, learns: bool = True) -> Rule:
    """The rule that the configuration names; for a model that does not learn, one that is causal."""
    named = _module({"none": "unbalanced"}.get(config.balance, config.balance))
    return named if learns or named.IS_CAUSAL else _module("unbalanced")


def bias_rule(config: MoEConfig) -> BiasRule:
    """The same of a rule that moves a bias."""
    return cast(BiasRule, rule(config))


def _module(name: str) -> Rule:
    return cast(Rule, importlib.import_module(f"marin_train.moe.balance.{name}"))
