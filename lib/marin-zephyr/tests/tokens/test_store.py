"""The token store: its bytes as they are documented, what a reader finds in it, and which damage it names."""

import json
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from marin_zephyr.tokens import Tokenizer, TokenStore, tokenize
from marin_zephyr.tokens.parts import dtype_for, index_bytes


def read_independently(store: Path) -> list[tuple[list[int], int]]:
    """(ids, text bytes) of every document, by the documented layout and numpy alone."""
    documents = []
    for index in sorted(store.glob("part-*.idx")):
        data = index.read_bytes()
        magic, version, code, sequences, boundaries = struct.unpack_from("<9sQBQQ", data)
        assert (magic, version, boundaries) == (b"MMIDIDX\x00\x00", 1, sequences + 1)
        lengths = np.frombuffer(data, "<i4", sequences, 34)
        pointers = np.frombuffer(data, "<i8", sequences, 34 + 4 * sequences)
        firsts = np.frombuffer(data, "<i8", boundaries, 34 + 12 * sequences)
        assert len(data) == 34 + 12 * sequences + 8 * boundaries
        assert firsts.tolist() == list(range(boundaries))
        dtype = np.dtype({4: "<i4", 8: "<u2"}[code])
        ids = np.memmap(index.with_suffix(".bin"), dtype, "r")
        sizes = np.fromfile(index.with_suffix(".bytes"), "<i8")
        for length, pointer, size in zip(lengths, pointers, sizes, strict=True):
            start = pointer // dtype.itemsize
            documents.append((ids[start : start + length].tolist(), int(size)))
    return documents


@pytest.fixture(scope="module")
def store(tmp_path_factory, write_parquet, corpus: list[str], trained: Tokenizer) -> Path:
    """Forty documents from two files in a handful of parts."""
    directory = tmp_path_factory.mktemp("store")
    write_parquet(directory / "in" / "a.parquet", corpus[:15])
    write_parquet(directory / "in" / "b.parquet", corpus[15:])
    tokenize(directory / "in", directory / "out", tokenizer=trained, part_tokens=4000)
    return directory / "out"


@pytest.fixture
def damaged(store: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(store, tmp_path / "copy"))


def edit_manifest(store: Path, edit: Callable[[dict], object]) -> None:
    fields = json.loads((store / "manifest.json").read_bytes())
    edit(fields)
    fields.pop("digest", None)  # the change is meant
    (store / "manifest.json").write_text(json.dumps(fields))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


# ---------------------------------------------------------------------------------------------------------- the bytes


def test_an_independent_reader_finds_the_documents(store: Path, corpus: list[str], trained: Tokenizer):
    expected = [
        ([*ids.tolist(), trained.eos_id], len(text.encode()))
        for text, ids in zip(corpus, trained.encode_batch(corpus), strict=True)
    ]
    assert read_independently(store) == expected


def test_the_index_is_megatrons_byte_for_byte():
    expected = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, 2, 3) + struct.pack("<2i2q3q", 3, 4, 0, 6, 0, 1, 2)
    assert index_bytes([3, 4], dtype="uint16") == expected


