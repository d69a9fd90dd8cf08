"""Parameter and FLOP counts, from the parameter table alone: nothing is allocated.

A product of (m, k) and (k, n) counts 2 m k n. A token is multiplied once by every matrix that it meets, by its share of
the experts, and not at all by a lookup; attention adds the products of scores and of values, in each layer with as
many tokens as its window shows. Softmax, norms and other
element-wise work are not counted. Training is three times the forward pass; what a policy recomputes is not counted,
because a utilisation must not rise by wasting work.

See: Chowdhery et al. 2022, "PaLM" (arXiv 2204.02311), appendix B.
"""

from marin_train import models
from marin_train.configs import ModelConfig


def num_params(config: ModelConfig) -> int:
    """Values in all leaves; tied embeddings count once, and rows that only pad the vocabulary do not."""
    return models.family(config).parameter_table(config).size


def flops_per_token(config: ModelConfig, *, seq_len: int, causal: bool, training: bool = True) -> float:
    """FLOPs a token, averaged over a sequence.

    Args:
        config: the model's shape.
        seq_len: predicted tokens a sequence.
        causal: count the scores of visible pairs, (seq_len + 1) / 2 a token, rather than all seq_len; with a window,
            those of the pairs within it, rather than its width.
        training: forward and backward, rather than forward alone.
    """
    family = models.family(config)
    products = sum(p.multiplied * p.size for p in family.parameter_table(config))
    keys = sum(_mean_keys(seq_len, window=kind.window, causal=causal) for kind in family.kinds(config))
    scores_and_values = 2 * keys * config.num_heads * config.head_dim
    return (3 if training else 1) * 2 * (products + scores_and_values)


def _mean_keys(seq_len: int, *, window: int | None, causal: bool) -> float:
    """Keys a query is multiplied by, averaged over a sequence."""
    widest = seq_len if window is None else min(seq_len, window)
    # All but the last of the first `widest` queries see less than `widest` keys: 1, 2, 3 and so on.
    return widest - (widest * (widest - 1) / 2) / seq_len if causal else widest
