"""Tokenizers: text comes back, and no text reaches a control id."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Reference
from tokenizers import models, pre_tokenizers

from marin_zephyr.errors import TokenizerError
from marin_zephyr.tokens import Tokenizer, byte_tokenizer, load_tokenizer

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


def test_two_megabytes_of_one_letter_come_back(trained: Tokenizer):
    text = "a" * 2_000_000
    [ids] = trained.encode_batch([text])
    assert trained.decode(ids) == text


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
