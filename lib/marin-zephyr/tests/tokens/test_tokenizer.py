"""Tokenizers: text comes back, and no text reaches a control id."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Reference

from marin_zephyr.errors import TokenizerError
from marin_zephyr.tokens import Tokenizer, byte_tokenizer, load_tokenizer
from marin_zephyr.tokens.cutting import LongEncoder
from marin_zephyr.tokens.marked import MarkedEncoder, MarkedText
from marin_zephyr.tokens.texts import SpecialIds

_SPECIAL = "<|endoftext|>"
# Whole Unicode, with the troublesome characters often: combining marks, joiners, controls, line ends.
_text = st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("é\u0301\u200d\r\n\x00 \t👩🏽‍🚀<|>endoftext")))


def save(fields: dict, path: Path, config: dict | None = None) -> Path:
    path.mkdir()
    (path / "tokenizer.json").write_text(json.dumps(fields))
    if config is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def word_level(*special: str, ids: dict[str, int] | None = None) -> dict:
    """A tokenizer of words, with ``special`` tokens marked as such."""
    vocab = ids or {word: number for number, word in enumerate(["a", "b", *special])}
    backend = Reference(models.WordLevel(vocab, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(list(special))
    return json.loads(backend.to_str())


@given(text=_text)
def test_any_text_comes_back(tokenizer: Tokenizer, text: str):
    [ids] = tokenizer.encode_batch([text])
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(
    "text",
    ["👩‍👩‍👧‍👦 🏴󠁧󠁢󠁥󠁮󠁧󠁿", "e\u0301\u0327\u0323", "a\r\nb\rc\n\n\r\n", "\x00a\x00\x00", "\ufeffbom", " " * 999, "\U0010ffff"],
)
def test_hard_text_comes_back(tokenizer: Tokenizer, text: str):
    [ids] = tokenizer.encode_batch([text])
    assert tokenizer.decode(ids) == text


def test_a_megabyte_of_one_letter_comes_back(trained: Tokenizer):
    text = "a" * 1_000_000
    assert "".join(trained.decode(ids) for ids in LongEncoder(trained).encode(text, limit=128 * 1024)) == text


@given(before=_text, after=_text)
def test_special_text_in_a_document_stays_text(tokenizer: Tokenizer, before: str, after: str):
    text = before + _SPECIAL + after
    [ids] = tokenizer.encode_batch([text])
    assert tokenizer.eos_id not in ids
    assert tokenizer.decode(ids) == text


def test_an_eos_that_the_file_does_not_mark_as_special_stays_out_of_reach(tokenizer_file: Path, tmp_path: Path):
    fields = json.loads(tokenizer_file.read_bytes())
    for token in fields["added_tokens"]:
        token["special"] = False
    loaded = load_tokenizer(save(fields, tmp_path / "t"), eos_token=_SPECIAL)
    [ids] = loaded.encode_batch([_SPECIAL])
    assert loaded.eos_id not in ids
    assert loaded.decode(ids) == _SPECIAL


def test_ids_are_those_of_the_reference(trained: Tokenizer, tokenizer_file: Path, corpus: list[str]):
    reference = Reference.from_file(str(tokenizer_file))
    assert [ids.tolist() for ids in trained.encode_batch(corpus)] == [
        reference.encode(text, add_special_tokens=False).ids for text in corpus
    ]


@given(text=_text)
def test_byte_tokenizer_gives_the_bytes(text: str):
    [ids] = byte_tokenizer().encode_batch([text])
    assert bytes(ids.tolist()) == text.encode()


def test_truncation_and_padding_of_the_file_are_off(tokenizer_file: Path, tmp_path: Path):
    backend = Reference.from_file(str(tokenizer_file))
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    (tmp_path / "tokenizer.json").write_text(backend.to_str())
    long, short = load_tokenizer(tmp_path).encode_batch(["value of the self " * 100, "a"])
    assert len(long) > 100
    assert len(short) == 1


@pytest.mark.parametrize("config", [{"eos_token": "<end>"}, {"eos_token": {"content": "<end>", "lstrip": False}}])
def test_tokenizer_config_names_the_eos(tmp_path: Path, config: dict):
    loaded = load_tokenizer(save(word_level("</s>", "<end>"), tmp_path / "t", config))
    assert loaded.eos_id == loaded.backend.token_to_id("<end>")


@pytest.mark.parametrize(
    ("special", "eos", "bos"),
    [
        (("<s>", "</s>"), "</s>", "<s>"),
        (("<|begin_of_text|>", "<|end_of_text|>"), "<|end_of_text|>", "<|begin_of_text|>"),
        (("<only>",), "<only>", None),
        (("<one>", "<two>"), None, None),
    ],
)
def test_usual_names_are_found(tmp_path: Path, special: tuple[str, ...], eos: str | None, bos: str | None):
    loaded = load_tokenizer(save(word_level(*special), tmp_path / "t"))
    names = [None if i is None else loaded.backend.id_to_token(i) for i in (loaded.eos_id, loaded.bos_id)]
    assert names == [eos, bos]


def test_vocab_size_covers_the_largest_id(tmp_path: Path):
    loaded = load_tokenizer(save(word_level(ids={"a": 0, "b": 7}), tmp_path / "t"))
    assert loaded.vocab_size == 8


def test_digest_is_the_files(tokenizer_file: Path, digests):
    assert load_tokenizer(tokenizer_file).digest == digests(tokenizer_file.parent)["tokenizer.json"]


@pytest.mark.parametrize("content", [b"{}", b"not json", b"\xff\xfe", b"[1]", b'{"model": {"type": "Nonesuch"}}'])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path, content: bytes):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(TokenizerError, match=str(path)):
        load_tokenizer(path)


def test_an_absent_tokenizer_is_named_with_the_choices(tmp_path: Path):
    with pytest.raises(TokenizerError, match=r"absent.*'bytes'"):
        load_tokenizer(tmp_path / "absent")


def test_a_named_token_that_does_not_exist_is_refused(tokenizer_file: Path):
    with pytest.raises(TokenizerError, match="'<nope>'"):
        load_tokenizer(tokenizer_file, eos_token="<nope>")


_NAMES = ["<unk>", "<s>", "</s>", "<mask>"]
_TEXTS = [
    "plain words, 12345 of them",
    "tabs\tand\r\nlines",
    "naïve e\u0301 東京 👩🏽‍🚀",
    "  spaces  ",
    "\ufeffbom\x00",
    "a</b> < s > s>",
    "one <more> of<more>",
]


def _unigram() -> tuple[Reference, object]:
    backend = Reference(models.Unigram())
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return backend, trainers.UnigramTrainer(
        vocab_size=300, special_tokens=_NAMES, unk_token="<unk>", show_progress=False
    )


def _wordpiece() -> tuple[Reference, object]:
    backend = Reference(models.WordPiece(unk_token="<unk>"))
    backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.WhitespaceSplit()
    return backend, trainers.WordPieceTrainer(vocab_size=300, special_tokens=_NAMES, show_progress=False)


def _sentencepiece() -> tuple[Reference, object]:
    backend = Reference(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return backend, trainers.BpeTrainer(vocab_size=300, special_tokens=_NAMES, show_progress=False)


def _whole_words() -> tuple[Reference, object]:
    backend = Reference(models.BPE(ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "isolated")
    return backend, trainers.BpeTrainer(
        vocab_size=400, special_tokens=_NAMES, initial_alphabet=list("<>/smakun"), show_progress=False
    )


@pytest.fixture(scope="module", params=[_unigram, _wordpiece, _sentencepiece, _whole_words])
def kind(request: pytest.FixtureRequest, corpus: list[str]) -> Reference:
    """A reference whose model was trained on text that holds the special tokens' strings, with one token more."""
    backend, trainer = request.param()
    backend.train_from_iterator([*corpus[:8], *(f"{name} s " * 30 for name in _NAMES)], trainer)
    backend.add_tokens(["<more>"])
    return backend