def test_the_vocabulary_chooses_the_dtype():
    assert [dtype_for(size) for size in (65_499, 65_500, 65_501)] == ["uint16", "int32", "int32"]


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_499, "uint16"), (65_500, "int32")])
def test_ids_survive_at_the_edge_of_uint16(tmp_path: Path, write_jsonl, vocab_size: int, dtype: str):
    backend = Backend(models.WordLevel({f"w{number}": number for number in range(vocab_size)}, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = Tokenizer(content=backend.to_str().encode(), eos_id=vocab_size - 1, bos_id=None)
    text = f"w{vocab_size - 2} w1"
    source = write_jsonl(tmp_path / "in.jsonl", [text])
    tokenize(source, tmp_path / "out", tokenizer=tokenizer)
    opened = TokenStore.open(tmp_path / "out")
    assert opened.manifest.dtype == str(opened.document(0).dtype) == dtype
    assert opened.document(0).tolist() == [vocab_size - 2, 1, vocab_size - 1]
    assert read_independently(tmp_path / "out") == [([vocab_size - 2, 1, vocab_size - 1], len(text))]


def test_the_manifest_has_what_the_schema_requires(store: Path, digests):
    fields = json.loads((store / "manifest.json").read_bytes())
    required = "schema_version tokenizer vocab_size dtype special_ids num_documents num_tokens num_bytes parts lineage"
    assert set(fields) == {*required.split(), "digest"}
    assert fields["schema_version"] == 1
    assert set(fields["tokenizer"]) == {"file", "digest"}
    assert set(fields["special_ids"]) == {"bos", "eos"}
    for part in fields["parts"]:
        assert set(part) == {"name", "num_documents", "num_tokens", "num_bytes", "files"}
        assert re.fullmatch(r"part-\d{5}", part["name"])
    listed = {name: file for part in fields["parts"] for name, file in part["files"].items()}
    actual = digests(store)
    assert {name: file["sha256"] for name, file in listed.items()} == {
        name: digest for name, digest in actual.items() if name.startswith("part-")
    }
    assert all(set(file) == {"size", "sha256"} for file in listed.values())
    assert fields["tokenizer"]["digest"] == actual[fields["tokenizer"]["file"]]
    for count in ("num_documents", "num_tokens", "num_bytes"):
        assert fields[count] == sum(part[count] for part in fields["parts"])


def test_the_manifest_tells_no_absolute_path(store: Path):
    assert str(store.parent) not in (store / "manifest.json").read_text()


# -------------------------------------------------------------------------------------------------------- the reader


def test_texts_come_back(store: Path, corpus: list[str]):
    opened = TokenStore.open(store)
    assert len(opened.parts) > 2
    assert [opened.text(index) for index in range(opened.num_documents)] == corpus
    assert opened.num_bytes == sum(len(text.encode()) for text in corpus)


@settings(max_examples=40)
@given(data=st.data())
def test_ranges_and_locations_agree_with_a_flat_list(store: Path, data: st.DataObject):
    opened = TokenStore.open(store)
    documents = [ids for ids, _ in read_independently(store)]
    flat = [(document, offset) for document, ids in enumerate(documents) for offset in range(len(ids))]
    stop = data.draw(st.integers(0, opened.num_tokens))
    start = data.draw(st.integers(0, stop))
    assert len(flat) == opened.num_tokens
    assert opened.tokens(start, stop).tolist() == [documents[d][o] for d, o in flat[start:stop]]
    if start < stop:
        found = opened.locate(start)
        assert (found.document, found.offset) == flat[start]
        assert found.source == ("a.parquet" if found.document < 15 else "b.parquet")
        assert (found.input, found.row) == (found.source, found.document - 15 * (found.document >= 15))
        firsts = np.cumsum([part.record.num_documents for part in opened.parts])
        assert found.part == opened.parts[int(np.searchsorted(firsts, found.document, "right"))].record.name


def test_what_is_read_cannot_be_written(store: Path):
    with pytest.raises(ValueError, match="read-only"):
        TokenStore.open(store).document(0)[0] = 1


@pytest.mark.parametrize("ask", [lambda s: s.document(40), lambda s: s.document(-1), lambda s: s.locate(s.num_tokens)])
def test_what_is_not_there_is_an_index_error(store: Path, ask: Callable[[TokenStore], object]):
    with pytest.raises(IndexError, match="of a store of"):
        ask(TokenStore.open(store))


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 10**9)])
def test_a_range_beyond_the_store_is_an_index_error(store: Path, start: int, stop: int):
    with pytest.raises(IndexError, match="of a store of"):
        TokenStore.open(store).tokens(start, stop)


def test_a_store_that_does_not_tell_its_sources_is_read_all_the_same(damaged: Path, corpus: list[str]):
    """As other tools write it: the sidecar is ours alone."""
    for path in damaged.glob("*.sources"):
        path.unlink()
    edit_manifest(damaged, lambda m: [part["files"].pop(f"{part['name']}.sources") for part in m["parts"]])
    opened = TokenStore.open(damaged)
    assert (opened.text(3), opened.source(3), opened.locate(0).source) == (corpus[3], None, None)
    with pytest.raises(IndexError):
        opened.source(40)


def test_a_moved_store_reads_the_same(store: Path, damaged: Path, corpus: list[str]):
    assert TokenStore.open(damaged).text(39) == corpus[39]
