"""Key equality, partitions and block files."""

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_zephyr.errors import CorruptBlockError, SchemaError
from marin_zephyr.exchange import BlockWriter, read_blocks
from marin_zephyr.keys import key_digest, key_digests, partitions

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=4), st.binary(max_size=4)
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=6)


def canonical(value: object) -> object:
    """Declared equality, spelled a second time."""
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, (int, float)):
        return ("number", "nan") if isinstance(value, float) and math.isnan(value) else ("number", value)
    if isinstance(value, list):
        return ("list", tuple(canonical(v) for v in value))
    return (type(value).__name__, value)


@given(a=VALUES, b=VALUES)
def test_digests_are_equal_exactly_for_equal_keys(a, b):
    assert (key_digest(a) == key_digest(b)) == (canonical(a) == canonical(b))


@pytest.mark.parametrize(("a", "b"), [(1, 1.0), (0.0, -0.0), ((1, 2), [1, 2]), ({"x": 1, "y": None}, {"x": 1.0})])
def test_keys_that_are_declared_equal(a, b):
    assert key_digest(a) == key_digest(b)


@pytest.mark.parametrize(
    ("a", "b"), [(1, True), ("1", 1), ("a", b"a"), (None, ""), (None, 0), ([None], []), (["ab"], ["a", "b"])]
)
def test_keys_that_are_declared_different(a, b):
    assert key_digest(a) != key_digest(b)


def test_the_partition_function_never_changes():
    # Stage fingerprints carry its version; if this fails, raise PARTITION_FUNCTION.
    frame = pl.DataFrame({"k": ["", "a", "marin"], "n": [0, 1, -1]})
    assert partitions(key_digests(frame, ["k"]), 97).tolist() == [67, 95, 70]
    assert partitions(key_digests(frame, ["n"]), 97).tolist() == [81, 11, 76]


def test_an_unknown_kind_of_key_is_refused():
    with pytest.raises(SchemaError, match="type set"):
        key_digest({1})


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
