"""The fast engine: equal to the reference, or not used."""

import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from marin_zephyr.cli import main
from marin_zephyr.errors import BadRecordError, EngineError, EngineRefusedError, MissingExtraError, UsageError
from marin_zephyr.tokens import Tokenizer, byte_tokenizer, engines, fast, tokenize
from marin_zephyr.tokens.documents import input_files
from marin_zephyr.tokens.edge_cases import EDGE_CASES
from marin_zephyr.tokens.engines import CheckedEngine, choose_engine, spot_checks
from marin_zephyr.tokens.fast import FastEngine, plain_json
from marin_zephyr.tokens.sample import sample_texts
from marin_zephyr.tokens.training import PATTERN

pytest.importorskip("gigatoken", reason="needs the extra `fast`")

# fmt: off
_WORDS = (
    "def", "return", "the", "of", "and", "to", "in", "is", "12", "2024", "naïve", "東京", "привет", "don't", "I'LL",
    "'a'", "=", "(", ")", ":", ",",
)
# fmt: on
_TEXTS = st.one_of(
    st.text(max_size=80),
    st.lists(st.one_of(st.sampled_from(EDGE_CASES), st.sampled_from(_WORDS), st.just(" ")), max_size=12).map("".join),
)


class Reference:
    """The tokenizer itself, as an engine."""

    name = "tokenizers"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def replica(self) -> Self:
        return self

    def encode(self, texts: pa.LargeStringArray) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        documents = self._tokenizer.encode_batch([text or "" for text in texts.to_pylist()])
        return np.concatenate([np.zeros(0, np.int32), *documents]), np.array([len(d) for d in documents], np.int64)


def _training_texts() -> list[str]:
    rng = np.random.default_rng(0)
    separators = [" ", " ", "\n", "\n    ", "  ", "\t"]
    return ["".join(rng.choice(_WORDS) + str(rng.choice(separators)) for _ in range(300)) for _ in range(10)]


def _short_texts() -> list[str]:
    return [f"{word} of {number}" for number in range(1000) for word in _WORDS]


def _byte_level(**pre: Any) -> Any:
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers, trainers

    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(**{"add_prefix_space": False, **pre})
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>"],
        show_progress=False,
    )
    backend.train_from_iterator(_training_texts(), trainer)
    return backend


def _split(pattern: str) -> Any:
    from tokenizers import Regex, pre_tokenizers

    backend = _byte_level()
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    return backend


def _sentencepiece(*, metaspace: bool) -> Any:
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, normalizers, pre_tokenizers, trainers

    backend = Backend(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if metaspace:
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
    else:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=tokens, show_progress=False)
    backend.train_from_iterator(_training_texts(), trainer)
    fields = json.loads(backend.to_str())
    fields["added_tokens"] = [token for token in fields["added_tokens"] if token["id"] < 3]
    return Backend.from_str(json.dumps(fields))


def _other_model(kind: str) -> Any:
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers, trainers

    options = {"unk_token": "<unk>", "special_tokens": ["<unk>"], "vocab_size": 300, "show_progress": False}
    if kind == "unigram":
        backend, trainer = Backend(models.Unigram()), trainers.UnigramTrainer(**options)
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
    else:
        del options["unk_token"]
        backend, trainer = Backend(models.WordPiece(unk_token="<unk>")), trainers.WordPieceTrainer(**options)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.train_from_iterator(_training_texts(), trainer)
    return backend


def _changed(backend: Any, change: Callable[[dict[str, Any]], None]) -> bytes:
    fields = json.loads(backend.to_str())
    change(fields)
    return json.dumps(fields).encode()


def _add_token(fields: dict[str, Any], **options: Any) -> None:
    number = max(fields["model"]["vocab"].values()) + 1
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    fields["added_tokens"].append({"id": number, "content": "<tool>", **plain, **options})


def _drop_merges(fields: dict[str, Any]) -> None:
    """Words of the vocabulary that merges no longer reach, found whole all the same."""
    fields["model"]["ignore_merges"] = True
    fields["model"]["merges"] = [merge for i, merge in enumerate(fields["model"]["merges"]) if i % 7 != 3]


