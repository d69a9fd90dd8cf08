"""Measures agree with their definitions in plain Python, and take any text."""

import re
from collections import Counter
from collections.abc import Callable

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr.text import measures
from marin_zephyr.text.measures import MEASURES, STOP_WORDS, measure

# Words that repeat and lines that repeat, bullets, ellipses, other scripts and nothing at all.
PROSE = st.lists(
    st.sampled_from(
        ["the", "of", "and", "x", "cat", "{", "#", "...", "…", "- ", "•", "\n", "\n\n", "日本", "שלום", "🙂", "12"]
    ),
    max_size=60,
).map(" ".join)
ODD = st.text(max_size=80) | st.text("\n \t.#-•…🙂日ש\u200f\u0301", max_size=80)


def share(part: float, whole: float) -> float:
    return part / max(whole, 1)


def repeats(parts: list[str]) -> list[str]:
    return [part for i, part in enumerate(parts) if part in parts[:i]]


def stripped(parts: list[str]) -> list[str]:
    """Without white space at the ends (Unicode's, which is not quite Python's), and without those of nothing else."""
    return [part for part in (re.sub(r"^\s+|\s+$", "", part) for part in parts) if part]


def top(words: list[str], n: int) -> int:
    counts = Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
    _, length, count = max(((c, len(" ".join(g)), c) for g, c in counts.items() if c > 1), default=(0, 0, 0))
    return length * count


def covered(words: list[str], n: int) -> int:
    seen, inside = set(), set()
    for i in range(len(words) - n + 1):
        gram = tuple(words[i : i + n])
        inside |= set(range(i, i + n)) if gram in seen else set()
        seen.add(gram)
    return sum(len(words[i]) for i in inside)


def by_definition(text: str) -> dict[str, float]:
    words = re.findall(r"\S+", text)
    lines, paragraphs = stripped(text.split("\n")), stripped(text.split("\n\n"))
    return {
        "num_words": len(words),
        "mean_word_length": share(sum(map(len, words)), len(words)),
        "alphabetic_words": share(sum(any(c.isalpha() for c in word) for word in words), len(words)),
        "stop_words": sum(word in words for word in STOP_WORDS),
        "hashes_per_word": share(text.count("#"), len(words)),
        "ellipses_per_word": share(text.count("...") + text.count("…"), len(words)),
        "bullet_lines": share(sum(bool(re.match(r"[•‣◦▪●*-]\s", line)) for line in lines), len(lines)),
        "ellipsis_lines": share(sum(line.endswith(("...", "…")) for line in lines), len(lines)),
        "terminal_lines": share(sum(line.endswith((".", "!", "?", '"', "'", "”", "’")) for line in lines), len(lines)),
        "short_lines": share(sum(len(line) <= 30 for line in lines), len(lines)),
        "repeated_lines": share(len(repeats(lines)), len(lines)),
        "repeated_line_chars": share(sum(map(len, repeats(lines))), len(text)),
        "repeated_paragraphs": share(len(repeats(paragraphs)), len(paragraphs)),
        "repeated_paragraph_chars": share(sum(map(len, repeats(paragraphs))), len(text)),
        **{f"top_{n}_gram": share(top(words, n), len(text)) for n in range(2, 5)},
        **{f"repeated_{n}_grams": share(covered(words, n), len(text)) for n in range(5, 11)},
        "curly_brackets": text.count("{") + text.count("}"),
        "lorem_ipsum": text.lower().count("lorem ipsum"),
    }


@settings(max_examples=50)
@given(st.lists(PROSE, max_size=5))
def test_measures_are_as_defined(texts: list[str]) -> None:
    measured = measure(pl.Series(texts, dtype=pl.String), MEASURES)
    for i, text in enumerate(texts):
        assert {name: values[i] for name, values in measured.items()} == pytest.approx(by_definition(text))


@settings(max_examples=50)
@given(st.lists(ODD, max_size=5))
def test_any_text_has_measures_of_its_own(texts: list[str]) -> None:
    together = measure(pl.Series(texts, dtype=pl.String), MEASURES)
    for i, text in enumerate(texts):
        alone = measure(pl.Series([text]), MEASURES)
        for name, values in together.items():
            assert np.isfinite(values[i])
            assert values[i] == alone[name][0], name


def test_a_long_text_is_measured_by_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "日本 the cat and the dog\n" * 9
    monkeypatch.setattr(measures, "LONGEST", 40)
    whole, beginning, short = zip(*measure(pl.Series([text, text[:40], "the"]), MEASURES).values(), strict=True)
    assert whole == beginning != short


@pytest.mark.parametrize("make", [lambda n: "a" * n, lambda n: "a " * n, lambda n: "\n" * n, lambda n: "ab\n\n" * n])
def test_long_texts_of_one_kind_are_no_harder_than_others(make: Callable[[int], str]) -> None:
    """Of so many repetitions anything quadratic would not end."""
    measured = measure(pl.Series([make(200_000)]), MEASURES)
    assert all(np.isfinite(values[0]) for values in measured.values())
