import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
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


def _entry(name: str, sha256: str) -> Callable[[Path], None]:
    def damage(store: Path) -> None:
        parts = json.loads((store / "manifest.json").read_text())["parts"]
        parts[0]["files"][name] = {"size": 0, "sha256": sha256}
        _manifest(parts=parts)(store)

    return damage


def _index(position: int, content: bytes) -> Callable[[Path], None]:
    def damage(store: Path) -> None:
        file = store / "part-00000.idx"
        raw = bytearray(file.read_bytes())
        raw[position : position + len(content)] = content
        file.write_bytes(bytes(raw))

    return damage


DAMAGE = {
    "no manifest": (lambda store: (store / "manifest.json").unlink(), "it has no manifest.json"),
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
    "a file outside the store": (_entry("../x", "0" * 64), "'../x' with sha256 '0{64}' is no file of a token store"),
    "a digest that is a path": (_entry("part-00000.x", "../x"), "'part-00000.x' with sha256 '../x' is no file"),
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
    with pytest.raises(TokenStoreError, match=r"nowhere does not exist \(working directory"):
        TokenStore.open(tmp_path / "nowhere")
    with pytest.raises(TokenStoreError, match=r"manifest\.json cannot be read"):
        TokenStore.open("a name with \0")


ODD_PARTS = [13, 0, 1, 8, 0, 0, 29, 5]
"""Tokens a part, so that masks begin and end inside bytes."""


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory, write_store: Callable[..., Path]) -> Path:
    rng = np.random.default_rng(0)
    documents = [[rng.integers(1, 64, size)] if size else [] for size in ODD_PARTS]
    masks = [rng.random(size) < 0.5 for size in ODD_PARTS]
    return write_store(tmp_path_factory.mktemp("masked") / "s", documents, masks=masks)


def _unpacked(store: Path) -> tuple[np.ndarray, np.ndarray]:
    """All ids and all bits, read in the plainest way."""
    names = [f"part-{i:05d}" for i in range(len(ODD_PARTS))]
    ids = [np.frombuffer((store / f"{name}.bin").read_bytes(), "<u2") for name in names]
    bits = [np.frombuffer((store / f"{name}.mask").read_bytes(), np.uint8) for name in names]
    unpacked = [np.unpackbits(b, bitorder="little")[: len(i)] for b, i in zip(bits, ids, strict=True)]
    return np.concatenate(ids), np.concatenate(unpacked).astype(bool)


@settings(max_examples=50)
@given(data=st.data())
def test_rows_from_anywhere_are_windows_of_the_stream(masked: Path, data: st.DataObject) -> None:
    ids, bits = _unpacked(masked)
    length = data.draw(st.integers(0, len(ids)))
    starts = np.array(data.draw(st.lists(st.integers(0, len(ids) - length), max_size=12)), np.int64)
    store = TokenStore.open(masked)
    store._tokens._cold = store._mask._cold = data.draw(st.integers(0, 1))  # as if rows had to be waited for
    tokens, mask = store.gather(starts, length), store.gather_mask(starts, length)
    assert (tokens.dtype, mask.dtype) == (np.int32, np.bool_)
    assert tokens.tolist() == [ids[s : s + length].tolist() for s in starts.tolist()]
    assert mask.tolist() == [bits[s : s + length].tolist() for s in starts.tolist()]
    rows = np.array(data.draw(st.permutations(range(len(starts) + 2))), np.int64)
    out = np.full((len(rows), length), -1, np.int32)
    store.gather_into(out, rows[2:], starts)
    assert out[rows].tolist() == [[-1] * length] * 2 + tokens.tolist()


def test_rows_outside_are_refused(opened: TokenStore) -> None:
    for starts in ([0, 10], [-1, 3]):
        with pytest.raises(IndexError, match="stream of 14"):
            opened.gather(np.array(starts), 5)


def test_a_part_without_a_mask_counts_all_its_tokens(tmp_path: Path, write_store: Callable[..., Path]) -> None:
    path = write_store(tmp_path / "s", [[[1, 2, 3, 0]], [[4, 5, 0]]], masks=[[False] * 4, [False] * 3])
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["parts"][1]["files"]["part-00001.mask"]
    (path / "manifest.json").write_text(json.dumps(manifest))
    store = TokenStore.open(path)
    assert store.read_mask(0, 7).tolist() == [False] * 4 + [True] * 3
    assert store.gather_mask(np.array([2, 5]), 2).tolist() == [[False, False], [True, True]]


