"""What rules of quality look at: numbers that describe a text, for all documents of a batch at once.

    num_words                 runs of anything but white space
    mean_word_length          characters a word
    alphabetic_words          share of words with a letter
    stop_words                which of the, be, to, of, and, that, have, with occur: how many of these
    hashes_per_word           "#" a word
    ellipses_per_word         "..." and "…" a word
    bullet_lines              share of lines that begin with a bullet
    ellipsis_lines            share of lines that end with an ellipsis
    terminal_lines            share of lines that end with . ! ? or a quotation mark
    short_lines               share of lines of 30 characters or fewer
    repeated_lines            share of lines that an earlier line equals
    repeated_line_chars       share of characters in such lines
    repeated_paragraphs       share of paragraphs (set off by an empty line) that an earlier one equals
    repeated_paragraph_chars  share of characters in such paragraphs
    top_N_gram                share of characters in the most frequent run of N words, if it occurs twice
    repeated_N_grams          share of characters in runs of N words that an earlier run equals, none counted twice
    curly_brackets, lorem_ipsum   occurrences of either phrase

Lines and paragraphs are those that hold anything but white space. A share of nothing is 0. Words and lines are compared
by 64-bit hashes. Time and memory are linear in the length of a text, whatever is in it; a text of more than `LONGEST`
characters is measured by its first `LONGEST`, as its words would take thirty times its own memory.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from marin_zephyr.text.ngrams import Tokens, hash_ngrams, mix

LONGEST = 8_000_000

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")

type Values = NDArray[np.float64]


def measure(texts: pl.Series, names: Iterable[str]) -> dict[str, Values]:
    """Measures texts.

    Args:
        texts: strings without nulls.
        names: the measures, as above.

    Returns:
        Name -> float64 [texts].

    Raises:
        KeyError: there is no such measure.
    """
    view = _View(texts.str.head(LONGEST), {})
    return {name: MEASURES[name](view).astype(np.float64) for name in names}


@dataclass(frozen=True)
class _Parts:
    """Words, lines or paragraphs of all texts of a batch, one after the other.

    Attributes:
        values: [parts], strings.
        hashes: uint64 [parts].
        chars: int64 [parts], their lengths in characters.
        text: int64 [parts], ascending: the text that each is from.
        num_texts: how many texts there are.
    """

    values: pl.Series
    hashes: NDArray[np.uint64]
    chars: NDArray[np.int64]
    text: NDArray[np.int64]
    num_texts: int

    def total(self, weights: NDArray) -> Values:
        """The sum of a number a part, for each text."""
        return np.bincount(self.text, weights=weights, minlength=self.num_texts)

    def share(self, chosen: pl.Series | NDArray[np.bool_]) -> Values:
        """The share of each text's parts that are chosen."""
        return _ratio(self.total(np.asarray(chosen)), self.count())

    def count(self) -> NDArray[np.int64]:
        """The number of parts of each text."""
        return np.bincount(self.text, minlength=self.num_texts)

    def repeated(self) -> NDArray[np.bool_]:
        """Whether an earlier part of the same text equals each part."""
        return _repeated(self.hashes, self.text)


@dataclass(frozen=True)
class _View:
    """The texts of a batch, cut in each way once."""

    texts: pl.Series
    made: dict[str, _Parts]

    @property
    def words(self) -> _Parts:
        return self._cut("words", lambda: self.texts.str.extract_all(r"\S+"))

    @property
    def lines(self) -> _Parts:
        return self._cut("lines", lambda: self.texts.str.split("\n"))

    @property
    def paragraphs(self) -> _Parts:
        return self._cut("paragraphs", lambda: self.texts.str.split("\n\n"))

    @property
    def num_chars(self) -> NDArray[np.int64]:
        return self.texts.str.len_chars().cast(pl.Int64).to_numpy()

    def count(self, *phrases: str) -> NDArray[np.int64]:
        """Occurrences of phrases in each text."""
        counts = (self.texts.str.count_matches(phrase, literal=True).cast(pl.Int64).to_numpy() for phrase in phrases)
        return sum(counts, start=np.zeros(len(self.texts), dtype=np.int64))

    def _cut(self, name: str, cut: Callable[[], pl.Series]) -> _Parts:
        if name not in self.made:
            lists = cut()
            text = np.repeat(np.arange(len(lists)), lists.list.len().to_numpy())
            values = lists.explode(empty_as_null=False).str.strip_chars()
            held = (values.str.len_bytes() > 0).to_numpy()
            values, text = values.filter(held), text[held]
            chars = values.str.len_chars().cast(pl.Int64).to_numpy()
            self.made[name] = _Parts(values, values.hash(seed=0).to_numpy(), chars, text, len(lists))
        return self.made[name]


def _ratio(part: NDArray, whole: NDArray) -> Values:
    return part / np.maximum(whole, 1)


def _repeated(hashes: NDArray[np.uint64], text: NDArray[np.int64]) -> NDArray[np.bool_]:
    repeated = np.ones(len(hashes), dtype=bool)
    repeated[np.unique(_within(hashes, text), return_index=True)[1]] = False
    return repeated


