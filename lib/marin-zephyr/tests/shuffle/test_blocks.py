"""Block files: what goes in comes out, in order, or the damage is found."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_zephyr.errors import CorruptBlockError
from marin_zephyr.shuffle.blocks import BlockWriter, read_blocks


@given(rows=st.lists(st.tuples(st.integers(0, 4), st.text(max_size=6)), max_size=50), num_partitions=st.integers(1, 5))
def test_an_exchange_gives_each_partition_its_rows_in_order(rows, num_partitions, tmp_path_factory):
    path = tmp_path_factory.mktemp("blocks") / "x.blocks"
    writer = BlockWriter(path, num_partitions)
    for start in range(0, len(rows), 7):
        part = rows[start : start + 7]
        frame = pl.DataFrame(part, schema={"k": pl.Int64, "t": pl.String}, orient="row")
        writer.scatter(frame, np.array([k % num_partitions for k, _ in part]))
    writer.close()
    for p in range(num_partitions):
        got = [row for frame in read_blocks(path, p) for row in frame.rows()]
        assert got == [row for row in rows if row[0] % num_partitions == p]


def test_frames_of_different_schemas_keep_their_order_and_types(tmp_path):
    writer = BlockWriter(tmp_path / "x.blocks", 1)
    frames = [
        pl.DataFrame({"a": [1]}),
        pl.DataFrame({"a": [2]}),
        pl.DataFrame({"a": [0.5]}),
        pl.DataFrame({"b": ["x"]}),
    ]
    for frame in frames:
        writer.write(frame)
    writer.close()
    assert [f.to_dicts() for f in read_blocks(tmp_path / "x.blocks")] == [
        [{"a": 1}, {"a": 2}],
        [{"a": 0.5}],
        [{"b": "x"}],
    ]


@pytest.mark.parametrize("where", [20, -20])
def test_a_flipped_byte_is_found(tmp_path, where):
    path = tmp_path / "x.blocks"
    writer = BlockWriter(path, 1)
    writer.write(pl.DataFrame({"a": list(range(1000))}))
    writer.close()
    data = bytearray(path.read_bytes())
    data[where] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptBlockError, match=r"x\.blocks"):
        list(read_blocks(path))


def test_a_cut_block_file_is_found(tmp_path):
    path = tmp_path / "x.blocks"
    writer = BlockWriter(path, 1)
    writer.write(pl.DataFrame({"a": [1, 2, 3]}))
    writer.close()
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CorruptBlockError):
        list(read_blocks(path))
