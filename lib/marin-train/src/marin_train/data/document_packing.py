"""Which stretch of a store's stream each sequence is, where documents stay apart: a pure function of their lengths.

A sequence of ``seq_len`` inputs has room for ``seq_len + 1`` tokens, its last being a target only. Documents fill that
room in the store's order, and one that does not fit begins the next sequence (next-fit). So a sequence is one stretch
of the stream, read in one piece and known by two numbers; what it lacks at its end is padding. A document of n tokens
takes n places and has n - 1 predictions, each token but its first from those before it.

A document that is longer than the room is treated as ``PackingConfig.overlong`` says:

- ``split``: its predictions are shared out, ``seq_len`` to a sequence: pieces begin ``seq_len`` tokens apart, and each
  begins with the token that the piece before ended with, so that no prediction is lost and none comes twice. The
  documents behind it join its last piece.
- ``left``, ``right``: the side named is the side kept, its beginning or its end, a sequence for itself. (Levanter's
  ``slice_strategy`` means the same; Hugging Face's ``truncation_side`` names the side that is cut.)
- ``drop``: it is left out; the sequence before it ends there.

See: Johnson 1973, "Near-optimal bin packing algorithms" (MIT), for next-fit; no stretch could be kept by a packing that
reorders documents.
"""

from array import array
from dataclasses import dataclass
from typing import Literal

import numpy as np

_BLOCK = 1 << 18
"""Documents whose successors stand in a list at a time: a list takes several times an array's memory."""


@dataclass(frozen=True)
class DocumentPlan:
    """Sequences as stretches of the stream, those of a split document and what joins it as one: 24 bytes each.

    Attributes:
        seq_len: predicted tokens a sequence.
        starts: Int64[stretches], the first token of each, ascending.
        stops: Int64[stretches], one past its last token.
        ends: Int64[stretches], how many sequences it and those before it are.
        num_padding: inputs that hold no token, over all sequences.
        num_dropped: tokens of the stream that are in no sequence.
    """

    seq_len: int
    starts: np.ndarray
    stops: np.ndarray
    ends: np.ndarray
    num_padding: int
    num_dropped: int

    @property
    def num_sequences(self) -> int:
        """Of all stretches."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def locate(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the sequences of these numbers begin in the stream, and how many tokens each has: Int64[n] twice."""
        stretch = np.searchsorted(self.ends, numbers, side="right")
        left = self.ends[stretch] - numbers  # sequences to the stretch's end, this one among them
        count = -(-(self.stops[stretch] - self.starts[stretch] - 1) // self.seq_len)
        starts = self.starts[stretch] + (count - left) * self.seq_len
        return starts, np.minimum(self.stops[stretch] - starts, self.seq_len + 1)


def plan_documents(
    borders: np.ndarray, *, seq_len: int, overlong: Literal["split", "left", "right", "drop"]
) -> DocumentPlan:
    """Packs documents in their order.

    Args:
        borders: Int64[documents + 1], where each document begins in the stream, then the stream's end.
        seq_len: predicted tokens a sequence.
        overlong: what becomes of a document of more than ``seq_len + 1`` tokens.
    """
    room, leads = seq_len + 1, borders[:-1]
    if overlong == "split":
        # Of a split document the last piece leads a sequence, as a whole document would.
        leads = leads + np.maximum((np.diff(borders) - 2) // seq_len, 0) * seq_len
    first = _first_documents(leads, borders, room=room)
    starts, stops = borders[first], borders[np.append(first[1:], len(borders) - 1)]
    if overlong == "left":
        stops = np.minimum(stops, starts + room)
    elif overlong == "right":
        starts = np.maximum(starts, stops - room)
    kept = stops - starts >= 2  # one token alone predicts nothing
    if overlong == "drop":
        kept &= stops - starts <= room
    starts, stops = starts[kept], stops[kept]
    inputs = -(-(stops - starts - 1) // seq_len) * seq_len
    return DocumentPlan(
        seq_len,
        starts,
        stops,
        ends=np.cumsum(inputs // seq_len),
        num_padding=int(np.maximum(inputs - (stops - starts), 0).sum()),
        num_dropped=int(borders[-1] - (stops - starts).sum()),
    )


def _first_documents(leads: np.ndarray, borders: np.ndarray, *, room: int) -> np.ndarray:
    """The document that each stretch begins with, Int64[stretches].

    Every document's successor, the first that does not fit if it leads, is found at once; following them from the
    first document is all that goes one by one.
    """
    num_documents, at, chain = len(borders) - 1, 0, array("q")
    for base in range(0, num_documents, _BLOCK):
        stop = min(base + _BLOCK, num_documents)
        successors = np.searchsorted(borders, leads[base:stop] + room, side="right") - 1
        following = np.maximum(successors, np.arange(base + 1, stop + 1)).tolist()
        while at < stop:
            chain.append(at)
            at = following[at - base]
    return np.array(chain, np.int64)
