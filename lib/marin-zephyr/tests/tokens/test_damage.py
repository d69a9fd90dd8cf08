"""Damage to a token store: every changed or missing byte is laid to its file, and in the ids to its block."""

import hashlib
import json
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr.cli import main
from marin_zephyr.errors import TokenStoreError
from marin_zephyr.tokens import Manifest, Tokenizer, TokenStore, byte_tokenizer, tokenize
from marin_zephyr.tokens.manifest import FileRecord


def read_manifest(store: Path) -> Manifest:
    return Manifest.from_bytes((store / "manifest.json").read_bytes(), where="manifest.json")


def write_file(store: Path, name: str, content: bytes) -> None:
    """A file of a part as a writer with a fault would have written it: the manifest agrees."""
    (store / name).write_bytes(content)
    manifest, stem = read_manifest(store), name.partition(".")[0]
    record = FileRecord(size=len(content), sha256=hashlib.sha256(content).hexdigest())
    parts = [replace(p, files={**p.files, name: record}) if p.name == stem else p for p in manifest.parts]
    (store / "manifest.json").write_bytes(replace(manifest, parts=tuple(parts)).to_bytes())


@pytest.fixture(scope="module")
def store(tmp_path_factory, write_parquet, corpus: list[str], trained: Tokenizer) -> Path:
    """Forty documents in a handful of parts, of which the second has a mask."""
    directory = tmp_path_factory.mktemp("store")
    write_parquet(directory / "in.parquet", corpus)
    tokenize(directory / "in.parquet", directory / "out", tokenizer=trained, part_tokens=4000)
    count = read_manifest(directory / "out").parts[1].num_tokens
    write_file(
        directory / "out", "part-00001.mask", np.packbits(np.arange(count) % 3 == 0, bitorder="little").tobytes()
    )
    return directory / "out"


@pytest.fixture
def damaged(store: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(store, tmp_path / "copy"))


@pytest.fixture(scope="module")
def big_store(tmp_path_factory, write_jsonl) -> Path:
    """Three blocks of ids."""
    directory = tmp_path_factory.mktemp("big")
    source = write_jsonl(directory / "in.jsonl", ["lorem ipsum\n" * 5_000] * 22)
    tokenize(source, directory / "out", tokenizer=byte_tokenizer())
    return directory / "out"


def edit_manifest(store: Path, edit: Callable[[dict], object]) -> None:
    fields = json.loads((store / "manifest.json").read_bytes())
    edit(fields)
    fields.pop("digest")  # the change is meant
    (store / "manifest.json").write_text(json.dumps(fields))


@contextmanager
def changed(path: Path, change: Callable[[bytes], bytes]) -> Iterator[None]:
    """A file with other content, for a moment."""
    content = path.read_bytes()
    path.write_bytes(change(content))
    try:
        yield
    finally:
        path.write_bytes(content)


def flipped(content: bytes, at: int, bits: int = 0x10) -> bytes:
    at %= len(content)
    return content[:at] + bytes([content[at] ^ bits]) + content[at + 1 :]


def flip(path: Path, at: int) -> None:
    path.write_bytes(flipped(path.read_bytes(), at))


def blamed(store: Path) -> set[str]:
    """The files that opening or verifying names."""
    names = {path.name for path in store.iterdir()}
    try:
        return {damage.file for damage in TokenStore.open(store).verify()}
    except TokenStoreError as error:
        return {name for name in names if f"/{name}" in str(error)}


# ----------------------------------------------------------------------------------------------------------- any byte


@settings(max_examples=50)
@given(data=st.data())
def test_a_flip_anywhere_is_laid_to_its_file(store: Path, data: st.DataObject):
    path = data.draw(st.sampled_from(sorted(store.iterdir())))
    at, bits = data.draw(st.integers(0, path.stat().st_size - 1)), data.draw(st.integers(1, 255))
    before = read_manifest(store)
    with changed(path, lambda content: flipped(content, at, bits)):
        found = blamed(store)
        # A space that became a line's end, or a misspelt name of the digest, changes nothing that the manifest says.
        is_harmless = path.name == "manifest.json" and not found and read_manifest(store) == before
        assert is_harmless or found == {path.name}


