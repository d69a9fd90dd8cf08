"""Arrow data as source and sink, and datasets as the hub's loader lays them out."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr import Dataset, Session, col
from marin_zephyr.errors import InputError, MissingExtraError, SchemaError, UsageError
from marin_zephyr.planning import plan

installed = importlib.util.find_spec("datasets") is not None
needs_datasets = pytest.mark.skipif(not installed, reason="the extra `hf` is not installed")

COLUMNS = {
    "n": st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
    "x": st.one_of(st.none(), st.floats(allow_nan=False)),
    "text": st.one_of(st.none(), st.text(max_size=5)),
    "list": st.one_of(st.none(), st.lists(st.binary(max_size=3), max_size=3)),
}
SCHEMA = pa.schema({"n": pa.int64(), "x": pa.float64(), "text": pa.large_string(), "list": pa.list_(pa.binary())})
ROWS = st.lists(st.fixed_dictionaries(COLUMNS), max_size=20)


def rows_of(dataset: Dataset) -> list[dict]:
    with Session(backend="inline") as session:
        return list(session.rows(dataset))


def fingerprint(dataset: Dataset, tmp_path: Path) -> str:
    return plan(dataset.write_parquet(tmp_path / "out"), output=None, work_dir=tmp_path).stages[-1].fingerprint


@settings(max_examples=25)
@given(rows=ROWS, num_shards=st.integers(1, 5), size=st.integers(1, 7))
def test_arrow_rows_come_back_however_they_are_cut(rows: list[dict], num_shards: int, size: int) -> None:
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    assert rows_of(Dataset.from_arrow(table, num_shards=num_shards)) == rows
    batches = table.to_batches(max_chunksize=size)
    if batches:
        assert rows_of(Dataset.from_arrow(batches, num_shards=num_shards)) == rows


def test_whatever_speaks_arrow_is_taken() -> None:
    frame = pl.DataFrame({"n": [1, 2]})
    for data in (frame, frame.to_arrow(), frame.to_arrow().to_batches()[0], frame.to_arrow().to_reader()):
        assert rows_of(Dataset.from_arrow(data)) == [{"n": 1}, {"n": 2}]


def test_how_arrow_data_came_in_pieces_does_not_make_a_stage_run_again(tmp_path: Path) -> None:
    table = pa.table({"n": [*range(10)], "text": [str(i) for i in range(10)]})
    pieces = pa.Table.from_batches(table.to_batches(max_chunksize=3))
    assert fingerprint(Dataset.from_arrow(table), tmp_path) == fingerprint(Dataset.from_arrow(pieces), tmp_path)
    assert fingerprint(Dataset.from_arrow(table), tmp_path) != fingerprint(Dataset.from_arrow(table[1:]), tmp_path)
    with Session(backend="inline") as session:
        runs = [session.run(Dataset.from_arrow(t).write_parquet(tmp_path / "out")) for t in (table, pieces)]
    assert [run.executed for run in runs] == [1, 0]
    assert runs[0].counters["rows_in"] == 10


def test_what_is_no_arrow_data_is_refused_where_it_is_given() -> None:
    for data in ([{"n": 1}], 7, []):
        with pytest.raises(UsageError, match="is neither a table nor record batches of one schema"):
            Dataset.from_arrow(data)
    with pytest.raises(SchemaError, match="from_arrow: a column cannot be used"):
        Dataset.from_arrow(pa.table([pa.array([1]), pa.array([2])], names=["n", "n"]))


@pytest.mark.parametrize("compression", ["zstd", "lz4", "none"])
def test_parts_written_as_arrow_have_one_schema_and_are_read_back(tmp_path: Path, compression: Any) -> None:
    rows = [{"n": 1}, {"n": 2}, {"n": 0.5, "text": "☃"}, {"n": None}]
    dataset = Dataset.from_rows(rows, num_shards=4).write_arrow(tmp_path / "out", compression=compression)
    with Session(backend="inline") as session:
        files = session.run(dataset).files
    schemas = [pa.ipc.open_file(file).schema for file in files]
    assert [file.name for file in files] == [f"part-{i:05d}.arrow" for i in range(4)]
    assert all(schema == schemas[0] for schema in schemas)
    assert schemas[0].field("n").type == pa.float64()
    expected = [{"n": row["n"], "text": row.get("text")} for row in rows]
    assert rows_of(Dataset.from_files(tmp_path / "out")) == expected


@pytest.fixture
def stories(tmp_path: Path) -> Path:
    """A local directory that the loader reads as a dataset of two splits."""
    directory = tmp_path / "stories"
    directory.mkdir()
    for i in range(3):
        rows = [{"text": f"story {i}.{j} ☃", "other": j} for j in range(4)]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (directory / f"train-{i}.jsonl").write_text(lines, encoding="utf-8")
    (directory / "test.jsonl").write_text('{"text": "held out", "other": 0}\n')
    return directory


@needs_datasets
def test_a_split_is_read_from_its_data_files_in_order(stories: Path) -> None:
    dataset = Dataset.from_hf(str(stories), revision=None, columns=["text"], shard_bytes=1)
    texts = [f"story {i}.{j} ☃" for i in range(3) for j in range(4)]
    assert rows_of(dataset) == [{"text": text} for text in texts]
    assert rows_of(Dataset.from_hf(str(stories), revision=None, split="test").select("text")) == [{"text": "held out"}]


@needs_datasets
def test_operations_and_provenance_work_on_a_split_as_on_files(stories: Path) -> None:
    dataset = Dataset.from_hf(str(stories), revision=None, with_source=True).filter(col("other") == 3)
    assert [(row["source"], row["source_row"]) for row in rows_of(dataset)] == [
        ("train-0.jsonl", 4),
        ("train-1.jsonl", 4),
        ("train-2.jsonl", 4),
    ]


@needs_datasets
@pytest.mark.parametrize("given", [{"split": "valid"}, {"config": "nope"}])
def test_a_split_or_configuration_that_is_not_there_is_named(stories: Path, given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(given.values()))):
        rows_of(Dataset.from_hf(str(stories), revision=None, **given))


def test_a_dataset_of_the_hub_wants_a_revision() -> None:
    with pytest.raises(UsageError, match="no/where is no local directory, so revision must say which commit"):
        Dataset.from_hf("no/where", revision=None)


@pytest.mark.skipif(installed, reason="the extra `hf` is installed")
def test_without_the_extra_the_install_line_is_given(stories: Path) -> None:
    with pytest.raises(MissingExtraError, match=r"pip install 'marin-zephyr\[hf\]'"):
        rows_of(Dataset.from_hf(str(stories), revision=None))
