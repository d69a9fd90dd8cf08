"""Ids of long texts, stretch by stretch: the ids of the whole, in linear time and bounded memory.

Encoding takes some hundred bytes of memory a character, and no corpus is free of a text of a hundred megabytes. So a
text is encoded from its start, a stretch at a time, and each next stretch begins at a *joint*: a place at which the
whole's ids fall apart into those of what lies before and those of what lies after. By induction the ids of all
stretches are those of the whole. Two kinds of joints are known:

- **An edge of a pretoken.** No token crosses it. A pre-tokenizer that reads forward only (no look-behind, no anchor,
  no look-ahead without end) and starts at an edge finds every later edge wherever it started, so that any edge will do;
  of another one only those are taken at which white space begins or ends.
- **A joint of two tokens inside a word**, for BPE alone: a sequence of tokens is the encoding of its text exactly if
  every two neighbours are the encoding of theirs. (Up to the first merge across a joint both sides merge as they do
  alone, in the same order between them; whether there is such a merge is decided by the two tokens at the joint.)

No rule is trusted alone. The text from the joint to the stretch's end, encoded by itself, must give the last ids of the
stretch; the next stretch, which sees further, must begin with the same ids; and where a stretch begins inside a word,
the word's beginning put before it must move no edge. Where no joint is found, the stretch grows; a text in which one
has grown to `MOST_STRETCHES` times its size is refused, never encoded otherwise.

See: the compatible pairs of Antoniou's and van Antwerpen's linear encoder in the crate ``bpe`` of GitHub's
``rust-gems``; Berglund and van der Merwe 2023 (arXiv 2309.08715) for what BPE decides locally.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from marin_zephyr.errors import TextTooLongError
from marin_zephyr.tokens.hugging_face import build_continuing, build_encoder, encoding
from marin_zephyr.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    import tokenizers
    from numpy.typing import NDArray

LEAST_CHARS = 16 * 1024
MOST_STRETCHES = 8

_OVERLAP = 4096  # joints are looked for in so many characters at a stretch's end
_GUARD = 1024  # but not in the last ones, whose ids depend on what follows
_HEAD = 256  # characters of a word's beginning that stand for all of it
_JOINTS_A_KIND = 8
_EDGE_OF_SPACE = re.compile(r"(?<=\S)(?=\s)|(?<=\s)(?=\S)")
_LOOKS_BACK = re.compile(r"\(\?<[=!]|\\[bBAGzZKX]|(?<![\[\\])\^|(?<!\\)\$|\\[1-9]|\(\?P?[=>R&]")
_LOOKS_FAR_AHEAD = re.compile(r"\(\?[=!](?:[^()]|\\.)*(?:\(|(?<!\\)[*+{])")
_REPEATS = re.compile(r"\{(\d*),?(\d*)\}")
_MOST_REPEATS = 64
# What each of these does to a character depends on the character, or on the run of its kind that it is in.
# fmt: off
_READ_FORWARD = frozenset({
    "BertPreTokenizer", "ByteLevel", "CharDelimiterSplit", "Digits", "Metaspace", "Punctuation", "UnicodeScripts",
    "Whitespace", "WhitespaceSplit",
})
# fmt: on


@dataclass(frozen=True)
class _Stretch:
    """``text[start:end]`` and its ids; ``head`` is the beginning of the word that it begins in, or empty."""

    start: int
    end: int
    ids: "NDArray[np.int32]"
    head: str


@dataclass(frozen=True)
class _Joint:
    """Where a next stretch may begin; ``head`` as there."""

    at: int
    head: str


class LongEncoder:
    """Encodes long texts as `tokenizer` would encode them whole. One instance serves one thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        fields = json.loads(tokenizer.content)
        self._joins = _is_local(fields["model"])
        self._splits = _splits(fields.get("pre_tokenizer"))
        self._forward = _reads_forward(fields.get("pre_tokenizer"))

    @cached_property
    def _first(self) -> "tokenizers.Tokenizer":
        return _without_trimming(build_encoder(self._tokenizer.content, self._tokenizer.special_ids))

    @cached_property
    def _later(self) -> "tokenizers.Tokenizer":
        continuing = build_continuing(self._tokenizer.content, self._tokenizer.special_ids)
        return self._first if continuing is None else _without_trimming(continuing)

    def encode(self, text: str, *, limit: int) -> "Iterator[NDArray[np.int32]]":
        """Yields arrays that, one after the other, are the ids of ``text`` without special tokens.

        Args:
            text: any text; what is no longer than ``limit`` is one stretch.
            limit: characters a stretch, at least `LEAST_CHARS`.

        Raises:
            TextTooLongError: ``MOST_STRETCHES * limit`` characters have no joint.
        """
        if limit < LEAST_CHARS:
            raise ValueError(f"limit is {limit}: must be at least {LEAST_CHARS} characters")
        stretch = self._read(text, 0, limit, head="")
        while stretch.end < len(text):
            found = self._follow(text, stretch, limit)
            if found is not None:
                number, following = found
                yield stretch.ids[:number]
                stretch = following
                continue
            size = 2 * (stretch.end - stretch.start)
            if size > MOST_STRETCHES * limit:
                raise TextTooLongError(
                    f"a text of {len(text):,} characters cannot be cut after character {stretch.start:,}: this "
                    f"tokenizer may encode the next {stretch.end - stretch.start:,} only as a whole"
                )
            stretch = self._read(text, stretch.start, size, head=stretch.head)
        yield stretch.ids

    def _read(self, text: str, start: int, size: int, *, head: str) -> _Stretch:
        end = min(start + size, len(text))
        return _Stretch(start, end, self._ids(text[start:end], first=start == 0), head)

    def _ids(self, text: str, *, first: bool = False) -> "NDArray[np.int32]":
        import numpy as np

        backend = self._first if first else self._later
        with encoding():
            [found] = backend.encode_batch_fast([text], add_special_tokens=False)
        return np.fromiter(found.ids, np.int32, count=len(found))

    def _follow(self, text: str, stretch: _Stretch, limit: int) -> tuple[int, _Stretch] | None:
        """How many of the stretch's ids lie before a joint, and the next stretch, which begins there."""
        for joint in self._joints(text, stretch):
            tail = self._ids(text[joint.at : stretch.end])
            number = len(stretch.ids) - len(tail)
            # Nothing agrees with nothing, as where a normalizer strips a stretch's end.
            if number < 1 or not len(tail) or stretch.ids[number:].tolist() != tail.tolist():
                continue
            following = self._read(text, joint.at, limit, head=joint.head)
            settled = (len(tail) + 1) // 2
            if following.ids[:settled].tolist() != tail[:settled].tolist():
                continue
            if joint.head and not self._continues(joint.head, text[joint.at : following.end]):
                continue
            return number, following
        return None

    def _joints(self, text: str, stretch: _Stretch) -> Iterator[_Joint]:
        """Candidates, those first that are cheap to find, the latest of a kind first."""
        floor, roof = max(stretch.end - _OVERLAP, stretch.start + 1), stretch.end - _GUARD
        if not self._splits:
            if self._joins:
                yield from self._token_joints(text, stretch, floor, roof)
            return
        edges = [match.start() for match in _EDGE_OF_SPACE.finditer(text, floor, roof)]
        found = (_Joint(at, "") for at in reversed(edges[-4 * _JOINTS_A_KIND :]) if self._is_edge(text, at, floor))
        yield from _first_of(found, _JOINTS_A_KIND)
        if self._forward:
            yield from self._token_joints(text, stretch, floor, roof)

    def _is_edge(self, text: str, at: int, floor: int) -> bool:
        """Whether the pre-tokenizer lets no pretoken cross ``at``, seen in a window around it."""
        begin = max(floor - 1, at - 64)
        spans = (span for _, span in self._later.pre_tokenizer.pre_tokenize_str(text[begin : at + 64]))
        return all(not start < at - begin < end for start, end in spans)

    def _token_joints(self, text: str, stretch: _Stretch, floor: int, roof: int) -> Iterator[_Joint]:
        """Joints of two tokens, as the backend reports them: edges of pretokens, then those inside a word."""
        backend = self._first if stretch.start == 0 else self._later
        found = backend.encode(text[stretch.start : stretch.end], add_special_tokens=False)
        offsets, words = found.offsets, found.word_ids
        edges, inside = [], []
        for k in range(len(offsets) - 1, 0, -1):
            at = stretch.start + offsets[k][0]
            if at < floor:
                break
            if at <= roof and stretch.start + offsets[k - 1][1] <= at:
                (inside if words[k] == words[k - 1] else edges).append((at, words[k]))
        for at, _ in edges[:_JOINTS_A_KIND]:
            yield _Joint(at, "")
        if not self._joins:
            return
        for at, word in inside[:: max(1, len(inside) // _JOINTS_A_KIND)]:
            begin = stretch.start + offsets[words.index(word)][0]
            opened = stretch.head if word == words[0] and stretch.head else text[begin : min(begin + _HEAD, at)]
            yield _Joint(at, opened if self._splits else "")

    def _continues(self, head: str, text: str) -> bool:
        """Whether ``text`` after ``head`` has the edges that it has alone, the first of its words being the head's."""
        normalizer, pre_tokenizer = self._later.normalizer, self._later.pre_tokenizer
        alone, both = (s if normalizer is None else normalizer.normalize_str(s) for s in (text, head + text))
        shift = len(both) - len(alone)
        (_, (_, end)), *rest = pre_tokenizer.pre_tokenize_str(alone)
        spans = [span for _, span in pre_tokenizer.pre_tokenize_str(both)]
        return spans == [(0, shift + end), *((shift + a, shift + b) for _, (a, b) in rest)]


def _without_trimming(backend: "tokenizers.Tokenizer") -> "tokenizers.Tokenizer":
    """A post-processor only adds special tokens and trims offsets by white space, and neither is wanted."""
    backend.post_processor = None
    return backend


def _first_of[T](items: Iterator[T], number: int) -> Iterator[T]:
    return (item for item, _ in zip(items, range(number), strict=False))


def _is_local(model: dict[str, Any]) -> bool:
    """Whether a model is BPE whose symbols do not depend on where in a word they are."""
    affixes = (model.get("continuing_subword_prefix"), model.get("end_of_word_suffix"))
    return "merges" in model and not any(affixes)


def _parts(pre_tokenizer: dict[str, Any] | None) -> list[dict[str, Any]]:
    if pre_tokenizer is None:
        return []
    if pre_tokenizer["type"] == "Sequence":
        return [part for inner in pre_tokenizer["pretokenizers"] for part in _parts(inner)]
    return [pre_tokenizer]


def _splits(pre_tokenizer: dict[str, Any] | None) -> bool:
    """Whether a pre-tokenizer can make more than one word of a text."""
    return any(
        not (part["type"] == "ByteLevel" and not part.get("use_regex", True))
        and not (part["type"] == "Metaspace" and not part.get("split", True))
        for part in _parts(pre_tokenizer)
    )


def _reads_forward(pre_tokenizer: dict[str, Any] | None) -> bool:
    """Whether edges depend only on the text after the last edge, and not far beyond."""
    return all(
        part["type"] in _READ_FORWARD or (part["type"] == "Split" and _is_forward_pattern(part["pattern"]))
        for part in _parts(pre_tokenizer)
    )


def _is_forward_pattern(pattern: dict[str, str]) -> bool:
    expression = pattern.get("Regex")
    if expression is None:
        return True  # a fixed string
    repeats = (int(n) for pair in _REPEATS.findall(expression) for n in pair if n)
    return (
        not _LOOKS_BACK.search(expression)
        and not _LOOKS_FAR_AHEAD.search(expression)
        and all(n <= _MOST_REPEATS for n in repeats)
    )