@settings(max_examples=50)
@given(data=st.data())
def test_a_file_cut_anywhere_is_refused_by_name(store: Path, data: st.DataObject):
    path = data.draw(st.sampled_from(sorted(store.iterdir())))
    length = data.draw(st.integers(0, path.stat().st_size - (2 if path.name == "manifest.json" else 1)))
    with changed(path, lambda content: content[:length]), pytest.raises(TokenStoreError, match=path.name):
        TokenStore.open(store)


@pytest.mark.parametrize("change", [lambda m: m["lineage"].update(num_empty=7), lambda m: m.update(vocab_size=401)])
def test_a_manifest_that_was_edited_is_refused_until_that_is_meant(damaged: Path, change: Callable[[dict], object]):
    fields = json.loads((damaged / "manifest.json").read_bytes())
    change(fields)
    (damaged / "manifest.json").write_text(json.dumps(fields))
    with pytest.raises(TokenStoreError, match=r"manifest\.json is not as it was written: its digest differs"):
        TokenStore.open(damaged)
    del fields["digest"]
    (damaged / "manifest.json").write_text(json.dumps(fields))
    TokenStore.open(damaged)


# ------------------------------------------------------------------------------------------------- what verify finds


def test_a_sound_store_verifies(store: Path):
    assert TokenStore.open(store).verify() == ()


@pytest.mark.parametrize("at", [0, (1 << 20) - 1, 1 << 20, 2_500_000, -1])
def test_a_flipped_byte_is_found_with_its_block(tmp_path_factory, at: int, big_store: Path, tmp_path: Path):
    copy = Path(shutil.copytree(big_store, tmp_path / "copy"))
    size = (copy / "part-00000.bin").stat().st_size
    flip(copy / "part-00000.bin", at)
    [damage] = TokenStore.open(copy).verify()
    assert (damage.file, damage.block) == ("part-00000.bin", (at % size) >> 20)
    assert f"part-00000.bin: block {damage.block}" in str(damage)


@pytest.mark.parametrize("suffix", ["idx", "bytes", "crc", "sources"])
def test_a_flipped_byte_in_a_sidecar_is_found(damaged: Path, suffix: str):
    flip(damaged / f"part-00001.{suffix}", -1)
    assert f"part-00001.{suffix}" in {damage.file for damage in TokenStore.open(damaged).verify()}


def test_a_damaged_block_tells_the_tokens_and_documents_in_it(big_store: Path, tmp_path: Path):
    copy = Path(shutil.copytree(big_store, tmp_path / "copy"))
    flip(copy / "part-00000.bin", (1 << 20) + 5)
    opened = TokenStore.open(copy)
    [damage] = opened.verify()
    assert damage.tokens == (1 << 19, (1 << 20) - 1)
    assert damage.documents == (opened.locate(1 << 19).document, opened.locate((1 << 20) - 1).document)
    assert str(damage) == (
        "part-00000.bin: block 1 (bytes from 1,048,576) fails its CRC, tokens 524,288 to 1,048,575, documents 8 to 17"
    )


def ids_of(store: Path) -> np.ndarray:
    return np.fromfile(store / "part-00001.bin", "<u2")


def rewrite_ids(store: Path, ids: np.ndarray) -> None:
    write_file(store, "part-00001.bin", ids.tobytes())
    write_file(store, "part-00001.crc", struct.pack("<I", zlib.crc32(ids.tobytes())))


def test_an_id_outside_the_vocabulary_is_a_fault(damaged: Path, trained: Tokenizer):
    ids = ids_of(damaged)
    ids[[3, 8]] = trained.vocab_size
    rewrite_ids(damaged, ids)
    [damage] = TokenStore.open(damaged).verify()
    first = TokenStore.open(damaged).first_tokens[1]
    told = f"part-00001.bin: 2 ids outside the vocabulary of {trained.vocab_size}, the first at token {first + 3:,}"
    assert str(damage) == told