_MADE: dict[str, Callable[[], bytes]] = {
    "gpt-2": lambda: _byte_level().to_str().encode(),
    "prefix space": lambda: _byte_level(add_prefix_space=True).to_str().encode(),
    "llama 3": lambda: _split(PATTERN).to_str().encode(),
    "ignore_merges": lambda: _changed(_split(PATTERN), _drop_merges),
    "added token": lambda: _changed(_byte_level(), _add_token),
    "llama 2": lambda: _sentencepiece(metaspace=False).to_str().encode(),
    "metaspace": lambda: _sentencepiece(metaspace=True).to_str().encode(),
    "no regex": lambda: _byte_level(use_regex=False).to_str().encode(),
    "dropout": lambda: _changed(_byte_level(), lambda fields: fields["model"].update(dropout=0.5)),
    "added word": lambda: _changed(_byte_level(), lambda fields: _add_token(fields, single_word=True)),
    "unknown regex": lambda: _split(r"\w+|\W").to_str().encode(),
    "unigram": lambda: _other_model("unigram").to_str().encode(),
    "wordpiece": lambda: _other_model("wordpiece").to_str().encode(),
    "bytes": lambda: byte_tokenizer().content,
}
_EQUAL = ("gpt-2", "prefix space", "llama 3", "ignore_merges", "added token", "llama 2", "metaspace")


@cache
def made(kind: str) -> Tokenizer:
    """A tokenizer of that kind."""
    return Tokenizer(content=_MADE[kind](), eos_id=None, bos_id=None)


@cache
def fast_engine(kind: str) -> FastEngine:
    """The fast engine of that kind."""
    return FastEngine(plain_json(made(kind)))


def column(texts: Sequence[str | None]) -> pa.LargeStringArray:
    """Texts as a run of rows has them."""
    return pa.array(texts, pa.large_string())


def assert_equal(one: Any, other: Any) -> None:
    """Two answers of engines say the same."""
    assert one[1].tolist() == other[1].tolist()
    assert one[0].tolist() == other[0].tolist()


@pytest.mark.parametrize("kind", _EQUAL)
def test_ids_are_those_of_the_reference(kind: str) -> None:
    @given(st.lists(_TEXTS, max_size=5))
    @settings(max_examples=30, deadline=None, derandomize=True)
    def check(texts: list[str]) -> None:
        assert_equal(fast_engine(kind).encode(column(texts)), Reference(made(kind)).encode(column(texts)))

    check()


@pytest.mark.parametrize("kind", _MADE)
def test_an_engine_is_equal_on_every_trap_or_is_not_chosen(kind: str) -> None:
    engine, record = choose_engine(made(kind), Reference(made(kind)), [column(_training_texts())])
    assert engine.name == record["name"] == ("gigatoken" if kind in _EQUAL else "tokenizers")
    if kind in _EQUAL:
        assert record["parity"]["num_documents"] == 10
        assert record["parity"]["num_bytes"] == sum(len(text.encode()) for text in _training_texts())
        assert_equal(engine.encode(column(EDGE_CASES)), Reference(made(kind)).encode(column(EDGE_CASES)))
    elif kind != "bytes":
        assert "gigatoken" in record["refused"]
    else:
        assert "refused" not in record  # it merges nothing, so that nobody asks


def test_special_tokens_in_a_document_stay_text(trained: Tokenizer) -> None:
    texts = column(["<|endoftext|>", "a<|endoftext|>b <|endoftext|>", "<|endof", "text|>"])
    ids, lengths = FastEngine(plain_json(trained)).encode(texts)
    assert trained.eos_id not in ids.tolist()
    assert_equal((ids, lengths), Reference(trained).encode(texts))


def test_columns_with_nulls_slices_and_nothing_in_them_are_read_as_they_are(trained: Tokenizer) -> None:
    engine, texts = FastEngine(plain_json(trained)), column(["one two", None, "", "three 東京", None, "four"])
    for start in range(len(texts) + 1):
        for stop in range(start, len(texts) + 1):
            piece = texts.slice(start, stop - start)
            assert_equal(engine.encode(piece), Reference(trained).encode(piece))


