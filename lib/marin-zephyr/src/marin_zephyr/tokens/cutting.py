"""Long documents in pieces whose ids, one after the other, are the ids of the whole.

Encoding takes some hundred bytes of memory a token, and one long document keeps one core busy while the others wait. A
tokenizer with a pre-tokenizer never merges across a pretoken's edge, so a cut there changes nothing, provided the
pre-tokenizer finds the same edges in the pieces. That it does is not assumed but asked. A cut is taken where

- the pre-tokenizer puts an edge when it sees a window of text around it, with whole pretokens on both sides,
- white space begins or ends, so that the edge cannot depend on what lies before the window (groups of three digits
  in a number longer than the window do), and
- the window's two halves, encoded apart, give the ids of the window.

The search looks at a bounded number of windows a piece, so that the work is linear in the text. A text that offers no
cut stays whole."""

import re
from collections.abc import Iterator

from marin_zephyr.tokens.tokenizer import Tokenizer

_WINDOW = 1024  # characters on each side of a cut
_WINDOWS_A_PIECE = 4
_CUTS_A_WINDOW = 8
_EDGE_OF_SPACE = re.compile(r"(?<=\S)(?=\s)|(?<=\s)(?=\S)")


def cut(text: str, tokenizer: Tokenizer, *, limit: int) -> Iterator[str]:
    """Yields consecutive pieces of ``text``, most of them of ``limit / 2`` to ``limit`` characters.

    Args:
        text: any text; what is no longer than ``limit`` is one piece.
        tokenizer: the pieces' ids under it, concatenated, equal the ids of ``text``.
        limit: characters a piece, at least ``16 * 1024``; a piece is longer only where no cut is safe.
    """
    if limit < 4 * _WINDOW * _WINDOWS_A_PIECE:
        raise ValueError(f"limit is {limit}: must be at least {4 * _WINDOW * _WINDOWS_A_PIECE} characters")
    start, end = 0, limit
    while end < len(text) and tokenizer.backend.pre_tokenizer is not None:
        found = _last_cut(text, tokenizer, before=end)
        if found is not None:
            yield text[start:found]
            start = found
        end = (found or end) + limit
    yield text[start:]


def _last_cut(text: str, tokenizer: Tokenizer, *, before: int) -> int | None:
    """A safe cut in the last windows of ``text[:before]``, the latest that is found."""
    for number in range(_WINDOWS_A_PIECE):
        middle = before - (2 * number + 1) * _WINDOW
        window = text[middle - _WINDOW : middle + _WINDOW]
        for offset in _candidates(window, tokenizer):
            whole, left, right = tokenizer.encode_batch([window, window[:offset], window[offset:]])
            if whole.tolist() == left.tolist() + right.tolist():
                return middle - _WINDOW + offset
    return None


def _candidates(window: str, tokenizer: Tokenizer) -> list[int]:
    """Edges of pretokens in the middle of a window at which white space begins or ends, the latest first."""
    middle = range(_WINDOW // 2, len(window) - _WINDOW // 2)
    edges = {match.start() for match in _EDGE_OF_SPACE.finditer(window)}.intersection(middle)
    if not edges:
        return []
    pretokens = [span for _, span in tokenizer.backend.pre_tokenizer.pre_tokenize_str(window)]
    # Both neighbours are whole: they neither begin with the window nor end with it.
    starts = {start for start, _ in pretokens[2:-1]}
    return sorted(edges & starts, reverse=True)[:_CUTS_A_WINDOW]