def test_a_document_that_does_not_end_as_the_manifest_says_is_a_fault(damaged: Path, trained: Tokenizer):
    ids = ids_of(damaged)
    ids[-1] = trained.eos_id + 1
    rewrite_ids(damaged, ids)
    [damage] = TokenStore.open(damaged).verify()
    last = TokenStore.open(damaged).first_tokens[2] - 1
    told = f"1 documents that do not end with eos {trained.eos_id}, the first at token {last:,}"
    assert (damage.file, damage.problem) == ("part-00001.bin", told)


def test_a_length_of_text_that_decoding_does_not_confirm_is_a_fault(damaged: Path):
    (damaged / "part-00001.mask").unlink()  # of chats, decoding tells nothing
    edit_manifest(damaged, lambda m: m["parts"][1]["files"].pop("part-00001.mask"))
    lengths = np.fromfile(damaged / "part-00000.bytes", "<i8")
    lengths[:2] += [1, -1]
    write_file(damaged, "part-00000.bytes", lengths.tobytes())
    [damage] = TokenStore.open(damaged).verify()
    told = f"tells {lengths[0]} bytes of text for document 0, which decodes to {lengths[0] - 1}"
    assert (damage.file, damage.problem) == ("part-00000.bytes", told)


@pytest.mark.parametrize(
    ("suffix", "at", "value", "told"),
    [
        ("idx", 34, struct.pack("<i", 1), "documents have"),
        ("idx", 34, struct.pack("<i", 0), "has no token"),
        ("idx", -8, struct.pack("<q", 1), "is not one sequence"),
        ("bytes", 0, struct.pack("<q", 1), "they add up to"),
        ("bytes", 0, struct.pack("<q", -1), "one is negative"),
        ("sources", -3, b"9", "tells sources of"),
    ],
)
def test_a_sidecar_that_makes_no_sense_is_a_fault(damaged: Path, suffix: str, at: int, value: bytes, told: str):
    content = bytearray((damaged / f"part-00001.{suffix}").read_bytes())
    at %= len(content)
    content[at : at + len(value)] = value
    write_file(damaged, f"part-00001.{suffix}", bytes(content))
    [damage] = TokenStore.open(damaged).verify()
    assert damage.file == f"part-00001.{suffix}"
    assert told in damage.problem


# ------------------------------------------------------------------------------------------------- what open refuses


@pytest.mark.parametrize("suffix", ["bin", "idx", "bytes", "crc", "sources", "mask"])
@pytest.mark.parametrize("action", ["truncate", "remove"])
def test_a_short_or_missing_file_is_refused_by_name(damaged: Path, suffix: str, action: str):
    path = damaged / f"part-00001.{suffix}"
    if action == "truncate":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    with pytest.raises(TokenStoreError, match=rf"part-00001\.{suffix}"):
        TokenStore.open(damaged)


def test_no_manifest_means_no_store(damaged: Path):
    (damaged / "manifest.json").unlink()
    with pytest.raises(TokenStoreError, match=r"no manifest\.json"):
        TokenStore.open(damaged)


def test_another_tokenizer_is_refused(damaged: Path):
    (damaged / "tokenizer.json").write_bytes(byte_tokenizer().content)
    with pytest.raises(TokenStoreError, match=r"tokenizer\.json is not the tokenizer"):
        TokenStore.open(damaged)


def test_a_missing_tokenizer_is_refused(damaged: Path):
    (damaged / "tokenizer.json").unlink()
    with pytest.raises(TokenStoreError, match=r"tokenizer\.json is missing"):
        TokenStore.open(damaged)


