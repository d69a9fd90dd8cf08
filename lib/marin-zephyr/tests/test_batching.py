"""Batches are cut where their rows say, whatever frames the rows come in."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr import batching, frames
from marin_zephyr.batching import batches, row_bytes
from marin_zephyr.frames import batches_of_rows
from marin_zephyr.shuffle.keys import KEY

VALUES = st.fixed_dictionaries(
    {
        "t": st.none() | st.text(max_size=9),
        "l": st.none() | st.lists(st.text(max_size=3), max_size=3),
        "s": st.none() | st.fixed_dictionaries({"a": st.none() | st.binary(max_size=5)}),
    }
)
TEXTS = st.fixed_dictionaries(
    {
        "t": st.none() | st.text(max_size=9),
        "l": st.fixed_dictionaries({"m": st.lists(st.binary(max_size=3), max_size=3)}),
    }
)
SCHEMA = {"t": pl.String, "l": pl.List(pl.String), "s": pl.Struct({"a": pl.Binary})}


def in_pieces(rows: pl.DataFrame, size: int) -> list[pl.DataFrame]:
    return [rows[i : i + size] for i in range(0, rows.height, size)]


@settings(max_examples=50)
@given(st.lists(VALUES, max_size=40), st.integers(1, 5), st.integers(1, 5), st.integers(0, 60), st.integers(1, 8))
def test_batches_are_cut_where_their_rows_say(rows, one, other, most_bytes, most_rows):
    whole = pl.DataFrame(rows, schema=SCHEMA)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "BATCH_BYTES", most_bytes)
        patch.setattr(batching, "BATCH_ROWS", most_rows)
        first, second = (list(batches(in_pieces(whole, size))) for size in (one, other))
    assert [f.to_dicts() for f in first] == [f.to_dicts() for f in second]
    assert [row for f in first for row in f.to_dicts()] == whole.to_dicts()
    sizes = [row_bytes(f) for f in first]
    assert all(
        f.height <= most_rows and (s.sum() <= most_bytes or f.height == 1) for f, s in zip(first, sizes, strict=True)
    )
    full = [
        f.height == most_rows or s.sum() + following[0] > most_bytes
        for f, s, following in zip(first, sizes, sizes[1:], strict=False)
    ]
    assert all(full)


def test_bytes_of_rows_are_those_of_their_values():
    rows = pl.DataFrame(
        [{"t": "äb", "l": ["abc", None], "s": {"a": b"1234"}}, {"t": None, "l": None, "s": None}], schema=SCHEMA
    )
    assert row_bytes(rows).tolist() == [3 + 3 + 4, 0]
    assert row_bytes(pl.DataFrame({"n": [1.0, None], KEY: [b"k", b"key"]})).tolist() == [8, 8]
    assert np.array_equal(row_bytes(pl.DataFrame(height=2)), [0, 0])


@settings(max_examples=50)
@given(st.lists(TEXTS, max_size=40), st.integers(1, 60), st.integers(1, 8))
def test_rows_are_gathered_until_one_fills_the_batch(rows, most_bytes, most_rows):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "BATCH_BYTES", most_bytes)
        patch.setattr(frames, "BATCH_ROWS", most_rows)
        made = list(batches_of_rows(rows))
    assert [row for frame in made for row in frame.to_dicts()] == rows
    ends = np.cumsum([frame.height for frame in made]).tolist()
    for start, end in zip([0, *ends], ends, strict=False):
        sizes = np.cumsum([_characters(row) for row in rows[start:end]])
        assert end - start <= most_rows
        assert all(sizes[:-1] < most_bytes)
        assert end == len(rows) or end - start == most_rows or sizes[-1] >= most_bytes


def _characters(row):
    return len(row["t"] or "") + sum(map(len, row["l"]["m"]))
