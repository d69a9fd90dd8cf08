"""Packings against a plain one, document by document and token by token."""

import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_train.configs import Component, DataConfig, PackingConfig
from marin_train.data.document_packing import plan_documents
from marin_train.data.packing import Packing, Sequences, pack
from marin_train.data.store import TokenStore
from marin_train.errors import TokenStoreError

WriteStore = Callable[..., Path]
Token = tuple[int, int]
"""A document's number and a place in it."""

MODES = ("split", "left", "right", "drop")

stores = st.lists(st.lists(st.integers(1, 14), max_size=6), min_size=1, max_size=3)
"""Lengths of the documents of each part; a part may be empty."""


def store_of(write_store: WriteStore, lengths: list[list[int]], path: Path, *, mask_seed: int | None = None) -> Path:
    """A store whose token ids differ from their neighbours' in the stream."""
    parts, at = [], 0
    for part in lengths:
        parts.append([])
        for length in part:
            parts[-1].append([1 + (at + i) % 60 for i in range(length)])
            at += length
    masks = None
    if mask_seed is not None:
        rng = np.random.default_rng(mask_seed)
        masks = [rng.random(sum(part)) < 0.7 for part in lengths]
    return write_store(path, parts, masks=masks)


def packing_of(path: Path, seq_len: int, **fields: Any) -> Packing:
    component = Component(name="all", path=str(path))
    config = DataConfig(components=(component,), seq_len=seq_len, packing=PackingConfig(**fields))
    return pack(TokenStore.open(path), config)


def packed_plainly(lengths: list[int], seq_len: int, overlong: str) -> list[list[list[Token]]]:
    """Sequences of pieces of tokens, one document after the other."""
    room, sequences, open_one = seq_len + 1, [], []

    def close() -> None:
        nonlocal open_one
        if sum(map(len, open_one)) >= 2:
            sequences.append(open_one)
        open_one = []

    for number, length in enumerate(lengths):
        tokens = [(number, i) for i in range(length)]
        if length > room:
            close()
            if overlong == "drop":
                continue
            if overlong == "split":
                while len(tokens) > room:
                    sequences.append([tokens[:room]])
                    tokens = tokens[room - 1 :]
            else:
                tokens = tokens[:room] if overlong == "left" else tokens[-room:]
        if sum(map(len, open_one)) + len(tokens) > room:
            close()
        open_one.append(tokens)
    close()
    return sequences


@settings(max_examples=50)
@given(lengths=stores, seq_len=st.integers(1, 9), overlong=st.sampled_from(MODES), reset=st.booleans(), data=st.data())
def test_document_packing_equals_the_plain_one(
    write_store: WriteStore, lengths: list[list[int]], seq_len: int, overlong: str, reset: bool, data: st.DataObject
) -> None:
    flat = [length for part in lengths for length in part]
    begin = np.concatenate([[0], np.cumsum(flat)]).astype(int)
    expected = packed_plainly(flat, seq_len, overlong)
    with TemporaryDirectory() as directory:
        path = store_of(write_store, lengths, Path(directory) / "store", mask_seed=len(flat))
        packing = packing_of(path, seq_len, kind="documents", overlong=overlong, reset_positions=reset)
        assert packing.num_sequences == len(expected)
        numbers = data.draw(st.permutations(range(len(expected))))
        found = packing.read(np.array(numbers, np.int64))
        stream = TokenStore.open(path).read(0, int(begin[-1]))
        counts = TokenStore.open(path).read_mask(0, int(begin[-1]))
    assert found.segment_ids is not None
    assert (found.positions is not None) == reset
    assert found.tokens.shape == (len(expected), seq_len + 1)
    for row, number in enumerate(numbers):
        tokens = np.zeros(seq_len + 1, int)
        mask, segments, positions = np.zeros(seq_len + 1, bool), np.zeros(seq_len + 1, int), np.zeros(seq_len + 1, int)
        column = 0
        for segment, piece in enumerate(expected[number], 1):
            for place, (document, i) in enumerate(piece):
                tokens[column] = stream[begin[document] + i]
                segments[column], positions[column] = segment, place
                mask[column] = place > 0 and counts[begin[document] + i]
                column += 1
        np.testing.assert_array_equal(found.tokens[row], tokens)
        np.testing.assert_array_equal(found.loss_mask[row], mask[1:])
        np.testing.assert_array_equal(found.segment_ids[row], segments[:-1])
        if found.positions is not None:
            np.testing.assert_array_equal(found.positions[row], positions[:-1])
    used = {token for sequence in expected for piece in sequence for token in piece}
    assert packing.num_dropped == sum(flat) - len(used)
    assert packing.num_padding == np.sum(found.segment_ids == 0)


@settings(max_examples=50)
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=30), seq_len=st.integers(1, 9))
def test_of_split_documents_every_prediction_comes_exactly_once(lengths: list[int], seq_len: int) -> None:
    borders = np.concatenate([[0], np.cumsum(lengths)])
    plan = plan_documents(borders, seq_len=seq_len, overlong="split")
    starts, sizes = plan.locate(np.arange(plan.num_sequences))
    assert np.all((sizes >= 2) & (sizes <= seq_len + 1))
    begins = set(borders.tolist())
    targets = Counter(t for a, n in zip(starts, sizes, strict=True) for t in range(a + 1, a + n) if t not in begins)
    assert targets == Counter(t for t in range(borders[-1]) if t not in begins)


