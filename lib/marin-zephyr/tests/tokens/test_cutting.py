"""Long texts in stretches: the ids of the whole, for tokenizers of every kind, or a refusal."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, processors, trainers
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


_trained: dict[str, Tokenizer] = {}


def train(kind: str, corpus: list[str]) -> Tokenizer:
    """The tokenizer of a kind, made once."""
    if kind not in _trained:
        _trained[kind] = _train(kind, corpus)
    return _trained[kind]


def _train(kind: str, corpus: list[str]) -> Tokenizer:
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
_UNITS = [
    "1", "x", "a", "ab", " ", "\n", "\n\n", "\t ", "東", "!", "!\n", "e\u0301", "ab ", " 12", "a\r\n", "\u3000",
    "aB", "A", "🚀",
]
# fmt: on
_stretches = st.lists(
    st.tuples(st.sampled_from(_UNITS), st.sampled_from([1, 2, 3, 50, 1024, 3001, 9000, 20_000])), min_size=4, max_size=8
)


@settings(max_examples=5)
@given(stretches=_stretches, seed=st.integers(0, 1000), mixed=st.booleans())
def test_stretches_have_the_ids_of_the_whole(any_tokenizer: Tokenizer, prose, stretches, seed: int, mixed: bool):
    """Long runs of one thing, in which an edge may depend on where the run began, between ordinary text."""
    ordinary = prose(seed, 400) if mixed else ""
    assert_same_ids(any_tokenizer, ordinary.join(unit * (count // len(unit)) for unit, count in stretches))


@st.composite
def _small_bpe(draw: st.DrawFn) -> tuple[str, Tokenizer]:
    """An alphabet of up to three letters, and any merges of what there is, in any order."""
    alphabet = "abc"[: draw(st.integers(1, 3))]
    pieces, merges = list(alphabet), []
    for _ in range(draw(st.integers(1, 24))):
        pair = (draw(st.sampled_from(pieces)), draw(st.sampled_from(pieces)))
        if pair in merges or len("".join(pair)) > 200:
            continue
        merges.append(pair)
        pieces += ["".join(pair)] * ("".join(pair) not in pieces)
    model = models.BPE(
        vocab={piece: number for number, piece in enumerate(pieces)},
        merges=draw(st.permutations(merges)),
        ignore_merges=draw(st.booleans()),
    )
    return alphabet, Tokenizer(content=Backend(model).to_str().encode(), eos_id=None, bos_id=None)


@settings(max_examples=20)
@given(small=_small_bpe(), data=st.data())
def test_joints_inside_a_word_hold_for_any_merges(small: tuple[str, Tokenizer], data: st.DataObject):
    alphabet, tokenizer = small
    units = data.draw(st.lists(st.text(alphabet, min_size=1, max_size=9), min_size=1, max_size=4))
    counts = data.draw(st.lists(st.sampled_from([1, 5, 900, 5000]), min_size=len(units), max_size=len(units)))
    text = "".join(unit * count for unit, count in zip(units, counts, strict=True))
    assert_same_ids(tokenizer, text + units[0] * (2 * LEAST_CHARS // len(units[0])))


@pytest.mark.parametrize("unit", ["a", " ", "\n", "7", "!", "東", "aB3+/x", "function(){a=b;}"])
@pytest.mark.parametrize("kind", ["gpt2", "gpt4", "cased", "sentencepiece"])
def test_a_text_without_white_space_is_cut(kind: str, unit: str, corpus: list[str]):
    assert assert_same_ids(train(kind, corpus), unit * (60_000 // len(unit))) > 1


@pytest.mark.parametrize("kind", ["affixes", "unigram", "wordpiece"])
def test_what_only_a_whole_encodes_is_refused_with_its_size(kind: str, corpus: list[str]):
    text = "short words. " + "a" * ((MOST_STRETCHES + 1) * LEAST_CHARS)
    with pytest.raises(TextTooLongError, match=rf"a text of {len(text):,} characters.*after character"):
        list(LongEncoder(train(kind, corpus)).encode(text, limit=LEAST_CHARS))


def test_added_tokens_that_are_text_are_kept_whole(corpus: list[str]):
    """Tokens that are added but not special split text wherever they stand, white space around them included."""
    made = train("gpt4", corpus)
    backend = Backend.from_str(made.content.decode())
    backend.add_tokens([AddedToken("<tool>"), AddedToken("\n\n\n"), AddedToken("<wide>", lstrip=True, rstrip=True)])
    tokenizer = Tokenizer(content=backend.to_str().encode(), eos_id=None, bos_id=None)
    for text in ("<tool>" * 9000, "\n" * 50_000, "  <wide>  " * 5000, "a<tool>\n\n\n b  <wide> c" * 3000):
        assert assert_same_ids(tokenizer, text) > 1


def test_what_fits_is_one_stretch(trained: Tokenizer):
    [ids] = LongEncoder(trained).encode("short", limit=LEAST_CHARS)
    assert trained.decode(ids) == "short"


class Counting(LongEncoder):
    """Counts the characters that are encoded."""

    characters = 0

    def _ids(self, text: str, *, first: bool = False):
        type(self).characters += len(text)
        return super()._ids(text, first=first)


@pytest.mark.parametrize("kind", ["gpt4", "sentencepiece", "stripped", "unigram"])
def test_the_work_is_linear_in_the_text(kind: str, corpus: list[str], prose):
    """Half as much again for overlaps, and not more for a longer text."""
    text = prose(3, 60_000)
    Counting.characters = 0
    list(Counting(train(kind, corpus)).encode(text, limit=LEAST_CHARS))
    assert len(text) <= Counting.characters < 1.7 * len(text)
