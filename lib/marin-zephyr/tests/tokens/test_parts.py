"""Parts of a store: runs of documents and bits of masks come out as they went in, however they are cut into runs."""

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr.tokens.parts import MaskBits, PartWriter

_RUNS = st.lists(st.tuples(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.booleans(), st.sampled_from("ab")))


@settings(max_examples=50)
@given(runs=st.lists(st.one_of(st.integers(0, 20), st.lists(st.booleans(), max_size=20))))
def test_mask_bits_do_not_depend_on_the_runs(runs: list[int | list[bool]]):
    bits = MaskBits()
    expected: list[bool] = []
    for run in runs:
        ones = [True] * run if isinstance(run, int) else run
        bits.append(None if isinstance(run, int) else np.array(run, np.bool_), len(ones))
        expected += ones
    data = bits.to_bytes()
    assert len(data) == -(-len(expected) // 8)
    assert [bool(byte >> bit & 1) for byte in data for bit in range(8)][: len(expected)] == expected
    assert sum(byte.bit_count() for byte in data) == sum(expected)


@settings(max_examples=15)
@given(runs=_RUNS.filter(bool))
def test_a_part_holds_the_documents_of_its_runs(tmp_path_factory, runs):
    directory = tmp_path_factory.mktemp("part")
    writer = PartWriter(directory, "part-00000", dtype="uint16")
    ids, lengths, sources, mask = [], [], [], []
    for sizes, is_masked, source in runs:
        run = np.arange(len(ids), len(ids) + sum(sizes), dtype=np.int32)
        chosen = run % 5 == 0 if is_masked else None
        writer.append(
            run,
            lengths=np.array(sizes),
            num_bytes=2 * np.array(sizes),
            sources=pl.Series([source] * len(sizes)),
            mask=chosen,
        )
        ids += run.tolist()
        lengths += sizes
        sources += [source] * len(sizes)
        mask += [True] * len(run) if chosen is None else chosen.tolist()
    record = writer.finish()
    assert (record.num_tokens, record.num_documents, record.num_bytes) == (len(ids), len(lengths), 2 * len(ids))
    assert np.fromfile(directory / "part-00000.bin", "<u2").tolist() == ids
    assert np.fromfile(directory / "part-00000.bytes", "<i8").tolist() == [2 * n for n in lengths]
    assert ("part-00000.mask" in record.files) == any(is_masked for _, is_masked, _ in runs)
    if "part-00000.mask" in record.files:
        packed = np.fromfile(directory / "part-00000.mask", np.uint8)
        assert np.unpackbits(packed, bitorder="little", count=len(ids)).astype(bool).tolist() == mask
