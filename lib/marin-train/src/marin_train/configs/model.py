"""The shape of a model: a family reads the fields that its checkpoints have, and refuses those it has no use for."""

from dataclasses import dataclass
from typing import Literal

from marin_train.configs.checks import COUNTED_ON_DEVICE, choices, no_effect, not_negative, positive
from marin_train.configs.experts import MoEConfig
from marin_train.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are changed for contexts longer than the ``original_max_seq_len`` that was trained on.

    See: Chen et al. 2023 (arXiv 2306.15595) for ``linear``; Grattafiori et al. 2024 (arXiv 2407.21783) for ``llama3``;
    Peng et al. 2023 (arXiv 2309.00071) for ``yarn``; Ding et al. 2024 (arXiv 2402.13753) for ``longrope``.
    """

    kind: Literal["linear", "llama3", "yarn", "longrope"]
    """The rule; the papers are above."""
    factor: float = 1.0
    """How many times longer the context becomes."""
    original_max_seq_len: int | None = None
    """Tokens of the sequences that were trained on before; all but ``linear`` need it."""
    low_freq_factor: float = 1.0
    """Under ``llama3``, wavelengths longer than ``original_max_seq_len / low_freq_factor`` are scaled in full."""
    high_freq_factor: float = 4.0
    """Under ``llama3``, wavelengths shorter than ``original_max_seq_len / high_freq_factor`` are left as they are."""
    beta_fast: float = 32.0
    """Under ``yarn``, pairs that turn more often than this over the original context are left as they are."""
    beta_slow: float = 1.0
    """Under ``yarn``, pairs that turn less often than this are scaled in full."""
    attention_factor: float | None = None
    """Under ``yarn`` and ``longrope``, factor of queries and keys; by default as the paper derives it."""
    short_factor: tuple[float, ...] = ()
    """Under ``longrope``, a divisor for each pair, where the model's ``max_seq_len`` is at most the original one."""
    long_factor: tuple[float, ...] = ()
    """Under ``longrope``, a divisor for each pair, where it is more."""

    def __post_init__(self) -> None:
        choices(self)
        positive(self, "factor")
        if self.kind != "linear" and self.original_max_seq_len is None:
            raise ConfigError(f"RopeScaling.original_max_seq_len is missing; kind={self.kind!r} needs it")
        every = {name for names in _SCALING_FIELDS.values() for name in names}
        no_effect(self, every - set(_SCALING_FIELDS[self.kind]), when=f"with kind={self.kind!r}")
        if self.low_freq_factor >= self.high_freq_factor:
            raise ConfigError(
                f"RopeScaling.low_freq_factor={self.low_freq_factor} must be below "
                f"high_freq_factor={self.high_freq_factor}"
            )
        for name in ("short_factor", "long_factor"):
            if self.kind == "longrope" and (not getattr(self, name) or min(getattr(self, name)) <= 0):
                raise ConfigError(f"RopeScaling.{name}={getattr(self, name)} needs a positive divisor for each pair")