def _within(hashes: NDArray[np.uint64], text: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hashes that are equal only within one text."""
    return hashes ^ mix(text.astype(np.uint64) + np.uint64(1))


def _bullet_lines(view: _View) -> Values:
    return view.lines.share(view.lines.values.str.contains(r"^[•‣◦▪●*-]\s"))


def _ending(*ends: str) -> Callable[[_View], Values]:
    def lines_with_ending(view: _View) -> Values:
        lines = view.lines
        chosen = np.zeros(len(lines.text), dtype=bool)
        for end in ends:
            chosen |= lines.values.str.ends_with(end).to_numpy()
        return lines.share(chosen)

    return lines_with_ending


def _stop_words(view: _View) -> NDArray[np.int64]:
    words = view.words
    found = [words.total((words.values == word).to_numpy()) > 0 for word in STOP_WORDS]
    return np.sum(found, axis=0)


def _repeated_chars(view: _View, parts: _Parts) -> Values:
    return _ratio(parts.total(parts.repeated() * parts.chars), view.num_chars)


@dataclass(frozen=True)
class _Grams:
    """Runs of n words of one text, in order.

    Attributes:
        hashes: uint64 [runs].
        first: int64 [runs], the place of the first word of each among all words.
        text: int64 [runs], ascending: the text that each is from.
    """

    hashes: NDArray[np.uint64]
    first: NDArray[np.int64]
    text: NDArray[np.int64]


def _grams(words: _Parts, n: int) -> _Grams:
    counts = words.count()
    hashes, offsets = hash_ngrams(Tokens(words.hashes, np.concatenate([[0], np.cumsum(counts)])), ngram=n)
    text = np.repeat(np.arange(words.num_texts), np.diff(offsets))
    begins = np.cumsum(counts) - counts
    first = np.arange(len(hashes)) - offsets[text] + begins[text]
    whole = counts[text] >= n
    return _Grams(hashes[whole], first[whole], text[whole])


def _top(n: int) -> Callable[[_View], Values]:
    def top_n_gram(view: _View) -> Values:
        words = view.words
        grams = _grams(words, n)
        _, first, counts = np.unique(_within(grams.hashes, grams.text), return_index=True, return_counts=True)
        first, counts = first[counts > 1], counts[counts > 1]
        before = np.concatenate([[0], np.cumsum(words.chars)])
        begins = grams.first[first]
        lengths = before[begins + n] - before[begins] + n - 1
        # The most frequent, and of equally frequent ones the longest.
        best = np.zeros(words.num_texts, dtype=np.int64)
        np.maximum.at(best, grams.text[first], (counts << 31) | np.minimum(lengths, (1 << 31) - 1))
        return _ratio((best >> 31) * (best & ((1 << 31) - 1)), view.num_chars)

    return top_n_gram


def _repeated_grams(n: int) -> Callable[[_View], Values]:
    def repeated_n_grams(view: _View) -> Values:
        words = view.words
        grams = _grams(words, n)
        begins = grams.first[_repeated(grams.hashes, grams.text)]
        steps = np.zeros(len(words.chars) + 1, dtype=np.int64)
        steps[begins] += 1
        steps[begins + n] -= 1
        return _ratio(words.total((np.cumsum(steps[:-1]) > 0) * words.chars), view.num_chars)

    return repeated_n_grams


MEASURES: dict[str, Callable[[_View], NDArray]] = {
    "num_words": lambda view: view.words.count(),
    "mean_word_length": lambda view: _ratio(view.words.total(view.words.chars), view.words.count()),
    "alphabetic_words": lambda view: view.words.share(view.words.values.str.contains(r"\p{Alphabetic}")),
    "stop_words": _stop_words,
    "hashes_per_word": lambda view: _ratio(view.count("#"), view.words.count()),
    "ellipses_per_word": lambda view: _ratio(view.count("...", "…"), view.words.count()),
    "bullet_lines": _bullet_lines,
    "ellipsis_lines": _ending("...", "…"),
    "terminal_lines": _ending(".", "!", "?", '"', "'", "”", "’"),
    "short_lines": lambda view: view.lines.share(view.lines.chars <= 30),
    "repeated_lines": lambda view: view.lines.share(view.lines.repeated()),
    "repeated_line_chars": lambda view: _repeated_chars(view, view.lines),
    "repeated_paragraphs": lambda view: view.paragraphs.share(view.paragraphs.repeated()),
    "repeated_paragraph_chars": lambda view: _repeated_chars(view, view.paragraphs),
    **{f"top_{n}_gram": _top(n) for n in range(2, 5)},
    **{f"repeated_{n}_grams": _repeated_grams(n) for n in range(5, 11)},
    "curly_brackets": lambda view: view.count("{", "}"),
    "lorem_ipsum": lambda view: _View(view.texts.str.to_lowercase(), {}).count("lorem ipsum"),
}
