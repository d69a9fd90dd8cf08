"""Marked texts: control tokens where they are marked and nowhere else, whatever the tokenizer does around them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from marin_zephyr.cli import main
from marin_zephyr.errors import RejectRow
from marin_zephyr.tokens import CompletionFormat, Tokenizer, TokenStore, load_tokenizer, tokenize
from marin_zephyr.tokens.marked import MarkedEncoder, MarkedText
from marin_zephyr.tokens.texts import SpecialIds

_LETTERS = "ab ▁é\n"
_NEITHER = SpecialIds(bos=None, eos=None)


def backend_of(pre_tokenizer: Any, normalizer: Any = None, processor: Any = None, *, gap: int = 0) -> Backend:
    """A BPE of few letters and some merges, with bytes to fall back to; so many numbers among the ids are none."""
    symbols = [*"ab ▁\n", "ab", "▁a", " a", "ba", *pre_tokenizers.ByteLevel.alphabet()]
    symbols += [f"<0x{byte:02X}>" for byte in range(256)]
    vocab = {symbol: number + gap * (number > 3) for number, symbol in enumerate(dict.fromkeys(symbols))}
    merges = [("a", "b"), ("▁", "a"), (" ", "a"), ("b", "a")]
    backend = Backend(models.BPE(vocab=vocab, merges=merges, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        backend.normalizer = normalizer
    if processor is not None:
        backend.post_processor = processor
    backend.decoder = decoders.ByteFallback()
    return backend


# What makes the ids of a stretch depend on what stands before it, or moves its offsets.
BACKENDS = {
    "bytes": backend_of(pre_tokenizers.ByteLevel(add_prefix_space=True), None, processors.ByteLevel(trim_offsets=True)),
    "metaspace first": backend_of(pre_tokenizers.Metaspace(prepend_scheme="first")),
    "metaspace always": backend_of(pre_tokenizers.Metaspace(prepend_scheme="always")),
    "prepended": backend_of(
        pre_tokenizers.Split("\n", "isolated"),
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
    ),
    "normalised": backend_of(pre_tokenizers.Whitespace(), normalizers.NFD()),
    "gaps": backend_of(pre_tokenizers.Metaspace(), gap=20),
}


@pytest.fixture(scope="module", params=BACKENDS)
def odd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Tokenizers with control tokens that swallow white space on the left, on the right, on both sides, or none."""
    backend = Backend.from_str(BACKENDS[request.param].to_str())
    backend.add_special_tokens(
        [
            AddedToken(f"<{name}>", lstrip="l" in name, rstrip="r" in name, normalized=False)
            for name in ("x", "l", "r", "lr")
        ]
    )
    path = tmp_path_factory.mktemp("odd") / "tokenizer.json"
    backend.save(str(path))
    return load_tokenizer(path, eos_token="<x>", bos_token="<l>")


_pieces = st.lists(
    st.one_of(st.sampled_from(["<x>", "<l>", "<r>", "<lr>"]), st.text(_LETTERS, min_size=1, max_size=8)), min_size=1
)


def marked(pieces: list[str], *, counted: list[bool] | None = None) -> MarkedText:
    """Every special string of ``pieces`` a control token; all counts, or the pieces that are said to."""
    ends = np.cumsum([len(piece) for piece in pieces]).tolist()
    spans = [(end - len(piece), end) for piece, end in zip(pieces, ends, strict=True)]
    controls = [span for span, piece in zip(spans, pieces, strict=True) if piece[0] == "<"]
    counts = [span for span, counts in zip(spans, counted or [True] * len(pieces), strict=True) if counts]
    return MarkedText("".join(pieces), controls, counts)


@settings(max_examples=40)
@given(pieces=_pieces)
def test_ids_are_those_of_the_text_with_its_special_tokens_parsed(odd: Tokenizer, pieces: list[str]):
    encoded = MarkedEncoder(odd, _NEITHER).encode([lambda: marked(pieces)])
    reference = Backend.from_str(odd.content.decode()).encode("".join(pieces), add_special_tokens=False)
    assert encoded.ids.tolist() == reference.ids