def test_ids_of_every_kind_are_those_of_the_reference(kind: Reference, tmp_path: Path, corpus: list[str]):
    loaded = load_tokenizer(save(json.loads(kind.to_str()), tmp_path / "t"))
    texts = [*corpus, *_TEXTS]
    expected = [kind.encode(text, add_special_tokens=False).ids for text in texts]
    assert [ids.tolist() for ids in loaded.encode_batch(texts)] == expected


@settings(max_examples=30)
@given(parts=st.lists(st.sampled_from([*_NAMES, " ", "a", "the", "s", "/"]), min_size=1, max_size=6))
def test_no_text_reaches_a_special_token_of_any_kind(kind: Reference, parts: list[str]):
    """Though a Unigram's, a WordPiece's or a whole word's vocabulary, or a learned merge, holds the very string."""
    loaded = Tokenizer(content=kind.to_str().encode(), eos_id=kind.token_to_id("</s>"), bos_id=kind.token_to_id("<s>"))
    text = "".join(parts)
    [ids] = loaded.encode_batch([text])
    unreachable = {kind.token_to_id(name) for name in _NAMES[1:]}
    assert unreachable.isdisjoint(ids.tolist())
    marked = MarkedEncoder(loaded, SpecialIds(bos=None, eos=None))
    assert marked.encode([lambda: MarkedText(text, (), [(0, len(text))])]).ids.tolist() == ids.tolist()