_SCALING_FIELDS = {
    "linear": (),
    "llama3": ("original_max_seq_len", "low_freq_factor", "high_freq_factor"),
    "yarn": ("original_max_seq_len", "beta_fast", "beta_slow", "attention_factor"),
    "longrope": ("original_max_seq_len", "attention_factor", "short_factor", "long_factor"),
}
"""What each kind reads beside the factor."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer. ``head_dim`` is free: it need not be ``hidden_dim / num_heads``."""

    vocab_size: int
    """Tokens that the model knows; every id of a token store is below it."""
    hidden_dim: int
    """Width of what layers hand on."""
    num_layers: int
    """Attention and feed-forward, one after the other, so many times."""
    num_heads: int
    """Query heads a layer."""
    num_kv_heads: int
    """Key and value heads a layer, each shared by ``num_heads / num_kv_heads`` query heads."""
    head_dim: int
    """Width of a head."""
    mlp_dim: int
    """Inner width of dense feed-forward layers; 0 where every layer is one of experts."""
    max_seq_len: int
    """Tokens of the longest sequence; `DataConfig.seq_len` is at most that."""
    family: str = "llama"
    """``llama``, ``qwen3``, ``gemma3``, ``mixtral``, ``qwen3_moe`` or ``marin_moe``, a file each in ``models/``."""
    moe: MoEConfig | None = None
    """The experts, in families that have them."""
    rope_theta: float = 500_000.0
    """Base of the rotary frequencies."""
    rope_scaling: RopeScaling | None = None
    """How rotary frequencies are changed for long contexts; None leaves them."""
    rotary_dim: int | None = None
    """The first so many dims of a head are turned by position; by default all."""
    nope_every: int = 0
    """Every so many layers, one knows no positions (NoPE); 0 for none."""
    sliding_window: int | None = None
    """Tokens that a local layer sees, itself included."""
    global_every: int | None = None
    """Every so many layers, one sees all tokens; by default none does where there is a window."""
    local_rope_theta: float | None = None
    """Base of the local layers' rotary embedding, where it is another and never scaled."""
    attention_softcap: float | None = None
    """Scores s become ``cap * tanh(s / cap)``."""
    logit_softcap: float | None = None
    """The same of logits."""
    query_scale: float | None = None
    """Factor of scores; by default ``head_dim ** -0.5``."""
    norm_gate_dim: int | None = None
    """Rank of the gates of norms, in families whose norms have gates."""
    norm_eps: float = 1e-5
    """Added to the mean square in norms."""
    tie_embeddings: bool = False
    """Whether the head is the embedding's transpose."""
    vocab_multiple: int = 1
    """Embedding and head are padded to a multiple of this, so that they can be sharded; padded logits are -inf."""

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_dim",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            *(() if self.num_dense_layers == 0 else ("mlp_dim",)),
            "max_seq_len",
            "rope_theta",
            "norm_eps",
            "vocab_multiple",
            *(name for name in _OPTIONAL if getattr(self, name) is not None),
        ):
            positive(self, name, bits=COUNTED_ON_DEVICE)
        not_negative(self, "nope_every", bits=COUNTED_ON_DEVICE)
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(f"ModelConfig.num_kv_heads={self.num_kv_heads} must divide num_heads={self.num_heads}")
        if self.head_dim % 2:
            raise ConfigError(f"ModelConfig.head_dim={self.head_dim} must be even: rotary embeddings turn pairs")
        if self.rotary_dim is not None and (self.rotary_dim % 2 or self.rotary_dim > self.head_dim):
            raise ConfigError(
                f"ModelConfig.rotary_dim={self.rotary_dim} must be even and at most head_dim={self.head_dim}"
            )
        for name in ("global_every", "local_rope_theta"):
            if getattr(self, name) is not None and self.sliding_window is None:
                raise ConfigError(
                    f"ModelConfig.{name}={getattr(self, name)} without a sliding_window changes nothing; set one, or "
                    f"leave it out"
                )
        self._check_experts()
        self._check_divisors()

    def _check_experts(self) -> None:
        if self.moe is not None and self.num_dense_layers >= self.num_layers:
            raise ConfigError(
                f"MoEConfig.num_dense_layers={self.num_dense_layers} must be below ModelConfig.num_layers="
                f"{self.num_layers}: a model without a layer of experts is one of a dense family"
            )
        if self.num_dense_layers == 0 and self.mlp_dim != 0:
            raise ConfigError(
                f"ModelConfig.mlp_dim={self.mlp_dim} changes nothing where every layer is one of experts; set 0, or "
                f"give MoEConfig.num_dense_layers"
            )

    def _check_divisors(self) -> None:
        pairs = (self.rotary_dim or self.head_dim) // 2
        for name in ("short_factor", "long_factor"):
            divisors = () if self.rope_scaling is None else getattr(self.rope_scaling, name)
            if divisors and len(divisors) != pairs:
                raise ConfigError(f"RopeScaling.{name} has {len(divisors)} divisors, a head has {pairs} pairs to turn")

    @property
    def num_dense_layers(self) -> int:
        """Layers whose feed-forward part is dense; they come before those of experts."""
        return self.num_layers if self.moe is None else self.moe.num_dense_layers

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding, ``vocab_size`` rounded up to ``vocab_multiple``."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple


_OPTIONAL = (
    *("rotary_dim", "sliding_window", "global_every", "local_rope_theta", "query_scale", "norm_gate_dim"),
    *("attention_softcap", "logit_softcap"),
)
"""What may be left out, and is positive where it is given."""