@settings(max_examples=40)
@given(pieces=_pieces, data=st.data())
def test_a_token_counts_if_one_of_its_characters_does(odd: Tokenizer, pieces: list[str], data: st.DataObject):
    counts = data.draw(st.lists(st.booleans(), min_size=len(pieces), max_size=len(pieces)))
    text = marked(pieces, counted=counts)
    encoded = MarkedEncoder(odd, _NEITHER).encode([lambda: text])
    if encoded.refused:
        assert encoded.refused[0] in ("nothing in it counts in the loss", "no text is left of it")
        return
    backend = Backend.from_str(json.dumps({**json.loads(odd.content), "post_processor": None}))
    special = {i for i, token in backend.get_added_tokens_decoder().items() if token.special}
    reference = backend.encode(text.text, add_special_tokens=False)
    expected = [
        any(a <= at < b for a, b in text.counted for at in range(start, stop)) for start, stop in reference.offsets
    ]
    controls = iter([any(a <= start < b for a, b in text.counted) for start, _ in text.controls])
    assert encoded.mask is not None
    assert encoded.mask.tolist() == [
        next(controls) if i in special else counts for i, counts in zip(reference.ids, expected, strict=True)
    ]


def test_rows_keep_their_places_and_reasons(trained: Tokenizer):
    def refuse() -> MarkedText:
        raise RejectRow("because")

    encoder = MarkedEncoder(trained, SpecialIds(bos=None, eos=trained.eos_id))
    texts = ["one", "two and more"]
    rows = [lambda: MarkedText("one", (), [(0, 3)]), refuse, lambda: MarkedText("two and more", (), [(3, 12)])]
    encoded = encoder.encode([*rows, lambda: MarkedText("", (), ())])
    first, second = (len(ids) + 1 for ids in trained.encode_batch(texts))
    assert encoded.lengths.tolist() == [first, 0, second, 0]
    assert encoded.num_bytes.tolist() == [3, 0, 12, 0]
    assert encoded.refused == {1: "because", 3: "no text is left of it"}
    assert trained.decode(encoded.ids) == "one<|endoftext|>two and more<|endoftext|>"


def test_a_control_token_that_is_no_word_of_its_own_is_refused(tmp_path: Path):
    backend = backend_of(pre_tokenizers.Whitespace())
    backend.add_special_tokens([AddedToken("ctl", single_word=True, normalized=False)])
    backend.save(str(tmp_path / "tokenizer.json"))
    encoder = MarkedEncoder(load_tokenizer(tmp_path), _NEITHER)
    encoded = encoder.encode(
        [lambda: MarkedText("a ctl a", [(2, 5)], [(0, 7)]), lambda: MarkedText("actl", [(1, 4)], [])]
    )
    assert encoded.refused == {1: "a control token that must be a word of its own touches another word"}


class TestCompletions:
    def test_the_completion_and_the_end_count(self, trained: Tokenizer, tmp_path: Path):
        rows = [
            {"prompt": "def <|endoftext|>:", "completion": " self = 12"},
            {"prompt": None, "completion": "the value"},
        ]
        pl.DataFrame(rows).write_parquet(tmp_path / "rows.parquet")
        out = tmp_path / "store"
        tokenize(tmp_path / "rows.parquet", out, tokenizer=trained, supervised=CompletionFormat())
        store = TokenStore.open(out)
        bits = np.unpackbits(np.fromfile(out / "part-00000.mask", np.uint8), bitorder="little")[: store.num_tokens]
        ids = store.tokens(0, store.num_tokens)
        assert trained.decode(ids[bits == 1]) == " self = 12<|endoftext|>the value<|endoftext|>"
        assert store.text(0) == "def <|endoftext|>: self = 12"

    def test_other_fields_are_named_on_the_command_line(self, tmp_path: Path):
        (tmp_path / "a.jsonl").write_text('{"q": "2+2=", "a": "4"}\n')
        command = ["tokenize", str(tmp_path / "a.jsonl"), "--tokenizer", "bytes", "--out", str(tmp_path / "store")]
        assert main([*command, "--prompt-field", "q", "--completion-field", "a"]) == 0
        assert np.fromfile(tmp_path / "store" / "part-00000.mask", np.uint8).tolist() == [0b110000]

    def test_a_row_without_a_completion_is_rejected(self, trained: Tokenizer, tmp_path: Path):
        lines = ['{"prompt": "a", "completion": ""}', '{"prompt": "a", "completion": "b"}']
        (tmp_path / "a.jsonl").write_text("\n".join(lines))
        form = CompletionFormat()
        report = tokenize(tmp_path / "a.jsonl", tmp_path / "s", tokenizer=trained, supervised=form, on_error="skip")
        assert report.rejected == {"no completion": 1}

    def test_rows_are_of_one_kind(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
        command = ["tokenize", "a.jsonl", "--tokenizer", "bytes", "--out", str(tmp_path / "store")]
        assert main([*command, "--chat", "--prompt-field", "q"]) == 2
        assert "conversations or prompts with completions" in capsys.readouterr().err