def test_threads_with_replicas_say_what_one_says(trained: Tokenizer, corpus: list[str]) -> None:
    engine = FastEngine(plain_json(trained))
    said: list[Any] = []

    def encode(replica: FastEngine) -> None:
        said.append(replica.encode(column(corpus)))

    threads = [threading.Thread(target=encode, args=(engine.replica(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(said) == 3
    for one in said:
        assert_equal(one, engine.encode(column(corpus)))


def test_an_engine_that_was_built_anew_says_the_same(
    trained: Tokenizer, corpus: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FastEngine(plain_json(trained))
    before = engine.encode(column(corpus))
    backend = engine._backend
    monkeypatch.setattr(fast, "_LEAST_SECONDS", 0.0)
    monkeypatch.setattr(fast, "_SHARE_OF_BUILDING", 0)
    assert_equal(engine.encode(column(corpus)), before)
    assert engine._backend is not backend


class Wrong:
    """The reference with the ids of one text (or all) turned around: as a defect of the fast engine would look."""

    name = "gigatoken"

    def __init__(self, right: Reference, text: str | None = None) -> None:
        self._right, self._text = right, text

    def replica(self) -> Self:
        return self

    def encode(self, texts: pa.LargeStringArray) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        ids, lengths = self._right.encode(texts)
        ends = np.cumsum(lengths)
        for number, text in enumerate(texts.to_pylist()):
            if self._text in (None, text):
                span = slice(ends[number] - lengths[number], ends[number])
                ids[span] = ids[span][::-1].copy()
        return ids, lengths


def test_a_difference_while_encoding_names_the_document(trained: Tokenizer) -> None:
    reference = Reference(trained)
    texts = _short_texts()
    column_ = column(texts)
    chosen = spot_checks(column_, *Wrong(reference).encode(column_)).tolist()
    assert 0 < len(chosen) < 20  # about one in three thousand of 21,000
    number = chosen[-1]
    with pytest.raises(EngineError, match="differ from id 0 on") as caught:
        CheckedEngine(Wrong(reference, texts[number]), reference, reference).encode(column_)
    assert caught.value.number == number
    assert repr(texts[number]) in str(caught.value)
    assert caught.value.exit_code == 1


def test_long_documents_are_those_of_the_reference(trained: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "MOST_BYTES", 10)
    texts = column(["short", "a longer text", None, "another longer text", "", "an", "and one more long text"])
    reference = Reference(trained)
    wrong = CheckedEngine(Wrong(reference), reference, reference)  # of more than ten bytes it would be noticed
    ids, lengths = wrong.encode(texts)
    right, counts = reference.encode(texts)
    assert lengths.tolist() == counts.tolist()
    long = np.repeat([len(text or "") > 10 for text in texts.to_pylist()], lengths)
    assert ids[long].tolist() == right[long].tolist()
    assert ids[~long].tolist() != right[~long].tolist()


def test_which_documents_are_checked_depends_on_them_alone(trained: Tokenizer) -> None:
    texts = _short_texts()

    def chosen(step: int) -> Iterator[str]:
        for start in range(0, len(texts), step):
            piece = column(texts[start : start + step])
            yield from (texts[start + i] for i in spot_checks(piece, *Reference(trained).encode(piece)))

    assert sorted(chosen(4000)) == sorted(chosen(7)) != []


def test_a_difference_on_the_corpus_alone_is_found(
    trained: Tokenizer, corpus: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engines, "FastEngine", lambda content: Wrong(Reference(trained), corpus[7]))
    with caplog.at_level(logging.WARNING):
        engine, record = choose_engine(trained, Reference(trained), [column(corpus[:5]), column(corpus[5:])])
    assert engine.name == record["name"] == "tokenizers"
    assert "in a document of the corpus" in record["refused"]
    assert "gigatoken 0" in record["refused"]
    assert record["refused"].partition(": ")[2] in caplog.text


def test_a_fast_engine_that_is_asked_for_and_differs_is_refused() -> None:
    with pytest.raises(EngineRefusedError, match=r"differ from id .* in a text of the fixed list") as caught:
        choose_engine(made("no regex"), Reference(made("no regex")), [], wanted="gigatoken")
    assert caught.value.exit_code == 3
    with pytest.raises(EngineRefusedError, match="dropout"):
        choose_engine(made("dropout"), Reference(made("dropout")), [], wanted="gigatoken")


def test_without_the_extra_the_install_line_is_told(trained: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gigatoken", None)
    assert choose_engine(trained, Reference(trained), [])[0].name == "tokenizers"
    with pytest.raises(MissingExtraError, match=r"pip install 'marin-zephyr\[fast\]'"):
        choose_engine(trained, Reference(trained), [], wanted="gigatoken")


def test_the_reference_draws_no_sample(trained: Tokenizer) -> None:
    def sample() -> Iterator[pa.LargeStringArray]:
        raise AssertionError("drawn")
        yield

    assert choose_engine(trained, Reference(trained), sample(), wanted="tokenizers")[0].name == "tokenizers"


def test_an_unknown_engine_is_a_usage_error(trained: Tokenizer) -> None:
    with pytest.raises(UsageError, match="one of auto, tokenizers, gigatoken"):
        choose_engine(trained, Reference(trained), [], wanted="quick")  # type: ignore[arg-type]


def lineage(store: Path) -> list[dict[str, Any]]:
    """What a store says of its engines."""
    return json.loads((store / "manifest.json").read_text())["lineage"]["engines"]


def test_a_store_has_the_same_bytes_with_either_engine_and_says_which_it_was(
    tokenizer_file: Path, corpus: list[str], write_parquet: Callable[..., Path], tmp_path: Path
) -> None:
    source = write_parquet(tmp_path / "in.parquet", corpus)
    stores = [tmp_path / "tokenizers", tmp_path / "gigatoken"]
    for store in stores:
        tokenize(source, store, tokenizer=tokenizer_file, engine=store.name, part_tokens=5000)  # type: ignore[arg-type]
    assert (stores[0] / "part-00000.bin").read_bytes() == (stores[1] / "part-00000.bin").read_bytes()
    manifests = [json.loads((store / "manifest.json").read_text()) for store in stores]
    assert manifests[0]["lineage"].pop("engines") == [
        {"name": "tokenizers", "version": version("tokenizers"), "num_parts": len(manifests[0]["parts"])}
    ]
    (engine,) = manifests[1]["lineage"].pop("engines")
    assert engine["name"] == "gigatoken"
    assert 0 < engine["parity"]["num_documents"] <= len(corpus)
    assert manifests[0].pop("digest") != manifests[1].pop("digest")
    assert manifests[0] == manifests[1]


def test_what_the_fast_engine_left_is_encoded_again_by_tokenizers_and_taken_up_otherwise(
    tokenizer_file: Path, corpus: list[str], write_parquet: Callable[..., Path], tmp_path: Path
) -> None:
    source, bad = write_parquet(tmp_path / "in.parquet", corpus), tmp_path / "in.jsonl"
    bad.write_text('{"text": 1}\n')  # ends the first run after its last part
    for engine, names, reused in (("tokenizers", ["tokenizers"], False), ("auto", ["gigatoken"], True)):
        store = tmp_path / engine
        with pytest.raises(BadRecordError):
            tokenize([source, bad], store, tokenizer=tokenizer_file, part_tokens=2000, engine="gigatoken")
        left = len(list(store.rglob("part-*.json")))
        assert left > 1
        report = tokenize(
            [source, bad], store, tokenizer=tokenizer_file, part_tokens=2000, on_error="skip", engine=engine
        )  # type: ignore[call-overload]
        assert (report.num_parts_reused == left) is reused
        assert [run["name"] for run in lineage(store)] == names


def test_the_sample_is_the_first_documents_of_files_that_lie_evenly(tmp_path: Path) -> None:
    for number in range(5):
        lines = (json.dumps({"text": f"file {number} line {line} " + "x" * 5000}) + "\n" for line in range(100))
        (tmp_path / f"{number}.jsonl").write_text("".join(lines))
    drawn = [texts.to_pylist() for texts in sample_texts(input_files(tmp_path), text_field="text")]
    assert [texts[0].split()[1] for texts in drawn] == ["1", "3"]
    assert [texts[-1].split()[3] for texts in drawn] == [str(len(texts) - 1) for texts in drawn]
    assert 100_000 < sum(len(text) for texts in drawn for text in texts) < 160_000


def test_the_command_line_refuses_an_engine_that_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tokenizer.json").write_bytes(made("no regex").content)
    (tmp_path / "in.jsonl").write_text('{"text": "some words"}\n')
    words = ["tokenize", str(tmp_path / "in.jsonl"), "--tokenizer", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main([*words, "--engine", "gigatoken"]) == 3
    assert "differ from id" in capsys.readouterr().err
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert main(words) == 0
    assert "gigatoken" in lineage(tmp_path / "out")[0]["refused"]