def test_a_long_chain_is_followed_from_block_to_block(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = np.random.default_rng(0).integers(1, 60, size=2000)
    borders = np.concatenate([[0], np.cumsum(lengths)])
    whole = plan_documents(borders, seq_len=31, overlong="split")
    monkeypatch.setattr("marin_train.data.document_packing._BLOCK", 7)
    by_blocks = plan_documents(borders, seq_len=31, overlong="split")
    np.testing.assert_array_equal(by_blocks.starts, whole.starts)
    np.testing.assert_array_equal(by_blocks.stops, whole.stops)


def test_sequences_beyond_two_to_the_32_tokens_are_found() -> None:
    borders = np.arange(9, dtype=np.int64) * 10**9
    plan = plan_documents(borders, seq_len=1000, overlong="split")
    # 999,999,999 predictions are 999,999 full sequences and one of 999.
    assert (plan.num_sequences, plan.num_padding, plan.num_dropped) == (8 * 10**6, 0, 0)
    starts, sizes = plan.locate(np.array([0, 7 * 10**6 - 1, 7 * 10**6]))
    assert starts.tolist() == [0, 7 * 10**9 - 1000, 7 * 10**9]
    assert sizes.tolist() == [1001, 1000, 1001]


def test_a_plan_takes_memory_for_its_documents_and_not_for_their_tokens() -> None:
    borders = np.arange(100_001, dtype=np.int64) * 10**7
    tracemalloc.start()
    plan = plan_documents(borders, seq_len=1024, overlong="split")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert plan.num_sequences > 9 * 10**8
    assert peak < 150 * len(borders)


@pytest.mark.parametrize("lengths", [[], [[]], [[], [1]]])
@pytest.mark.parametrize("kind", ["contiguous", "documents"])
def test_a_store_without_predictions_has_no_sequences(
    write_store: WriteStore, tmp_path: Path, lengths: list[list[int]], kind: str
) -> None:
    packing = packing_of(store_of(write_store, lengths, tmp_path / "store"), 4, kind=kind)
    assert (packing.num_sequences, packing.num_padding) == (0, 0)
    assert packing.num_dropped == sum(map(sum, lengths))


@settings(max_examples=30)
@given(lengths=stores, seq_len=st.integers(1, 9), masked=st.booleans())
def test_contiguous_packing_cuts_the_stream_and_counts_positions_from_each_document(
    write_store: WriteStore, lengths: list[list[int]], seq_len: int, masked: bool
) -> None:
    flat = [length for part in lengths for length in part]
    with TemporaryDirectory() as directory:
        path = store_of(write_store, lengths, Path(directory) / "store", mask_seed=5 if masked else None)
        plain, reset = packing_of(path, seq_len), packing_of(path, seq_len, reset_positions=True)
        numbers = np.arange(plain.num_sequences)
        found, again = plain.read(numbers), reset.read(numbers)
        stream = TokenStore.open(path).read(0, sum(flat))
        counts = TokenStore.open(path).read_mask(0, sum(flat))
    begin = np.repeat(np.cumsum([0, *flat])[:-1], flat)
    for row in range(len(numbers)):
        inputs = np.arange(row * seq_len, (row + 1) * seq_len)
        np.testing.assert_array_equal(found.tokens[row], stream[row * seq_len : (row + 1) * seq_len + 1])
        np.testing.assert_array_equal(found.loss_mask[row], counts[inputs + 1])
        assert again.positions is not None
        np.testing.assert_array_equal(again.positions[row], inputs - np.maximum(begin[inputs], inputs[0]))
    assert found.segment_ids is found.positions is again.segment_ids is None
    np.testing.assert_array_equal(again.tokens, found.tokens)
    assert plain.num_dropped == sum(flat) - len({t for n in numbers for t in range(n * seq_len, (n + 1) * seq_len + 1)})


def test_a_sequence_whose_targets_the_store_does_not_count_is_legal(write_store: WriteStore, tmp_path: Path) -> None:
    path = write_store(tmp_path / "store", [[[1, 2, 3], [4, 5, 6]]], masks=[[True, False, False, True, True, True]])
    found: Sequences = packing_of(path, 2, kind="documents").read(np.arange(2))
    assert found.loss_mask.tolist() == [[False, False], [True, True]]


def test_an_index_that_contradicts_its_tokens_is_refused_by_name(write_store: WriteStore, tmp_path: Path) -> None:
    path = write_store(tmp_path / "store", [[[1, 2, 3], [4, 5, 6]]])
    index = bytearray((path / "part-00000.idx").read_bytes())
    index[34] += 1
    (path / "part-00000.idx").write_bytes(index)
    with pytest.raises(TokenStoreError, match=r"part-00000\.idx: its documents do not add up"):
        packing_of(path, 2, kind="documents")
