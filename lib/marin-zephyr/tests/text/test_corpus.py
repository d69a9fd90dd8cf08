"""Corpus directories: what is refused, by which name, and how batches are sliced."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_zephyr.errors import InputError
from marin_zephyr.text import exact_dedup, fuzzy_dedup, normalize, split
from marin_zephyr.text.corpus import Size, open_corpus, slices


def test_a_missing_directory_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere: the directory does not exist") as raised:
        open_corpus(tmp_path / "nowhere")
    assert raised.value.exit_code == 2


def test_a_directory_without_shards_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the directory has no \*\.parquet"):
        open_corpus(tmp_path)


def test_a_corpus_without_documents_is_refused(write_corpus) -> None:
    with pytest.raises(InputError, match=r"no document in its 1 shard"):
        open_corpus(write_corpus("empty", []))


def test_a_damaged_shard_is_refused_by_name(write_corpus) -> None:
    corpus = write_corpus("in", [("a", "text"), ("b", "more")], per_shard=1)
    shard = corpus / "part-00001.parquet"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"part-00001\.parquet is no readable parquet"):
        open_corpus(corpus)


def test_a_shard_that_lacks_a_column_is_refused_by_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "part-00000.parquet")
    with pytest.raises(InputError, match=r"part-00000\.parquet has no column 'id'"):
        open_corpus(tmp_path)


def test_shards_emptied_by_a_step_do_not_stop_the_next(tmp_path: Path, write_corpus, read_rows) -> None:
    corpus = write_corpus("in", [("a", "x"), ("b", "x"), ("c", "y")], per_shard=1)
    exact_dedup(corpus, tmp_path / "once", workers=1)
    exact_dedup(tmp_path / "once", tmp_path / "twice", workers=1)
    assert [row["source"] for row in read_rows(tmp_path / "twice")] == ["a", "c"]
    assert open_corpus(tmp_path / "once").size() == Size(2, 2)


@given(st.lists(st.integers(0, 20)), st.integers(1, 30))
def test_slices_partition_the_rows_within_the_limit(lengths: list[int], limit: int) -> None:
    parts = list(slices(pa.table({"num_bytes": pa.array(lengths, pa.int64())}), max_bytes=limit))
    assert [n for part in parts for n in part["num_bytes"].to_pylist()] == lengths
    assert parts
    for part in parts:
        held = part["num_bytes"].to_pylist()
        assert sum(held) <= limit or sum(n > 0 for n in held) == 1


@pytest.mark.parametrize("step", [exact_dedup, fuzzy_dedup, split])
def test_a_damaged_shard_is_named_and_the_corpus_is_to_be_made_again(tmp_path: Path, step) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"text {i} " * 30}) + "\n" for i in range(100)))
    normalize(tmp_path / "a.jsonl", tmp_path / "corpus", workers=1)
    shard = tmp_path / "corpus" / "part-00000.parquet"
    data = bytearray(shard.read_bytes())
    footer = 8 + int.from_bytes(data[-8:-4], "little")
    data[4:-footer] = b"\xff" * (len(data) - 4 - footer)
    shard.write_bytes(data)
    with pytest.raises(InputError, match=r"corpus/part-00000\.parquet.*delete .*/corpus and make") as raised:
        step(tmp_path / "corpus", tmp_path / "out", workers=1)
    assert "on_error" not in str(raised.value)
