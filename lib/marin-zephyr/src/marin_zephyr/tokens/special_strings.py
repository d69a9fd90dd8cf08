"""Which special strings of a rendered conversation its template wrote, and which its messages hold.

Rendered text alone does not tell: a user who writes ``<|im_end|>`` would end the turn. So a conversation whose messages
hold special strings is rendered twice: as it is, and *disguised*, with one character of each such string exchanged for
a stand-in that no text holds. Every special string of the disguised rendering is the template's. If the renderings are
equal but for stand-ins, then those strings stand at the same places of the true one, and all others there are text. If
they are not, the template looked at those very characters, or rewrote them, and which text is whose is not known: the
conversation is refused rather than guessed at.

A special string can also come about where a message's text meets other text (``<|im_`` and ``end|>`` in two messages
that a template writes one after the other). The ends of contents that could take part in one are disguised as well.
Roles may: templates do write ``<|`` and the role and ``|>``. What is not seen is a template that deletes characters
from within a message so that the rest spells a special string; it makes control tokens of text by its own doing.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from marin_zephyr.errors import RejectRow
from marin_zephyr.tokens.marked import RESERVED, Span

_STAND_IN = RESERVED[2]

type Messages = Sequence[Mapping[str, Any]]


class SpecialStrings:
    """The special strings of a tokenizer, and how to find those that are a template's."""

    def __init__(self, strings: Sequence[str]) -> None:
        """Takes the strings; there may be none."""
        longest_first = sorted(strings, key=len, reverse=True)
        # Leftmost, then longest: as tokenizers look for them.
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._strings = tuple(strings)
        self._longest = max(map(len, strings), default=0)
        self._heads = {string[:n] for string in strings for n in range(1, len(string))}
        self._tails = {string[n:] for string in strings for n in range(1, len(string))}

    def find(self, text: str, messages: Messages, render: Callable[[Messages], str]) -> list[Span]:
        """The control tokens of a rendered conversation.

        Args:
            text: what ``render`` made of ``messages``.
            messages: the conversation.
            render: renders one.

        Returns:
            ``(start, stop)`` in characters of each special string that the template wrote, ascending.

        Raises:
            RejectRow: that cannot be told.
        """
        disguised = [self._disguise_message(message) for message in messages]
        if disguised != messages:
            twin = render(disguised)
            if len(twin) != len(text) or any(b not in (a, _STAND_IN) for a, b in zip(text, twin, strict=True)):
                raise RejectRow(
                    "a message holds a special string, and the template does not copy it as it is: what is text and "
                    "what is a control token cannot be told"
                )
            text = twin
        return [match.span() for match in self._pattern.finditer(text)]

    def _disguise_message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        disguised = self._disguise(message)
        if isinstance(disguised.get("content"), str):
            disguised["content"] = self._disguise_ends(disguised["content"])
        return disguised

    def _disguise(self, value: Any) -> Any:
        """``value`` with no special string in it, neither in its strings nor in its keys."""
        if isinstance(value, str):
            while self._pattern.search(value):  # one that overlaps another shows up once that is broken
                value = self._pattern.sub(lambda found: _STAND_IN + found[0][1:], value)
            return value
        if isinstance(value, Mapping):
            return {self._disguise(key): self._disguise(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._disguise(inner) for inner in value]
        return value

    def _disguise_ends(self, text: str) -> str:
        """``text`` with its first and last character exchanged where a special string could reach over them."""
        core = text.strip()  # templates do
        if not core:
            return text
        first, last = text.index(core), text.index(core) + len(core) - 1
        reach = range(1, min(self._longest, len(core) + 1))
        is_inside = len(core) < self._longest and any(core in string for string in self._strings)
        if is_inside or any(core[:n] in self._tails for n in reach):
            text = text[:first] + _STAND_IN + text[first + 1 :]
        if any(core[-n:] in self._heads for n in reach):
            text = text[:last] + _STAND_IN + text[last + 1 :]
        return text