@pytest.mark.parametrize(
    ("header", "told"),
    [
        (lambda old: b"GARBAGE\x00\x00" + old[9:], "is no index"),
        (lambda old: old[:9] + struct.pack(">Q", 1) + old[17:], "big-endian"),
        (lambda old: old[:17] + b"\x04" + old[18:], "dtype code 4"),
        (lambda old: old[:18] + struct.pack("<Q", 3) + old[26:], "3 sequences"),
    ],
)
def test_a_foreign_index_is_refused_by_name(damaged: Path, header: Callable[[bytes], bytes], told: str):
    path = damaged / "part-00000.idx"
    path.write_bytes(header(path.read_bytes()))
    with pytest.raises(TokenStoreError, match=told) as caught:
        TokenStore.open(damaged)
    assert "part-00000.idx" in str(caught.value)


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda m: m.update(schema_version=2), "schema_version is 2"),
        (lambda m: m.pop("vocab_size"), "vocab_size is missing"),
        (lambda m: m.update(dtype="float8"), "float8"),
        (lambda m: m.update(num_tokens=1), "num_tokens is 1"),
        (lambda m: m["parts"][0]["files"].pop("part-00000.crc"), r"does not list part-00000\.crc"),
        (lambda m: m["parts"][0].update(files=[]), "part-00000: files"),
        (lambda m: m["special_ids"].update(eos="x"), "eos"),
    ],
)
def test_a_manifest_that_does_not_hold_is_refused(damaged: Path, edit: Callable[[dict], object], told: str):
    edit_manifest(damaged, edit)
    with pytest.raises(TokenStoreError, match=told):
        TokenStore.open(damaged)


def test_a_manifest_cut_short_is_refused(damaged: Path):
    path = damaged / "manifest.json"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(TokenStoreError, match="cannot be read"):
        TokenStore.open(damaged)


@pytest.mark.parametrize("name", ["part-00099.bin", "part-00000.mask"])
def test_a_file_of_a_part_that_the_manifest_lacks_is_refused(damaged: Path, name: str):
    (damaged / name).write_bytes(b"")
    with pytest.raises(TokenStoreError, match=rf"{name} is not in the manifest"):
        TokenStore.open(damaged)


def test_what_is_not_of_the_store_may_lie_beside_it(damaged: Path):
    (damaged / "README.md").write_text("ours")
    assert TokenStore.open(damaged).num_documents == 40


def test_a_path_out_of_the_store_is_refused(damaged: Path):
    edit_manifest(damaged, lambda m: m["parts"][0]["files"].update({"../x": {"size": 1, "sha256": "0"}}))
    with pytest.raises(TokenStoreError, match=r"lists '\.\./x'"):
        TokenStore.open(damaged)


def test_each_mistake_is_one_line_and_exit_code_2(damaged: Path, tmp_path: Path, capsys):
    megatron = tmp_path / "megatron"
    megatron.mkdir()
    (megatron / "corpus_text_document.idx").write_bytes(b"MMIDIDX\x00\x00")
    told = {
        str(tmp_path / "none"): "does not exist",
        str(damaged / "manifest.json"): "is a file: give the directory",
        str(tmp_path): "is no token store: it has no manifest.json",
        str(megatron): "it has Megatron's files, but it has no manifest.json",
        "memory://none/here": "memory://none/here is no token store: it has no manifest.json",
        "nosuch://a/b": "nosuch://a/b: cannot be opened",
    }
    for path, expected in told.items():
        assert main(["inspect", path]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert expected in captured.err


@pytest.mark.parametrize(("suffix", "at", "token"), [("sources", 0, "0"), ("idx", 37, "5")])
def test_damage_that_hides_a_token_is_one_line_and_verify_tells_it(
    damaged: Path, capsys: pytest.CaptureFixture[str], suffix: str, at: int, token: str
):
    content = bytearray((damaged / f"part-00000.{suffix}").read_bytes())
    content[at] = 0xFF
    (damaged / f"part-00000.{suffix}").write_bytes(content)
    assert main(["inspect", str(damaged), "--token", token]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["inspect", str(damaged), "--token", token, "--verify"]) == 1
    assert f"part-00000.{suffix}" in capsys.readouterr().out


def test_damage_is_told_and_is_exit_code_1(damaged: Path, capsys):
    flip(damaged / "part-00001.bin", 5)
    assert main(["inspect", str(damaged), "--verify"]) == 1
    assert "damage      part-00001.bin: block 0 (bytes from 0) fails its CRC" in capsys.readouterr().out
