"""A model's experts: how many there are, which of them see a token, and how the tokens are kept balanced over them."""

from dataclasses import dataclass
from typing import Literal

from marin_train.configs.checks import COUNTED_ON_DEVICE, choices, not_negative, positive, told
from marin_train.errors import ConfigError

Balance = Literal["quantile", "quantile_exact", "sign", "switch", "sequence", "sinkhorn", "expert_choice", "none"]

STRENGTHS: dict[str, float] = {
    "quantile": 1.0,
    "quantile_exact": 1.0,
    "sign": 1e-3,
    "switch": 1e-2,
    "sequence": 1e-4,
}
"""Rules that have a strength, and what it is where none is given."""

BIASED = frozenset({"quantile", "quantile_exact", "sign"})
"""Rules that move a bias of each expert's scores from step to step."""


@dataclass(frozen=True, kw_only=True)
class MoEConfig:
    """A mixture of experts in place of a layer's feed-forward part.

    A layer of experts has ``top_k`` of ``num_experts`` see each token, and, where ``shared_dim`` is positive, a dense
    feed-forward layer that sees all of them.
    """

    num_experts: int
    """Experts a layer."""
    top_k: int
    """Experts that see a token."""
    expert_dim: int
    """Inner width of an expert."""
    shared_dim: int = 0
    """Inner width of the shared experts together: n of width w are one of width n w. 0 for none."""
    latent_dim: int | None = None
    """Width to which tokens are projected before experts see them; by default they see them as they are."""
    num_dense_layers: int = 0
    """The first so many layers have a dense feed-forward part, of width ``mlp_dim``."""
    combine: Literal["softmax", "sigmoid"] = "softmax"
    """What makes weights of an expert's score: its share of a softmax over all, or its sigmoid."""
    renormalise: bool = True
    """Whether the weights of a token's experts are divided by their sum."""
    scale: float = 1.0
    """Factor of the weights."""
    router_z_loss: float = 0.0
    """Weight of the squared log-normaliser of the router's scores, averaged over layers."""
    balance: Balance = "quantile"
    """How tokens are kept balanced, a file each in ``moe/balance/``: ``quantile`` (Quantile Balancing),
    ``quantile_exact`` (the same by sorting), ``sign`` (DeepSeek's rule without a loss), ``switch`` (Switch's auxiliary
    loss), ``sequence`` (DeepSeek's loss of each sequence), ``sinkhorn``, ``expert_choice`` (not causal), ``none``."""
    balance_strength: float | None = None
    """Gain of ``quantile``, step of ``sign``, weight of ``switch`` and ``sequence``; by default 1, 1e-3, 1e-2, 1e-4."""
    exchange: Literal["all_to_all", "ring"] = "all_to_all"
    """How tokens reach the experts of other devices, on a mesh whose ``expert`` axis has several."""
    capacity_factor: float | None = None
    """Where experts lie on several devices: room on the way to each of them for so many times a device's even share of
    its routes, and at each expert for so many times its own share; what finds none is dropped. None for all that may
    come."""

    def __post_init__(self) -> None:
        choices(self)
        given = [n for n in ("latent_dim", "balance_strength", "capacity_factor") if getattr(self, n) is not None]
        for name in ("num_experts", "top_k", "expert_dim", "scale", *given):
            positive(self, name, bits=COUNTED_ON_DEVICE)
        for name in ("shared_dim", "num_dense_layers", "router_z_loss"):
            not_negative(self, name, bits=COUNTED_ON_DEVICE)
        if self.top_k > self.num_experts:
            raise ConfigError(f"{told(self, 'top_k')} must be at most num_experts={self.num_experts}")
        if self.balance_strength is not None and self.balance not in STRENGTHS:
            raise ConfigError(
                f"{told(self, 'balance_strength')} changes nothing under balance={self.balance!r}; leave it out"
            )
        if self.balance in ("quantile", "quantile_exact") and not self.strength < 2:
            raise ConfigError(f"{told(self, 'balance_strength')} must be below 2: a gain of 2 or more never converges")

    @property
    def strength(self) -> float:
        """The rule's strength; 0 of a rule that has none."""
        return STRENGTHS.get(self.balance, 0.0) if self.balance_strength is None else self.balance_strength

    @property
    def is_biased(self) -> bool:
        """Whether each expert has a bias that the rule moves."""
        return self.balance in BIASED
