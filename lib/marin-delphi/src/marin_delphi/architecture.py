"""Architecture: the shape of a decoder-only transformer, and what it costs in parameters and FLOPs.

A scaling law is a statement about counts, so a count without its convention is worth nothing: embeddings in or out,
normalisation gains in or out, attention in full or causal, move a fitted exponent by more than a budget does. Here
every count takes its convention by name.

Invariant: counts are exact integers (Python's do not overflow), functions of the shape alone. Field names follow
the trainer's model configuration, so that a configuration of that shape counts here too.
"""

from dataclasses import dataclass
from typing import Literal

from marin_delphi.errors import RecipeError

ParamsConvention = Literal["total", "recipe", "non_embedding"]
"""``total`` every leaf, as a trainer logs it; ``recipe`` all but the QK-norm gains, as Delphi's formulas have it;
``non_embedding`` all but the token embedding and the head."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A pre-norm decoder with grouped-query attention, gated MLPs, RMSNorm and no biases.

    Attributes:
        vocab_size: rows of the token embedding.
        hidden_dim: width of the residual stream.
        num_layers: blocks, each one attention and one MLP.
        num_heads: query heads; ``num_kv_heads`` key and value heads.
        head_dim: width of one head; free, not necessarily ``hidden_dim / num_heads``.
        mlp_dim: inner width of the gated MLP (three matrices).
        tie_embeddings: whether the head is the embedding transposed.
        qk_norm: whether queries and keys are normalised with learned gains, one vector of ``head_dim`` each a layer.
    """

    vocab_size: int
    hidden_dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_dim: int
    tie_embeddings: bool = False
    qk_norm: bool = True

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_dim", "num_layers", "num_heads", "num_kv_heads", "head_dim", "mlp_dim"):
            if getattr(self, name) < 1:
                raise RecipeError(f"Architecture.{name}={getattr(self, name)} must be at least 1")
        if self.num_heads % self.num_kv_heads:
            raise RecipeError(
                f"Architecture.num_kv_heads={self.num_kv_heads} must divide num_heads={self.num_heads}: "
                "query heads share key heads in equal groups"
            )


def num_params(architecture: Architecture, *, convention: ParamsConvention = "total") -> int:
    """Parameters of ``architecture`` under a declared convention.

    With ``H`` hidden, ``h`` head width, ``q`` and ``k`` query and key heads, ``M`` MLP width, ``V`` vocabulary and
    ``L`` layers, and head and embedding untied::

        recipe        = L (2 H h (q + k) + 3 H M + 2 H) + H + 2 V H
        total         = recipe + 2 h L            (with QK-norm)
        non_embedding = total - 2 V H

    For Delphi's shape (``h q = h k = H``, ``M = 4 H``) the first line is ``L (16 H^2 + 2 H) + H + 2 V H``.

    Args:
        architecture: the shape.
        convention: which parameters count; see `ParamsConvention`.

    Returns:
        The number of parameters.

    See: Delphi, https://openathena.ai/blog/delphi; the embedding question is Kaplan et al. 2020 against Hoffmann
    et al. 2022, reconciled in Pearce and Song 2024 (arXiv 2406.12907).
    """
    a = architecture
    attention = 2 * a.hidden_dim * a.head_dim * (a.num_heads + a.num_kv_heads)
    mlp = 3 * a.hidden_dim * a.mlp_dim
    norms = 2 * a.hidden_dim
    qk_gains = 2 * a.head_dim * a.num_layers if a.qk_norm else 0
    embedding = a.vocab_size * a.hidden_dim * (1 if a.tie_embeddings else 2)
    recipe = a.num_layers * (attention + mlp + norms) + a.hidden_dim + embedding
    match convention:
        case "recipe":
            return recipe
        case "total":
            return recipe + qk_gains
        case "non_embedding":
            return recipe + qk_gains - embedding
        case _:
            raise RecipeError(f"convention={convention!r} is not one of 'total', 'recipe', 'non_embedding'")


def flops_per_token(
    architecture: Architecture,
    *,
    seq_len: int,
    causal: bool = False,
    training: bool = True,
) -> float:
    """Floating-point operations a token, a multiply-add counting as two.

    The forward pass, in the letters of `num_params` and with ``l`` the sequence length::

        f = L (4 H h (q + k) + 6 H M + 4 l h q + 3 l q) + 2 H V

    that is the projections, the MLP, the two attention products, the softmax (three operations an entry of the map)
    and the head. ``causal`` replaces ``l`` by the mean number of visible positions, ``(l + 1) / 2``. A training step
    costs three forward passes: one forward, two backward. For Delphi's shape this is
    ``f = L (32 H^2 + 4 l H + 3 l H / 128) + 2 H V``.

    Args:
        architecture: the shape.
        seq_len: tokens a sequence.
        causal: count only unmasked attention entries; else the whole map, as Delphi's budgets do.
        training: count forward and backward; else forward alone.

    Returns:
        FLOPs a token.

    See: Delphi, https://openathena.ai/blog/delphi; Hoffmann et al. 2022 (arXiv 2203.15556), appendix F.
    """
    if seq_len < 1:
        raise RecipeError(f"seq_len={seq_len} must be at least 1")
    a = architecture
    visible = (seq_len + 1) / 2 if causal else seq_len
    projections = 4 * a.hidden_dim * a.head_dim * (a.num_heads + a.num_kv_heads)
    mlp = 6 * a.hidden_dim * a.mlp_dim
    attention = 4 * visible * a.head_dim * a.num_heads + 3 * visible * a.num_heads
    forward = a.num_layers * (projections + mlp + attention) + 2 * a.hidden_dim * a.vocab_size
    return float(3 * forward if training else forward)
