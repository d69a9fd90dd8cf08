"""Long documents in pieces: the same ids as in one, for tokenizers of every kind."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from marin_zephyr.tokens import Tokenizer, byte_tokenizer
from marin_zephyr.tokens.cutting import cut

_LIMIT = 16 * 1024
_KINDS: dict[str, Callable[[], tuple]] = {
    "gpt2": lambda: (None, pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "composed": lambda: (normalizers.NFC(), pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "stripped": lambda: (normalizers.Strip(), pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "prefix space": lambda: (None, pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "metaspace": lambda: (None, pre_tokenizers.Metaspace(prepend_scheme="always")),
    "metaspace first": lambda: (None, pre_tokenizers.Metaspace(prepend_scheme="first")),
    "words": lambda: (None, pre_tokenizers.Whitespace()),
    "bytes in one": lambda: (None, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)),
    "none": lambda: (None, None),
}


def train(kind: str, corpus: list[str]) -> Tokenizer:
    backend = Backend(models.BPE(unk_token="<unk>"))
    normalizer, pre_tokenizer = _KINDS[kind]()
    if normalizer is not None:
        backend.normalizer = normalizer
    if pre_tokenizer is not None:
        backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<unk>"], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(corpus[:12], trainer)
    return Tokenizer(content=backend.to_str().encode(), eos_id=None, bos_id=None)


@pytest.fixture(scope="module", params=["trained", "bytes", *_KINDS])
def any_tokenizer(request: pytest.FixtureRequest, trained: Tokenizer, corpus: list[str]) -> Tokenizer:
    if request.param == "trained":
        return trained
    return byte_tokenizer() if request.param == "bytes" else train(request.param, corpus)


def assert_same_ids(tokenizer: Tokenizer, text: str) -> list[str]:
    pieces = list(cut(text, tokenizer, limit=_LIMIT))
    assert "".join(pieces) == text
    whole, *encoded = tokenizer.encode_batch([text, *pieces])
    assert [i for ids in encoded for i in ids.tolist()] == whole.tolist()
    return pieces


_stretches = st.lists(
    st.tuples(
        st.sampled_from(
            ["1", "x", " ", "\n", "\n\n", "\t ", "東", "!", "!\n", "e\u0301", "ab ", " 12", "a\r\n", "\u3000"]
        ),
        st.sampled_from([1, 2, 3, 50, 1024, 3001, 9000]),
    ),
    min_size=4,
    max_size=10,
)


@settings(max_examples=12)
@given(stretches=_stretches, seed=st.integers(0, 1000), mixed=st.booleans())
def test_pieces_have_the_ids_of_the_whole(any_tokenizer: Tokenizer, prose, stretches, seed: int, mixed: bool):
    """Long runs of one thing, in which an edge may depend on where the run began, between ordinary text."""
    ordinary = prose(seed, 400) if mixed else ""
    assert_same_ids(any_tokenizer, ordinary.join(unit * (count // len(unit)) for unit, count in stretches))


@pytest.mark.parametrize("kind", ["trained", "bytes", "gpt2", "composed", "words"])
def test_ordinary_text_is_cut_to_the_limit(kind: str, trained: Tokenizer, corpus: list[str], prose):
    known = {"trained": lambda: trained, "bytes": byte_tokenizer}
    tokenizer = known[kind]() if kind in known else train(kind, corpus)
    text = prose(1, 30_000)
    pieces = assert_same_ids(tokenizer, text)
    assert max(map(len, pieces)) <= _LIMIT
    assert len(pieces) < 3 * len(text) / _LIMIT


@pytest.mark.parametrize("kind", ["none", "bytes in one", "stripped"])
def test_a_tokenizer_without_a_safe_cut_gets_the_whole(kind: str, corpus: list[str], prose):
    text = prose(2, 20_000)
    assert list(cut(text, train(kind, corpus), limit=_LIMIT)) == [text]


def test_what_fits_is_not_looked_at(prose):
    assert list(cut("short", Tokenizer(content=b"", eos_id=None, bos_id=None), limit=_LIMIT)) == ["short"]


class Counting(Tokenizer):
    """Counts the windows that are encoded."""

    calls = 0

    def encode_batch(self, texts):
        type(self).calls += 1
        return super().encode_batch(texts)


@pytest.mark.parametrize("kind", ["stripped", "gpt2"])
def test_the_search_is_bounded_for_each_piece(kind: str, corpus: list[str]):
    """Refused cuts included, so that a text no cut of which is safe takes linear time."""
    text = "".join(random.Random(0).choices(["ab ", "cd\n"], k=30_000))
    made = train(kind, corpus)
    Counting.calls = 0
    list(cut(text, Counting(content=made.content, eos_id=None, bos_id=None), limit=_LIMIT))
    assert 0 < Counting.calls <= 32 * len(text) / (_LIMIT / 2)
