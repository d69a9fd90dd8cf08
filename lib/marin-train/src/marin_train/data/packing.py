"""Packing: how a store's stream of tokens becomes sequences, decided at load and not when the store is written.

Contiguous packing cuts the stream every ``seq_len`` tokens and reads one more, so that each token but the stream's
first is a target exactly once. Documents follow one another inside a sequence; the end-of-sequence id between them
is predicted like any other token. What is left at the end, shorter than a sequence, is dropped.
"""

from typing import NamedTuple

import numpy as np

from marin_train.data.store import TokenStore


class Sequences(NamedTuple):
    """Training sequences on the host.

    Attributes:
        tokens: Int32[batch, seq + 1]; inputs are all but the last column, targets all but the first.
        loss_mask: Bool[batch, seq]; whether the target at that position counts in the loss.
    """

    tokens: np.ndarray
    loss_mask: np.ndarray


def num_sequences(store: TokenStore, seq_len: int) -> int:
    """How many whole sequences of ``seq_len`` targets the store's stream holds."""
    return max(0, store.num_tokens - 1) // seq_len


def pack(store: TokenStore, indices: np.ndarray, *, seq_len: int) -> Sequences:
    """Reads sequences by number.

    Args:
        store: the open store.
        indices: Int64[n], each in ``[0, num_sequences(store, seq_len))``.
        seq_len: predicted tokens a sequence.

    Returns:
        The n sequences, in the order of ``indices``.
    """
    tokens = np.empty((len(indices), seq_len + 1), np.int32)
    mask = np.ones((len(indices), seq_len), bool)
    for row, index in enumerate(np.asarray(indices).tolist()):
        start = index * seq_len
        tokens[row] = store.read(start, start + seq_len + 1)
        if store.has_mask:
            mask[row] = store.read_mask(start + 1, start + seq_len + 1)
    return Sequences(tokens, mask)
