"""N-gram sets: what is a token, what is an n-gram, and that a document's set depends on that document alone."""

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_zephyr.text import ngrams
from marin_zephyr.text.ngrams import jaccard, ngram_sets, num_shared

WORDS = st.lists(
    st.sampled_from(["a", "b", "ab", "Ab", "naïve", "x_1", "日本", "🙂", "—", "«", "\n", "==", "(", " "]), max_size=40
)


def tokens_by_definition(text: str) -> list[str]:
    """The definition in the module's docstring, as a regular expression over characters."""
    folded = "".join(c.lower() if c.isascii() else c for c in text)
    return re.findall(r"[\u3000-\u9fff]|(?:[a-z0-9_]|[^\x00-\x7f\u0080-\u00bf\u2000-\u9fff])+", folded)


def set_by_definition(text: str, ngram: int) -> set[tuple[str, ...]]:
    tokens = tokens_by_definition(text)
    return {tuple(tokens[i : i + ngram]) for i in range(max(1, len(tokens) - ngram + 1))} if tokens else set()


def sets_of(*texts: str, ngram: int = 5, as_type: pa.DataType | None = None) -> ngrams.NgramSets:
    return ngram_sets(pa.array(texts, as_type or pa.large_string()), ngram=ngram)


# A word directly after a kana or Han character joins that character's token; the samples keep them apart.
@given(st.lists(WORDS.map(" ".join), max_size=6), st.integers(1, 6))
def test_jaccard_of_hashes_is_jaccard_of_the_ngrams_themselves(texts: list[str], ngram: int) -> None:
    hashed = sets_of(*texts, ngram=ngram)
    true = [set_by_definition(text, ngram) for text in texts]
    assert [len(hashed[i]) for i in range(len(texts))] == [len(ngrams_) for ngrams_ in true]
    for i in range(len(texts)):
        for j in range(len(texts)):
            assert num_shared(hashed[i], hashed[j]) == len(true[i] & true[j])


@given(st.lists(st.text(max_size=200), min_size=1, max_size=8), st.integers(1, 6))
def test_a_set_does_not_depend_on_the_neighbours(texts: list[str], ngram: int) -> None:
    together = sets_of(*texts, ngram=ngram)
    for i, text in enumerate(texts):
        np.testing.assert_array_equal(together[i], sets_of(text, ngram=ngram)[0])


@given(st.lists(st.text("ab \né日", max_size=60), min_size=1, max_size=6))
def test_pieces_smaller_than_documents_change_no_neighbour(texts: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ngrams, "PIECE", 16)
        together = sets_of(*texts, ngram=2)
        for i, text in enumerate(texts):
            np.testing.assert_array_equal(together[i], sets_of(text, ngram=2)[0])
    for i, text in enumerate(texts):
        if len(text.encode()) <= 16:
            np.testing.assert_array_equal(together[i], sets_of(text, ngram=2)[0])


def test_sliced_and_narrow_arrays_give_the_same_sets() -> None:
    texts = ["one two three", "", "four five six seven", "eight"]
    whole = sets_of(*texts, ngram=2)
    sliced = ngram_sets(pa.array(texts, pa.string()).slice(2), ngram=2)
    np.testing.assert_array_equal(sliced[0], whole[2])
    np.testing.assert_array_equal(sliced[1], whole[3])


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("if x==1:\n\treturn y", "if x == 1: return Y"),
        ("he said “stop” — now", 'He said "stop" - now'),
        ("one\u00a0two", "one two"),
    ],
)
def test_layout_case_and_punctuation_do_not_count(left: str, right: str) -> None:
    sets = sets_of(left, right, ngram=2)
    assert jaccard(sets[0], sets[1]) == 1.0


def test_text_without_spaces_has_ngrams_of_characters() -> None:
    sets = sets_of("機械学習の研究", "機械学習の実験", ngram=2)
    assert jaccard(sets[0], sets[1]) == pytest.approx(4 / 8)


def test_long_document_has_one_more_token_at_each_cut() -> None:
    letters = sets_of("q" * (2 * ngrams.PIECE + 5), ngram=1)
    assert len(letters[0]) == 2  # two equal pieces and a rest


def test_empty_batch_and_empty_documents() -> None:
    assert len(sets_of()) == 0
    sets = sets_of("", "...", "word", ngram=3)
    assert [len(sets[i]) for i in range(3)] == [0, 0, 1]
    assert jaccard(sets[0], sets[1]) == 0.0


def test_hashes_are_pinned() -> None:
    """Stored sketches outlive a release: a change of this value must come with a new version of the stage."""
    assert [f"{h:016x}" for h in sets_of("The quick brown fox", ngram=3)[0].tolist()] == PINNED


PINNED = ["0a7d9e5bb99da27f", "e5993caee52e0ed9"]


def test_nulls_are_refused() -> None:
    with pytest.raises(ValueError, match="nulls"):
        ngram_sets(pa.array(["a", None], pa.large_string()))
