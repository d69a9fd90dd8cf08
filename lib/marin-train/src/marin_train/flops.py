"""Parameter and FLOP counts, from the parameter table alone: nothing is allocated.

A product of (m, k) and (k, n) counts 2 m k n. A token is multiplied once by every matrix that it meets, by its share of
the experts, and not at all by a lookup; attention adds the products of scores and of values. Softmax, norms and other
element-wise work are not counted. Training is three times the forward pass; what a policy recomputes is not counted,
because a utilisation must not rise by wasting work.

See: Chowdhery et al. 2022, "PaLM" (arXiv 2204.02311), appendix B.
"""

from marin_train import models
from marin_train.configs import ModelConfig


def num_params(config: ModelConfig) -> int:
    """Values in all leaves; tied embeddings count once."""
    return models.family(config).parameter_table(config).size


def flops_per_token(config: ModelConfig, *, seq_len: int, causal: bool, training: bool = True) -> float:
    """FLOPs a token, averaged over a sequence.

    Args:
        config: the model's shape.
        seq_len: predicted tokens a sequence.
        causal: count the scores of visible pairs, (seq_len + 1) / 2 a token, rather than all seq_len.
        training: forward and backward, rather than forward alone.
    """
    table = models.family(config).parameter_table(config)
    products = sum(p.multiplied * p.size for p in table)
    context = (seq_len + 1) / 2 if causal else seq_len
    scores_and_values = 2 * context * config.num_layers * config.num_heads * config.head_dim
    return (3 if training else 1) * 2 * (products + scores_and_values)
