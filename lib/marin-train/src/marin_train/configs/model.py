"""The shape of a model: a family reads the fields that its checkpoints have, and refuses those it has no use for."""

from dataclasses import dataclass
from typing import Literal

from marin_train.configs.checks import not_negative, positive
from marin_train.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are changed for contexts longer than the ``original_max_seq_len`` that was trained on.

    See: Chen et al. 2023 (arXiv 2306.15595) for ``linear``; Grattafiori et al. 2024 (arXiv 2407.21783) for ``llama3``;
    Peng et al. 2023 (arXiv 2309.00071) for ``yarn``; Ding et al. 2024 (arXiv 2402.13753) for ``longrope``.
    """

    kind: Literal["linear", "llama3", "yarn", "longrope"]
    factor: float = 1.0
    """How many times longer the context becomes."""
    original_max_seq_len: int | None = None
    """All but ``linear``."""
    low_freq_factor: float = 1.0
    """``llama3``: wavelengths longer than ``original_max_seq_len / low_freq_factor`` are scaled in full."""
    high_freq_factor: float = 4.0
    """``llama3``: wavelengths shorter than ``original_max_seq_len / high_freq_factor`` are left as they are."""
    beta_fast: float = 32.0
    """``yarn``: pairs that turn more often than this over the original context are left as they are."""
    beta_slow: float = 1.0
    """``yarn``: pairs that turn less often than this are scaled in full."""
    attention_factor: float | None = None
    """``yarn`` and ``longrope``: factor of queries and keys; by default what the paper derives from ``factor``."""
    short_factor: tuple[float, ...] = ()
    """``longrope``: a divisor for each pair, for sequences up to ``original_max_seq_len``."""
    long_factor: tuple[float, ...] = ()
    """``longrope``: a divisor for each pair, for longer ones."""

    def __post_init__(self) -> None:
        positive(self, "factor")
        if self.kind != "linear" and self.original_max_seq_len is None:
            raise ConfigError(f"RopeScaling.original_max_seq_len is missing; kind={self.kind!r} needs it")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer. ``head_dim`` is free: it need not be ``hidden_dim / num_heads``."""

    vocab_size: int
    hidden_dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_dim: int
    max_seq_len: int
    family: str = "llama"
    rope_theta: float = 500_000.0
    rope_scaling: RopeScaling | None = None
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
    query_scale: float | None = None
    """Factor of scores; by default ``head_dim ** -0.5``."""
    norm_eps: float = 1e-5
    tie_embeddings: bool = False
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
            "mlp_dim",
            "max_seq_len",
            "rope_theta",
            "norm_eps",
            "vocab_multiple",
        ):
            positive(self, name)
        for name in ("rotary_dim", "sliding_window", "global_every", "local_rope_theta", "query_scale"):
            if getattr(self, name) is not None:
                positive(self, name)
        for name in ("attention_softcap", "logit_softcap"):
            if getattr(self, name) is not None:
                positive(self, name)
        not_negative(self, "nope_every")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(f"ModelConfig.num_kv_heads={self.num_kv_heads} must divide num_heads={self.num_heads}")
        if self.head_dim % 2:
            raise ConfigError(f"ModelConfig.head_dim={self.head_dim} must be even: rotary embeddings turn pairs")
        if self.rotary_dim is not None and (self.rotary_dim % 2 or self.rotary_dim > self.head_dim):
            raise ConfigError(
                f"ModelConfig.rotary_dim={self.rotary_dim} must be even and at most head_dim={self.head_dim}"
            )
        if self.global_every is not None and self.sliding_window is None:
            raise ConfigError(
                f"ModelConfig.global_every={self.global_every} without a sliding_window changes nothing; set one, or "
                f"leave it out"
            )

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding: ``vocab_size``, rounded up to ``vocab_multiple``."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple
