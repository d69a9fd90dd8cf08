"""Packing: how a store's documents become sequences, decided at load and not when the store is written.

*Contiguous* packing cuts the stream every ``seq_len`` tokens and reads one more, so that each token but the stream's
first is a target exactly once. Documents follow one another inside a sequence; the end-of-sequence id between them
is predicted like any other token. What is left at the end, shorter than a sequence, is dropped.

*Document* packing keeps documents apart: `document_packing` says which stretch of the stream a sequence is, the
documents in it are numbered as segments, and no token is predicted from another document. Every prediction inside a
document that is kept comes exactly once an epoch.

In both, a store's ``.mask`` has the last word: a target that it does not count is not counted, also where that leaves
a sequence without any.
"""

from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from marin_train.configs import DataConfig, PackingConfig
from marin_train.data.document_packing import plan_documents
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
    """A store as numbered sequences.

    Attributes:
        num_sequences: how many there are.
        num_padding: inputs that hold no token, over all sequences.
        num_dropped: tokens of the store that are in no sequence.
    """

    num_sequences: int
    num_padding: int
    num_dropped: int

    def empty(self, num: int) -> Sequences:
        """Room for so many sequences."""
        ...

    def fill(self, out: Sequences, rows: np.ndarray, numbers: np.ndarray) -> None:
        """Writes the sequences of these numbers, Int64[n] each below ``num_sequences``, into those rows, Int64[n]."""
        ...

    def extents(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where in the store's stream the sequences of these numbers begin, and their tokens there: Int64[n] twice."""
        ...

    def read(self, numbers: np.ndarray) -> Sequences:
        """The sequences of these numbers, in this order."""
        out = self.empty(len(numbers))
        self.fill(out, np.arange(len(numbers)), numbers)
        return out


def pack(store: TokenStore, config: DataConfig) -> Packing:
    """The packing that ``config`` asks for."""
    if config.packing.kind == "documents":
        return DocumentPacking(store, config.seq_len, packing=config.packing)
    return ContiguousPacking(store, config.seq_len, reset_positions=config.packing.reset_positions)


class ContiguousPacking(Packing):
    """The stream of all documents, cut every ``seq_len`` tokens.

    Args:
        store: where they lie.
        seq_len: predicted tokens a sequence.
        reset_positions: whether positions begin anew with each document; it is still attended to from the next.
    """

    num_padding = 0

    def __init__(self, store: TokenStore, seq_len: int, *, reset_positions: bool = False) -> None:
        self._store, self._seq_len, self._reset = store, seq_len, reset_positions
        self.num_sequences = max(0, store.num_tokens - 1) // seq_len
        self.num_dropped = store.num_tokens - (self.num_sequences * seq_len + 1 if self.num_sequences else 0)

    @cached_property
    def _borders(self) -> np.ndarray:
        return self._store.document_borders()

    def extents(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the sequences of these numbers begin, and how many tokens they have."""
        return np.asarray(numbers, np.int64) * self._seq_len, np.full(len(numbers), self._seq_len + 1)

    def empty(self, num: int) -> Sequences:
        """Room for so many sequences; every target counts."""
        positions = np.empty((num, self._seq_len), np.int32) if self._reset else None
        tokens = np.empty((num, self._seq_len + 1), np.int32)
        return Sequences(tokens, np.ones((num, self._seq_len), bool), positions=positions)

    def fill(self, out: Sequences, rows: np.ndarray, numbers: np.ndarray) -> None:
        """Writes the sequences of these numbers into those rows."""
        width, starts = self._seq_len, self.extents(numbers)[0]
        self._store.gather_into(out.tokens, rows, starts)
        if self._store.has_mask:
            out.loss_mask[rows] = self._store.gather_mask(starts + 1, width)
        if out.positions is not None:
            _, columns = _documents_of(starts, starts + width, borders=self._borders, width=width)
            out.positions[rows] = np.arange(width, dtype=np.int32) - columns


class DocumentPacking(Packing):
    """Whole documents, as many to a sequence as fit in the store's order, each a segment of its own.

    It keeps 8 bytes a document and at most 24 a sequence in memory.

    Args:
        store: where they lie.
        seq_len: predicted tokens a sequence.
        packing: what becomes of documents that are too long, and whether positions begin anew with each.
    """

    def __init__(self, store: TokenStore, seq_len: int, *, packing: PackingConfig) -> None:
        self._store, self._seq_len, self._reset = store, seq_len, packing.reset_positions
        self._borders = store.document_borders()
        self._plan = plan_documents(self._borders, seq_len=seq_len, overlong=packing.overlong)
        self.num_sequences = self._plan.num_sequences
        self.num_padding, self.num_dropped = self._plan.num_padding, self._plan.num_dropped

    def extents(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the sequences of these numbers begin, and how many tokens they have."""
        return self._plan.locate(np.asarray(numbers, np.int64))

    def empty(self, num: int) -> Sequences:
        """Room for so many sequences."""
        tokens, shape = np.empty((num, self._seq_len + 1), np.int32), (num, self._seq_len)
        positions = np.empty(shape, np.int32) if self._reset else None
        return Sequences(tokens, np.empty(shape, bool), np.empty(shape, np.int32), positions)

    def fill(self, out: Sequences, rows: np.ndarray, numbers: np.ndarray) -> None:
        """Writes the sequences of these numbers into those rows; token ids and positions of the padding are 0."""
        assert out.segment_ids is not None
        room = self._seq_len + 1
        starts, lengths = self.extents(numbers)
        tokens, mask = _gather(self._store, starts, width=room)
        segments, columns = _documents_of(starts, starts + lengths, borders=self._borders, width=room)
        used = segments > 0
        out.tokens[rows] = tokens * used
        out.loss_mask[rows] = mask & (segments[:, 1:] == segments[:, :-1]) & used[:, 1:]
        out.segment_ids[rows] = segments[:, :-1]
        if out.positions is not None:
            out.positions[rows] = ((np.arange(room, dtype=np.int32) - columns) * used)[:, :-1]


def _gather(store: TokenStore, starts: np.ndarray, *, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Stretches of ``width`` tokens, and whether each token but their first counts; beyond the stream, 0 and True."""
    if not len(starts) or int(starts.max()) + width <= store.num_tokens:
        tokens = store.gather(starts, width)
        if store.has_mask:
            return tokens, store.gather_mask(starts + 1, width - 1)
        return tokens, np.ones((len(starts), width - 1), bool)
    tokens, mask = np.zeros((len(starts), width), np.int32), np.ones((len(starts), width - 1), bool)
    inside = starts + width <= store.num_tokens
    tokens[inside], mask[inside] = _gather(store, starts[inside], width=width)
    for row in np.flatnonzero(~inside).tolist():
        start, size = int(starts[row]), store.num_tokens - int(starts[row])
        tokens[row, :size] = store.read(start, start + size)
        mask[row, : size - 1] = store.read_mask(start + 1, start + size)
    return tokens, mask


def _documents_of(
    starts: np.ndarray, stops: np.ndarray, *, borders: np.ndarray, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """For each token of each stretch: its document's number there, from 1, and the column where that begins.

    Args:
        starts: Int64[n], where the stretches begin; a document that began before is taken to begin here.
        stops: Int64[n], where they end; what is beyond has number 0.
        borders: Int64[documents + 1], where documents begin in the stream, then its end.
        width: columns a stretch.

    Returns:
        Int32[n, width] twice.
    """
    first = np.searchsorted(borders, starts, side="right")
    # Runs of columns: one of each document, and one beyond them, which may have no column.
    runs = np.searchsorted(borders, stops, side="left") - first + 2
    ends = np.cumsum(runs)
    begins = ends - runs
    stretch = np.repeat(np.arange(len(starts)), runs)
    number = np.arange(1, len(stretch) + 1) - begins[stretch]
    column = np.take(borders, first[stretch] + number - 2, mode="clip") - starts[stretch]
    column[begins], column[ends - 1] = 0, stops - starts
    number[ends - 1] = 0
    following = np.empty_like(column)
    following[:-1] = column[1:]
    following[ends - 1] = width
    sizes, shape = following - column, (len(starts), width)
    number, column = (np.repeat(run.astype(np.int32), sizes).reshape(shape) for run in (number, column))
    return number, column
