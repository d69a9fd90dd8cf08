"""Any string is a text: each kernel takes it, and finds in it what it would find if it stood alone."""

from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr.text.corpus import SLICE_BYTES
from marin_zephyr.text.decontamination import match
from marin_zephyr.text.evaluations import Forbidden
from marin_zephyr.text.lookups import write_lookup
from marin_zephyr.text.minhash import Banding
from marin_zephyr.text.ngrams import hash_ngrams, hash_tokens
from marin_zephyr.text.quality import GOPHER, judge
from marin_zephyr.text.sketches import sketch

BANDING = Banding(4, 2)
ODD = st.one_of(
    st.text(max_size=60),
    st.text("🙂👩‍👩‍👧日本語שלום\u202e\u0301\ufeff «—.,!\n\r\t", max_size=60),
    st.sampled_from(["", " ", "...", "\n" * 9, "\u2028", "a", "日", "🙂"]),
)


def table(texts: list[str]) -> pa.Table:
    sizes = pa.array([len(text.encode()) for text in texts], pa.int64())
    ids = pa.array([str(i) for i in range(len(texts))], pa.string())
    return pa.table({"id": ids, "text": pa.array(texts, pa.large_string()), "num_bytes": sizes})


def sketched(texts: list[str]) -> list[dict]:
    return sketch(table(texts), ngram=3, num_permutations=8, banding=BANDING).to_pylist()


def forbid(texts: list[str], directory: Path) -> Forbidden:
    """Every run of two words of the texts, and every whole text of one."""
    hashes, _ = hash_ngrams(hash_tokens(pa.array(texts, pa.large_string())), ngram=2)
    return Forbidden(((2, 0, write_lookup(hashes, directory=directory)),))


@settings(max_examples=25)
@given(st.lists(ODD, max_size=8))
def test_sketches_and_judgements_are_those_of_each_text_alone(texts: list[str]) -> None:
    alone = [sketched([text])[0] | {"id": str(i)} for i, text in enumerate(texts)]
    assert sketched(texts) == alone
    judged = [judge(pl.DataFrame(table([text])), rules=GOPHER).to_dicts() for text in texts]
    expected = [row | {"id": str(i)} for i, rows in enumerate(judged) for row in rows]
    assert judge(pl.DataFrame(table(texts)), rules=GOPHER).to_dicts() == expected


@settings(max_examples=50)
@given(st.lists(ODD, max_size=8), st.lists(ODD, max_size=4))
def test_a_text_of_any_words_matches_itself(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], others: list[str]
) -> None:
    matched = match(table([*texts, *others]), forbidden=forbid(texts, tmp_path_factory.mktemp("lookups")))
    with_words = np.diff(hash_tokens(pa.array(texts, pa.large_string())).offsets) > 0
    assert {str(i) for i in np.flatnonzero(with_words)} <= set(matched["id"].to_pylist())


@pytest.mark.parametrize("unit", ["a", "a ", "\n", "日", "🙂", "—", "word and another\n"])
def test_a_long_text_among_short_ones_changes_none_of_them(tmp_path: Path, unit: str) -> None:
    """Several times what is worked on at a time; anything quadratic would not end."""
    long = unit * (5 * SLICE_BYTES // len(unit.encode()))
    short = ["one two three four", "", unit, "five six seven"]
    assert sketched([*short[:2], long, *short[2:]]) == [
        row | {"id": str(i)} for i, row in enumerate([*sketched(short[:2]), *sketched([long]), *sketched(short[2:])])
    ]
    matched = match(table([*short[:2], long, *short[2:]]), forbidden=forbid(["five six"], tmp_path))
    assert matched["id"].to_pylist() == ["4"]
