"""Long texts in stretches: the ids of the whole, for tokenizers of every kind, or a refusal."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from marin_zephyr.errors import TextTooLongError
from marin_zephyr.tokens import Tokenizer, byte_tokenizer
from marin_zephyr.tokens.cutting import LEAST_CHARS, MOST_STRETCHES, LongEncoder
from marin_zephyr.tokens.training import PATTERN

_GPT2 = lambda: pre_tokenizers.ByteLevel(add_prefix_space=False)  # noqa: E731
_ONE_WORD = lambda: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # noqa: E731
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_FROM_THE_RIGHT = r"\d{1,3}(?=(?:\d{3})*(?!\d))|\D+"


def _sentencepiece() -> Backend:
    backend = Backend(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return backend


def _bpe(normalizer=None, pre_tokenizer=None, **settings) -> Backend:
    backend = Backend(models.BPE(unk_token="<unk>", **settings))
    if normalizer is not None:
        backend.normalizer = normalizer
    if pre_tokenizer is not None:
        backend.pre_tokenizer = pre_tokenizer
    return backend


def _patterned(pattern: str) -> Backend:
    return _bpe(None, pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), _ONE_WORD()]))


def _trimming() -> Backend:
    backend = _bpe(None, pre_tokenizers.ByteLevel(add_prefix_space=True))
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    return backend


def _other(model, normalizer, pre_tokenizer) -> Backend:
    backend = Backend(model)
    backend.normalizer, backend.pre_tokenizer = normalizer, pre_tokenizer
    return backend


_KINDS: dict[str, Callable[[], Backend]] = {
    "gpt2": lambda: _bpe(None, _GPT2()),
    "gpt4": lambda: _patterned(PATTERN),
    "cased": lambda: _patterned(_CASED),
    "digits from the right": lambda: _patterned(_FROM_THE_RIGHT),
    "whole words": lambda: _bpe(None, _GPT2(), ignore_merges=True),
    "composed": lambda: _bpe(normalizers.NFC(), _GPT2()),
    "stripped": lambda: _bpe(normalizers.Strip(), _GPT2()),
    "prefix space, trimmed": _trimming,
    "metaspace": lambda: _bpe(None, pre_tokenizers.Metaspace(prepend_scheme="always")),
    "metaspace first": lambda: _bpe(None, pre_tokenizers.Metaspace(prepend_scheme="first")),
    "metaspace, one word": lambda: _bpe(None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False)),
    "words": lambda: _bpe(None, pre_tokenizers.Whitespace()),
    "bytes in one": lambda: _bpe(None, _ONE_WORD()),
    "none": _bpe,
    "sentencepiece": _sentencepiece,
    "affixes": lambda: _bpe(None, pre_tokenizers.WhitespaceSplit(), end_of_word_suffix="</w>"),
    "unigram": lambda: _other(models.Unigram(), normalizers.NFKC(), pre_tokenizers.Metaspace()),
    "wordpiece": lambda: _other(
        models.WordPiece(unk_token="<unk>"), normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    ),
}


def train(kind: str, corpus: list[str]) -> Tokenizer:
    backend = _KINDS[kind]()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    size = {"vocab_size": 600, "special_tokens": ["<unk>"], "show_progress": False}
    if kind == "unigram":
        trainer = trainers.UnigramTrainer(**size, unk_token="<unk>")
    elif kind == "wordpiece":
        trainer = trainers.WordPieceTrainer(**size)
    else:
        suffix = {"end_of_word_suffix": "</w>"} if kind == "affixes" else {}
        size["special_tokens"] += [f"<0x{byte:02X}>" for byte in range(256)] if kind == "sentencepiece" else []
        trainer = trainers.BpeTrainer(**size, **suffix, initial_alphabet=[] if kind == "sentencepiece" else alphabet)
    # Runs too, so that merges of like symbols are learned.
    backend.train_from_iterator([*corpus[:12], "aaaaaaaaa " * 50 + "abababab " * 50 + "11111111 " * 50], trainer)
    fields = json.loads(backend.to_str())
    fields["added_tokens"] = [token for token in fields["added_tokens"] if not token["content"].startswith("<0x")]
    return Tokenizer(content=json.dumps(fields).encode(), eos_id=None, bos_id=None)


@pytest.fixture(scope="module", params=["trained", "bytes", *_KINDS])
def any_tokenizer(request: pytest.FixtureRequest, trained: Tokenizer, corpus: list[str]) -> Tokenizer:
    if request.param == "trained":
        return trained
    return byte_tokenizer() if request.param == "bytes" else train(request.param, corpus)


def assert_same_ids(tokenizer: Tokenizer, text: str, encoder: LongEncoder | None = None) -> int:
    """How many stretches; 0 if the text is refused, which must be because it has no joint for long."""
    [whole] = tokenizer.encode_batch([text])
    try:
        arrays = list((encoder or LongEncoder(tokenizer)).encode(text, limit=LEAST_CHARS))
    except TextTooLongError:
        assert len(text) > MOST_STRETCHES * LEAST_CHARS
        return 0
    assert [i for ids in arrays for i in ids.tolist()] == whole.tolist()
    return len(arrays)


# fmt: off
_UNITS = ["1", "x", "a", "ab", " ", "\n", "\n\n", "\t ", "東", "!", "!\n", "e\u0301", "ab ", " 12", "a\r\n", "\u3000", "aB", "A", "🚀"]
# fmt: on
_stretches = st.lists(
    st.tuples(st.sampled_from(_UNITS), st.sampled_from([1, 2, 3, 50, 1024, 3001, 9000, 20_000])), min_size=4, max_size=8
)


@settings(max_examples=12)
@given(stretches=_stretches, seed=st.integers(0, 1000), mixed=st.booleans())
def test_stretches_have_the_ids_of_the_whole(any_tokenizer: Tokenizer, prose, stretches, seed: int, mixed: bool):
    """Long runs of one thing, in which an edge may depend on where the run began, between ordinary text."""
    ordinary = prose(seed, 400) if mixed else ""
    assert_same_ids(any_tokenizer, ordinary.join(unit * (count // len(unit)) for unit, count in stretches))
