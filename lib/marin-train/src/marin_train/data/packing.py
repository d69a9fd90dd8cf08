"""Packing: how a store's documents become sequences, decided at load and not when the store is written.

Contiguous packing cuts the stream every ``seq_len`` tokens and reads one more, so that each token but the stream's
first is a target exactly once. Documents follow one another inside a sequence; the end-of-sequence id between them
is predicted like any other token. What is left at the end, shorter than a sequence, is dropped.
"""

from typing import NamedTuple, Protocol

import numpy as np

from marin_train.configs import DataConfig
from marin_train.data.store import TokenStore


class Sequences(NamedTuple):
    """Training sequences on the host.

    Attributes:
        tokens: Int32[batch, seq + 1]; inputs are all but the last column, targets all but the first.
        loss_mask: Bool[batch, seq]; whether the target at that position counts in the loss.
        segment_ids: Int32[batch, seq]; inputs of one document share a number, counted from 1; 0 is padding. None where
            documents are not kept apart.
        positions: Int32[batch, seq], the inputs' positions where they are not 0, 1, 2, ...; else None.
    """

    tokens: np.ndarray
    loss_mask: np.ndarray
    segment_ids: np.ndarray | None = None
    positions: np.ndarray | None = None


class Packing(Protocol):
    """A store as numbered sequences."""

    @property
    def num_sequences(self) -> int:
        """How many there are."""
        ...

    def read(self, numbers: np.ndarray) -> Sequences:
        """The sequences of these numbers, Int64[n] each below ``num_sequences``, in this order."""
        ...


def pack(store: TokenStore, config: DataConfig) -> Packing:
    """The packing that ``config`` asks for."""
    return ContiguousPacking(store, config.seq_len)


class ContiguousPacking:
    """The stream of all documents, cut every ``seq_len`` tokens."""

    def __init__(self, store: TokenStore, seq_len: int) -> None:
        self._store, self._seq_len = store, seq_len
        self.num_sequences = max(0, store.num_tokens - 1) // seq_len

    def read(self, numbers: np.ndarray) -> Sequences:
        """The sequences of these numbers."""
        seq_len = self._seq_len
        starts = np.asarray(numbers, np.int64) * seq_len
        masked = self._store.has_mask
        mask = self._store.gather_mask(starts + 1, seq_len) if masked else np.ones((len(starts), seq_len), bool)
        return Sequences(self._store.gather(starts, seq_len + 1), mask)
