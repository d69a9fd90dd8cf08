"""Texts with control tokens and a loss mask, to ids.

A `MarkedText` is a string that says of its characters which are control tokens and which count in the loss. What this
module keeps:

- **Only what is marked is a control token.** Special strings elsewhere in the text are encoded as ordinary text.
- **The ids are those of the whole.** They equal what the tokenizer gives when it parses the text with its special
  tokens, if these stand where the marks are. Text between two control tokens is encoded in one stretch, whether or not
  it counts, so that merges across the border of a turn are the ones that a model sees when it is used.
- **A token counts if any of its characters does.** A token that straddles a border belongs to what counts.

How: each marked control token is replaced by one *border* character, which a copy of the tokenizer knows as an added
token with the same rules for the white space around it. The library then finds the borders, and nothing else, by
itself; the ids of borders are exchanged for those of the control tokens. Borders are Unicode noncharacters, which no
interchanged text should hold; a text that does is refused.

See: ``char_to_token`` in the assistant masks of Hugging Face transformers, which count straddling tokens likewise;
Unicode 16.0, section 23.7, for noncharacters.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from marin_zephyr.errors import RejectRow
from marin_zephyr.tokens.batches import Encoded
from marin_zephyr.tokens.hugging_face import build_bordered, encoding
from marin_zephyr.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    import tokenizers
    from numpy.typing import NDArray

    from marin_zephyr.tokens.texts import SpecialIds

RESERVED = "".join(map(chr, range(0xFDD0, 0xFDE0)))
"""The noncharacters that mean something here, and that no text may hold. Those from the ninth on are borders."""

_BORDERS = RESERVED[8:]
_NO_TEXT = re.compile(f"[{RESERVED}\ud800-\udfff]")

type Span = tuple[int, int]


@dataclass(frozen=True)
class MarkedText:
    """A document's text.

    Attributes:
        text: all of it, control tokens included as their strings.
        controls: ``(start, stop)`` of each control token, in characters, ascending.
        counted: ``(start, stop)`` of the stretches that count in the loss.
    """

    text: str
    controls: Sequence[Span]
    counted: Sequence[Span]


class _Bordered(NamedTuple):
    """A text in which borders stand for control tokens.

    Attributes:
        text: that text.
        counts: Bool[characters], which of its characters count.
        places: where its borders are.
        controls: the ids that they stand for.
    """

    text: str
    counts: "NDArray[np.bool_]"
    places: list[int]
    controls: list[int]


class _Document(NamedTuple):
    ids: "NDArray[np.int32]"
    mask: "NDArray[np.bool_]"


class MarkedEncoder:
    """Encodes marked texts. One instance serves one thread."""

    def __init__(self, tokenizer: Tokenizer, specials: "SpecialIds") -> None:
        """Makes an encoder.

        Args:
            tokenizer: whose ids are wanted.
            specials: what begins and ends each document; a text that begins or ends with it already gets no second one.
        """
        from tokenizers import AddedToken

        self._special = {
            token.content: (number, _border(token))
            for number, token in tokenizer.backend.get_added_tokens_decoder().items()
            if token.special
        }
        self._first_border = tokenizer.vocab_size
        borders = [
            AddedToken(b, lstrip=bool(n & 1), rstrip=bool(n & 2), single_word=bool(n & 4), normalized=False)
            for n, b in enumerate(_BORDERS)
        ]
        self._backend = build_bordered(tokenizer.content, tokenizer.special_ids, borders, first=self._first_border)
        self._specials = specials

    @property
    def special_strings(self) -> tuple[str, ...]:
        """The strings of the tokenizer's special tokens: what a text's ``controls`` may mark."""
        return tuple(self._special)

    def encode(self, makers: Iterable[Callable[[], MarkedText]]) -> Encoded:
        """Encodes a run of rows.

        Args:
            makers: one callable a row: it makes the row's text, or raises `RejectRow`.
        """
        import numpy as np

        marked: dict[int, MarkedText] = {}
        refused: dict[int, str] = {}
        num_rows = 0
        for row, make in enumerate(makers):
            num_rows = row + 1
            try:
                text = make()
                check_characters(text.text)
                marked[row] = self._ended(text)
            except RejectRow as verdict:
                refused[row] = str(verdict).encode("utf-8", "backslashreplace").decode()
        lengths, num_bytes = np.zeros(num_rows, np.int64), np.zeros(num_rows, np.int64)
        documents = [_Document(np.zeros(0, np.int32), np.zeros(0, np.bool_))]
        for row, document in zip(marked, self._documents(list(marked.values())), strict=True):
            if isinstance(document, str):
                refused[row] = document
                continue
            documents.append(document)
            lengths[row], num_bytes[row] = len(document.ids), _text_bytes(marked[row])
        ids, mask = (np.concatenate(column) for column in zip(*documents, strict=True))
        return Encoded(ids, lengths, num_bytes, mask, refused)

    def _ended(self, marked: MarkedText) -> MarkedText:
        """Without white space after an end-of-sequence token, if the document is to end with that."""
        if self._specials.eos is None or not marked.controls:
            return marked
        start, end = marked.controls[-1]
        if self._special[marked.text[start:end]][0] != self._specials.eos or not marked.text[end:].isspace():
            return marked
        return MarkedText(marked.text[:end], marked.controls, marked.counted)

    def _documents(self, texts: Sequence[MarkedText]) -> "list[_Document | str]":
        """The document of each text, or why it is none."""
        bordered = [self._with_borders(text) for text in texts]
        with encoding():
            encodings = self._backend.encode_batch([one.text for one in bordered], add_special_tokens=False)
        return [self._document(*pair) for pair in zip(encodings, bordered, strict=True)]

    def _with_borders(self, marked: MarkedText) -> _Bordered:
        import numpy as np

        counts = np.zeros(len(marked.text), np.bool_)
        for start, stop in marked.counted:
            counts[start:stop] = True
        keep = np.ones(len(marked.text), np.bool_)
        pieces: list[str] = []
        places, controls = [], []
        length = at = 0
        for start, stop in marked.controls:
            number, border = self._special[marked.text[start:stop]]
            pieces += marked.text[at:start], border
            length += start - at
            places.append(length)
            controls.append(number)
            keep[start + 1 : stop] = False
            length, at = length + 1, stop
        return _Bordered("".join([*pieces, marked.text[at:]]), counts[keep], places, controls)

    def _document(self, encoded: "tokenizers.Encoding", bordered: _Bordered) -> _Document | str:
        import numpy as np

        ids = np.array(encoded.ids, np.int32)
        is_border = ids >= self._first_border
        if is_border.sum() != len(bordered.controls):
            return "a control token that must be a word of its own touches another word"
        if not len(ids):
            return "no text is left of it"
        starts, stops = np.array(encoded.offsets, np.int64).T
        counted = np.concatenate([[0], np.cumsum(bordered.counts)])
        mask = counted[stops] > counted[starts]
        ids[is_border] = bordered.controls
        mask[is_border] = bordered.counts[bordered.places]  # its offsets take in the white space that it swallows
        if not mask.any():
            return "nothing in it counts in the loss"
        return self._surrounded(ids, mask)

    def _surrounded(self, ids: "NDArray[np.int32]", mask: "NDArray[np.bool_]") -> _Document:
        """With the special ids that are wanted around it. An end counts if what it ends does."""
        import numpy as np

        bos, eos = self._specials.bos, self._specials.eos
        if bos is not None and ids[0] != bos:
            ids, mask = np.insert(ids, 0, bos), np.insert(mask, 0, False)
        if eos is not None and ids[-1] != eos:
            ids, mask = np.append(ids, np.int32(eos)), np.append(mask, mask[-1])
        return _Document(ids, mask)


def _border(token: "tokenizers.AddedToken") -> str:
    """The border that behaves like ``token`` beside white space and words."""
    return _BORDERS[token.lstrip + 2 * token.rstrip + 4 * token.single_word]


def check_characters(text: str) -> None:
    """Raises `RejectRow` if ``text`` holds one of the characters that are `RESERVED`, or half a surrogate pair."""
    found = _NO_TEXT.search(text)
    if found:
        kind = "noncharacter" if found[0] in RESERVED else "surrogate"
        raise RejectRow(f"it holds the {kind} U+{ord(found[0]):04X}, which is no text")


def _text_bytes(marked: MarkedText) -> int:
    """UTF-8 bytes of the text, control tokens aside."""
    return len(marked.text.encode()) - sum(len(marked.text[a:b].encode()) for a, b in marked.controls)
