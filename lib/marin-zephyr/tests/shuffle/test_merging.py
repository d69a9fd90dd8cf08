"""Runs and merges: against Python's sorted(), with so little memory that everything is spilled."""

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr.batching import num_bytes
from marin_zephyr.shuffle import merging, runs
from marin_zephyr.shuffle.blocks import read_blocks
from marin_zephyr.shuffle.keys import KEY, encode
from marin_zephyr.shuffle.merging import merged
from marin_zephyr.shuffle.runs import read_runs, write_run, write_runs

KEYS = st.lists(st.integers(0, 6) | st.just(3), max_size=30)
CUTS = st.integers(1, 5)


def keyed(keys: list[int], *, start: int = 0) -> pl.DataFrame:
    """A frame of keys and of positions, which tell rows apart."""
    rows = pl.DataFrame({"k": keys, "at": range(start, start + len(keys))}, schema={"k": pl.Int64, "at": pl.Int64})
    return rows.with_columns(encode(rows, ["k"]))


def in_pieces(rows: pl.DataFrame, size: int) -> list[pl.DataFrame]:
    return [rows[i : i + size] for i in range(0, rows.height, size)]


def pairs(frames) -> list[tuple[int, int]]:
    return [row for frame in frames for row in frame.select("k", "at").rows()]


@pytest.fixture(autouse=True, scope="module")
def little_blocks():
    """Blocks of two or three rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "BLOCK_BYTES", 80)
        patch.setattr(merging, "BLOCK_BYTES", 80)
        yield


@settings(max_examples=50)
@given(st.lists(st.tuples(KEYS, CUTS), max_size=7), st.sampled_from([1, 2000, 4000, 1 << 20]))
def test_a_merge_is_sorted_and_keeps_equal_keys_in_order(tmp_path_factory, drawn, memory):
    scratch = tmp_path_factory.mktemp("scratch") / "merge"
    given_runs, expected, start = [], [], 0
    for keys, size in drawn:
        rows = keyed(sorted(keys), start=start)
        start += len(keys)
        given_runs.append(in_pieces(rows, size))
        expected += rows.select("k", "at").rows()
    got = list(merged(given_runs, memory=memory, scratch=scratch))
    assert pairs(got) == sorted(expected, key=lambda row: row[0])
    assert all(frame.height for frame in got)
    assert not list(scratch.parent.iterdir())


@settings(max_examples=50)
@given(st.lists(st.tuples(KEYS, CUTS), max_size=5), st.sampled_from([1, 1000, 2000, 4000]))
def test_a_key_is_in_one_frame_unless_it_alone_fills_a_quarter_of_the_memory(tmp_path_factory, drawn, memory):
    scratch = tmp_path_factory.mktemp("scratch") / "merge"
    given_runs = [in_pieces(keyed(sorted(keys)), size) for keys, size in drawn]
    got = list(merged(given_runs, memory=memory, scratch=scratch))
    for key in range(7):
        holding = [frame.filter(pl.col("k") == key) for frame in got if key in frame["k"]]
        if len(holding) > 1:
            assert sum(map(num_bytes, holding)) > memory // 4


def test_a_merge_that_is_left_early_leaves_no_files(tmp_path):
    stream = merged([in_pieces(keyed([0, 1, 2]), 1) for _ in range(9)], memory=1, scratch=tmp_path / "merge")
    next(stream)
    assert list(tmp_path.iterdir())
    stream.close()
    assert not list(tmp_path.iterdir())


def test_a_merge_reads_no_more_than_its_memory_ahead(tmp_path):
    loaded = 0

    def blocks(first):
        nonlocal loaded
        for i in range(100):
            loaded += 1
            yield keyed(list(range(first + 200 * i, first + 200 * i + 100)))

    block_bytes = num_bytes(keyed(list(range(100))))
    stream = merged([blocks(0), blocks(50)], memory=40 * block_bytes, scratch=tmp_path / "merge")
    next(stream)
    assert 10 <= loaded <= 12


@settings(max_examples=50)
@given(KEYS, CUTS, st.sampled_from([1, 500, 1 << 20]), st.integers(-1, 7), st.integers(-1, 7))
def test_runs_hold_every_row_and_are_read_between_keys(tmp_path_factory, keys, size, memory, low, high):
    path = tmp_path_factory.mktemp("runs") / "x.blocks"
    rows = keyed(keys)
    assert write_runs(path, in_pieces(rows, size), memory=memory) == len(keys)
    bounds = [keyed([bound]).get_column(KEY)[0] for bound in (low, high)]
    for low_code, high_code in [(None, None), (bounds[0], None), (None, bounds[1]), (bounds[0], bounds[1])]:
        expected = [
            row
            for row in rows.select("k", "at").rows()
            if (low_code is None or row[0] >= low) and (high_code is None or row[0] < high)
        ]
        found = [pairs(run) for run in read_runs(path, low=low_code, high=high_code)]
        assert all(run == sorted(run, key=lambda row: row[0]) for run in found)
        assert sorted(row for run in found for row in run) == sorted(expected)
        assert [row for run in found for row in sorted(run, key=lambda r: r[1])] == expected


def test_equal_keys_in_great_numbers_keep_their_order(tmp_path, monkeypatch):
    # Few rows are sorted stably by any algorithm.
    monkeypatch.setattr(runs, "BLOCK_BYTES", 1 << 20)
    rows = keyed([i * 7919 % 3 for i in range(20_000)])
    write_runs(tmp_path / "x.blocks", [rows[:12_000], rows[12_000:]], memory=4 * num_bytes(rows[:12_000]))
    expected = sorted(rows.select("k", "at").rows(), key=lambda row: row[0])
    spilled = read_runs(tmp_path / "x.blocks")
    assert len(spilled) == 2
    assert pairs(merged(spilled, memory=1 << 30, scratch=tmp_path / "merge")) == expected


def test_long_keys_that_begin_alike_are_told_apart(tmp_path):
    texts = ["x" * 100 + c for c in "dbca"] * 3
    rows = pl.DataFrame({"k": texts})
    rows = rows.with_columns(encode(rows, ["k"]))
    write_runs(tmp_path / "x.blocks", [rows], memory=1 << 20)
    low, high = (encode(pl.DataFrame({"k": ["x" * 100 + c]}), ["k"])[0] for c in "bd")
    (run,) = read_runs(tmp_path / "x.blocks", low=low, high=high)
    assert [k for frame in run for k in frame["k"]] == sorted(t for t in texts if t[-1] in "bc")


def test_only_blocks_that_may_hold_the_range_are_read(tmp_path, monkeypatch):
    write_runs(tmp_path / "x.blocks", [keyed(list(range(100)))], memory=1 << 20)
    asked = []

    def recording(path, partition=0, *, only=None):
        asked.append(only)
        return read_blocks(path, partition, only=only)

    monkeypatch.setattr(runs, "read_blocks", recording)
    low, high = keyed([50, 53]).get_column(KEY)
    (run,) = read_runs(tmp_path / "x.blocks", low=low, high=high)
    assert [k for k, _ in pairs(run)] == [50, 51, 52]
    assert 1 <= len(asked[-1]) <= 3


def test_a_spilled_run_is_read_back(tmp_path):
    write_run(tmp_path / "x.blocks", in_pieces(keyed(list(range(20))), 7))
    blocks = list(read_blocks(tmp_path / "x.blocks"))
    assert [k for k, _ in pairs(blocks)] == list(range(20))
    assert max(block.height for block in blocks) <= 3