def test_hundreds_of_parts_read_as_one_stream(tmp_path: Path, write_store: Callable[..., Path]) -> None:
    rng = np.random.default_rng(0)
    parts = [[rng.integers(1, 64, int(size))] if size else [] for size in rng.integers(0, 9, 300)]
    store = TokenStore.open(write_store(tmp_path / "s", parts))
    stream = np.concatenate([document for part in parts for document in part])
    starts = rng.integers(0, len(stream) - 30, 200)
    assert np.array_equal(store.gather(starts, 30), stream[starts[:, None] + np.arange(30)])
    assert np.array_equal(store.read(0, len(stream)), stream)
    lengths = [len(document) for part in parts for document in part]
    assert store.document_borders().tolist() == [0, *np.cumsum(lengths).tolist()]


def test_more_parts_than_open_files_are_allowed(tmp_path: Path, write_store: Callable[..., Path]) -> None:
    resource = pytest.importorskip("resource")
    store = TokenStore.open(write_store(tmp_path / "s", [[[i % 64, 0]] for i in range(100)]))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/dev/fd").iterdir())) + 20, hard))
        assert store.read(0, 200).tolist() == [t for i in range(100) for t in (i % 64, 0)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_tokens_beyond_two_to_the_32_are_found(tmp_path: Path, write_store: Callable[..., Path]) -> None:
    """Two sparse parts of 3 * 10^9 tokens, all 0 but for a few."""
    size = 3 * 10**9
    path = write_store(tmp_path / "s", [[[1, 0]], [[1, 0]]])
    manifest = json.loads((path / "manifest.json").read_text())
    written = {5: 11, size - 1: 12, size: 13, 2**32 + 7: 14, 2 * size - 1: 15}
    for number, part in enumerate(manifest["parts"]):
        with (path / f"{part['name']}.bin").open("r+b") as file:
            file.truncate(0)
            file.truncate(2 * size)
            for position, token in written.items():
                if number * size <= position < (number + 1) * size:
                    file.seek(2 * (position - number * size))
                    file.write(token.to_bytes(2, "little"))
        part["num_tokens"], part["files"][f"{part['name']}.bin"]["size"] = size, 2 * size
        del part["files"][f"{part['name']}.crc"]
    manifest["num_tokens"] = 2 * size
    (path / "manifest.json").write_text(json.dumps(manifest))
    store = TokenStore.open(path)
    rows = store.gather(np.array([2 * size - 3, 2**32 + 6, size - 2, 4]), 3)
    assert rows.tolist() == [[0, 0, 15], [0, 14, 0], [0, 12, 13], [0, 11, 0]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, write_store: Callable[..., Path]) -> Path:
    path = tmp_path_factory.mktemp("whole") / "s"
    return write_store(path, [[[1, 2, 3, 0], [4, 0]], [[5, 6, 0]]], masks=[[True] * 6, [True] * 3])


FILES = ["tokenizer.json", *(f"part-00001.{suffix}" for suffix in ("bin", "idx", "bytes", "crc", "mask"))]


def _copy(whole: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    return shutil.copytree(whole, to)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(FILES), share=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_anywhere_is_refused_by_name(tmp_path: Path, whole: Path, name: str, share: float) -> None:
    store = _copy(whole, tmp_path / "s")
    content = (store / name).read_bytes()
    (store / name).write_bytes(content[: int(share * len(content))])
    with pytest.raises(TokenStoreError, match=name):
        TokenStore.open(store)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(FILES), share=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_bit_flipped_anywhere_is_found_by_name(
    tmp_path: Path, whole: Path, name: str, share: float, bit: int
) -> None:
    store = _copy(whole, tmp_path / "s")
    content = bytearray((store / name).read_bytes())
    content[int(share * len(content))] ^= 1 << bit
    (store / name).write_bytes(content)
    with pytest.raises(TokenStoreError, match=name):
        TokenStore.open(store).verify()


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), cut=st.booleans())
def test_a_damaged_manifest_is_refused_or_another_manifest(
    tmp_path: Path, whole: Path, share: float, bit: int, cut: bool
) -> None:
    store = _copy(whole, tmp_path / "s")
    file, position = store / "manifest.json", int(share * (store / "manifest.json").stat().st_size)
    content = bytearray(file.read_bytes())
    content[position] ^= 1 << bit
    file.write_bytes(content[:position] if cut else content)
    try:
        opened = TokenStore.open(store)
    except TokenStoreError:
        return
    assert opened.digest == hashlib.sha256(content).hexdigest() != TokenStore.open(whole).digest
    assert opened.read(0, opened.num_tokens).tolist() == [1, 2, 3, 0, 4, 0, 5, 6, 0]
