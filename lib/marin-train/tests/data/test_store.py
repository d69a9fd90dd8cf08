import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_train.data.packing import ContiguousPacking
from marin_train.data.store import TokenStore
from marin_train.errors import TokenStoreError

DOCUMENTS = [[[1, 2, 3, 0], [4, 0]], [], [[5, 6, 7, 8, 9, 0]], [[10, 0]]]
STREAM = [1, 2, 3, 0, 4, 0, 5, 6, 7, 8, 9, 0, 10, 0]
MASK = [i % 3 != 0 for i in range(len(STREAM))]
MASKS = [MASK[:6], [], MASK[6:12], MASK[12:]]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory, write_store: Callable[..., Path]) -> TokenStore:
    return TokenStore.open(write_store(tmp_path_factory.mktemp("stores") / "store", DOCUMENTS, masks=MASKS))


@given(bounds=st.tuples(st.integers(0, 14), st.integers(0, 14)).map(sorted))
def test_any_range_reads_the_stream_over_part_boundaries(opened: TokenStore, bounds: list[int]) -> None:
    start, stop = bounds
    assert opened.read(start, stop).tolist() == STREAM[start:stop]
    assert opened.read_mask(start, stop).tolist() == MASK[start:stop]


def test_counts_come_from_the_manifest(opened: TokenStore) -> None:
    assert (opened.num_tokens, opened.num_documents, opened.num_bytes) == (14, 4, 10)
    assert (opened.eos_id, opened.bos_id) == (0, None)


def test_a_range_outside_is_refused(opened: TokenStore) -> None:
    with pytest.raises(IndexError, match="stream of 14"):
        opened.read(10, 15)


@given(seq_len=st.integers(1, 14))
def test_packing_makes_each_token_but_the_first_a_target_once(opened: TokenStore, seq_len: int) -> None:
    packing = ContiguousPacking(opened, seq_len)
    size = packing.num_sequences
    packed = packing.read(np.arange(size))
    assert packed.tokens.shape == (size, seq_len + 1)
    assert packed.tokens[:, 1:].ravel().tolist() == STREAM[1 : 1 + size * seq_len]
    assert packed.tokens[:, 0].tolist() == STREAM[0 : size * seq_len : seq_len]
    assert packed.loss_mask.ravel().tolist() == MASK[1 : 1 + size * seq_len]
    assert 14 - 1 - size * seq_len < seq_len


@pytest.mark.parametrize(("dtype", "largest"), [("uint16", 65_499), ("int32", 200_000)])
def test_both_token_types_keep_their_largest_id(
    tmp_path: Path, write_store: Callable[..., Path], dtype: str, largest: int
) -> None:
    path = write_store(tmp_path / "s", [[[largest, 0]]], dtype=dtype, vocab_size=largest + 1)
    read = TokenStore.open(path).read(0, 2)
    assert read.dtype == np.int32
    assert read.tolist() == [largest, 0]


def test_the_digest_names_the_data(tmp_path: Path, write_store: Callable[..., Path]) -> None:
    digests = [
        TokenStore.open(write_store(tmp_path / str(i), [[tokens]])).digest
        for i, tokens in enumerate(([1, 2, 0], [1, 2, 0], [1, 3, 0]))
    ]
    assert digests[0] == digests[1] != digests[2]


def _truncate(store: Path) -> None:
    file = store / "part-00000.bin"
    file.write_bytes(file.read_bytes()[:-2])


def _manifest(**changes: object) -> Callable[[Path], None]:
    def damage(store: Path) -> None:
        file = store / "manifest.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return damage


def _index(position: int, content: bytes) -> Callable[[Path], None]:
    def damage(store: Path) -> None:
        file = store / "part-00000.idx"
        raw = bytearray(file.read_bytes())
        raw[position : position + len(content)] = content
        file.write_bytes(bytes(raw))

    return damage


DAMAGE = {
    "no manifest": (lambda store: (store / "manifest.json").unlink(), "manifest.json cannot be read"),
    "half a manifest": (lambda store: (store / "manifest.json").write_text('{"schema'), "manifest.json is not JSON"),
    "another version": (_manifest(schema_version=2), "schema_version=2"),
    "a missing field": (_manifest(vocab_size=None), "vocab_size is None"),
    "an unknown type": (_manifest(dtype="float16"), "dtype='float16'"),
    "a wrong total": (_manifest(num_tokens=99), "num_tokens=99"),
    "a truncated part": (_truncate, r"part-00000.bin: size is 10, the manifest says 12"),
    "a missing part": (lambda store: (store / "part-00000.bin").unlink(), "part-00000.bin: size is absent"),
    "a foreign index": (_index(0, b"SOMETHING"), "part-00000.idx is not a Megatron index"),
    "a foreign endianness": (_index(9, b"\0\0\0\0\0\0\0\1"), "part-00000.idx: version.*endianness"),
    "another token type": (_index(17, b"\4"), "part-00000.idx: .*dtype code 4"),
    "another document count": (_index(26, b"\7"), "part-00000.idx: 6 documents"),
    "another tokenizer": (lambda store: (store / "tokenizer.json").write_text("{}"), "tokenizer.json: sha256"),
    "no tokenizer": (lambda store: (store / "tokenizer.json").unlink(), "tokenizer.json: sha256 is absent"),
    "a short mask": (lambda store: (store / "part-00000.mask").write_bytes(b""), "part-00000.mask: size is 0"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_store_is_refused_by_the_name_of_its_file(
    tmp_path: Path, write_store: Callable[..., Path], what: str
) -> None:
    damage, message = DAMAGE[what]
    store = write_store(tmp_path / "s", [[[1, 2, 3, 0], [4, 0]]], masks=[[True] * 6])
    damage(store)
    with pytest.raises(TokenStoreError, match=message):
        TokenStore.open(store)


def test_a_directory_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenStoreError, match="nowhere is not a token store"):
        TokenStore.open(tmp_path / "nowhere")