@pytest.mark.parametrize("flags", [{"lstrip": True}, {"rstrip": True}, {"single_word": True}, {"normalized": True}, {}])
def test_tokens_that_only_the_config_calls_special_stay_text(tokenizer_file: Path, tmp_path: Path, flags: dict):
    backend = Reference.from_file(str(tokenizer_file))
    backend.add_tokens([AddedToken("<|im_end|>", **flags), AddedToken("<tool>", **flags)])
    number = backend.token_to_id("<|im_end|>")
    config = {"added_tokens_decoder": {str(number): {"content": "<|im_end|>", "special": True}}}
    loaded = load_tokenizer(save(json.loads(backend.to_str()), tmp_path / "t", config))
    [ids, tool] = loaded.encode_batch(["a <|im_end|> b", "a <tool> b"])
    assert number not in ids
    assert backend.token_to_id("<tool>") in tool


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("special_tokens_map.json", {"eos_token": {"content": "<end>", "lstrip": False}}),
        ("generation_config.json", {"eos_token_id": [3, 2]}),
        ("config.json", {"eos_token_id": 3}),
    ],
)
def test_files_beside_the_tokenizer_name_the_eos(tmp_path: Path, name: str, config: dict):
    directory = save(word_level("</s>", "<end>"), tmp_path / "t")
    (directory / name).write_text(json.dumps(config))
    loaded = load_tokenizer(directory)
    assert loaded.eos_id == loaded.backend.token_to_id("<end>") == 3


def test_a_vocabulary_with_merges_is_loaded_as_byte_level(trained: Tokenizer, tmp_path: Path, corpus: list[str]):
    reference = Reference.from_str(trained.content.decode())
    reference.model.save(str(tmp_path))
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    loaded = load_tokenizer(tmp_path)
    assert loaded.eos_id == trained.eos_id
    expected = [reference.encode(text, add_special_tokens=False).ids for text in corpus]
    assert [ids.tolist() for ids in loaded.encode_batch(corpus)] == expected


@pytest.mark.parametrize("name", ["tokenizer.model", "spiece.model", "vocab.txt"])
def test_a_directory_that_must_be_converted_is_told_how(tmp_path: Path, name: str):
    (tmp_path / name).write_bytes(b"\x00")
    with pytest.raises(TokenizerError, match=rf"{name}.*save_pretrained"):
        load_tokenizer(tmp_path)


def test_a_directory_without_a_tokenizer_says_what_it_holds(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"no tokenizer at .*holds config\.json"):
        load_tokenizer(tmp_path)
    for number in range(100):
        (tmp_path / f"{number:03}.txt").write_text("")
    with pytest.raises(TokenizerError, match=r"holds 000\.txt, .* and 93 more$"):
        load_tokenizer(tmp_path)


_FROM_HUB = """
import sys
from marin_zephyr.errors import ZephyrError
from marin_zephyr.tokens import load_tokenizer
try:
    print(load_tokenizer(sys.argv[1]).digest)
except ZephyrError as error:
    print(type(error).__name__, error)
"""


def from_hub(name: str, home: Path) -> str:
    environment = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _FROM_HUB, name], env=environment, cwd=home, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_a_repository_of_the_hub_is_read_from_the_clients_cache(trained: Tokenizer, tmp_path: Path):
    pytest.importorskip("huggingface_hub")
    repository = tmp_path / "hub" / "models--some--model"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "tokenizer.json").write_bytes(trained.content)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    assert from_hub("some/model", tmp_path).strip() == trained.digest
    assert "TokenizerError no tokenizer at other/model, neither on disk nor on the hub" in from_hub(
        "other/model", tmp_path
    )


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("tokenizer_config.json", "[" * 100_000, "is not JSON"),
        ("config.json", '{"eos_token_id": -1}', "no token -1"),
        ("config.json", '{"eos_token_id": 99999999999}', "no token 99999999999"),
        ("tokenizer.json", '{"model": {"type": "WordLevel", "vocab": {}, "unk_token": "x"}}', "vocabulary is empty"),
    ],
)
def test_files_of_a_tokenizer_that_make_no_sense_are_named(
    tokenizer_file: Path, tmp_path: Path, name: str, content: str, told: str
):
    directory = save(json.loads(tokenizer_file.read_bytes()), tmp_path / "t")
    (directory / name).write_text(content)
    with pytest.raises(TokenizerError, match=told):
        load_tokenizer(directory)


@pytest.mark.parametrize(
    "config", [{"added_tokens_decoder": [1]}, {"added_tokens_decoder": {"1": 5}}, {"additional_special_tokens": 5}]
)
def test_lists_of_tokens_that_are_none_say_nothing(tokenizer_file: Path, tmp_path: Path, config: dict):
    directory = save(json.loads(tokenizer_file.read_bytes()), tmp_path / "t", config)
    assert load_tokenizer(directory).control_ids == ()


def test_a_name_that_no_file_can_have_is_no_tokenizer():
    with pytest.raises(TokenizerError, match="no tokenizer at"):
        load_tokenizer("a" * 300)


def test_a_text_that_the_tokenizer_fails_on_is_its_error():
    fields = word_level(ids={"a": 0})
    fields["model"]["unk_token"] = "absent"
    with pytest.raises(TokenizerError, match="fails on a text"):
        Tokenizer(content=json.dumps(fields).encode(), eos_id=None, bos_id=None).encode_batch(["b"])
