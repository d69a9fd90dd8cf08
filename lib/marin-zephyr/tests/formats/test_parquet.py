"""Parquet: no row is lost to the columns that are asked for, and a file of the wrong type is refused as a whole."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marin_zephyr import Dataset, Session
from marin_zephyr.errors import BadRecordError


def rows_of(dataset: Dataset) -> list[dict]:
    with Session(backend="inline") as session:
        return list(session.rows(dataset))


@pytest.fixture
def file(tmp_path):
    columns = {"n": [1, 2, 3], "t": ["a", None, "a"], "d": pa.array(["x", "y", "x"]).dictionary_encode()}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    return tmp_path / "a.parquet"


@pytest.mark.parametrize("columns", [["t"], ["gone", "t"], ["gone"]])
@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_every_row_comes_with_the_asked_columns_in_order_and_absent_ones_null(file, tmp_path, columns, format):
    if format == "jsonl":
        with Session(backend="inline") as session:
            (file,) = session.run(Dataset.from_files(file).write_jsonl(tmp_path / "jsonl")).files
    rows = rows_of(Dataset.from_files(file, columns=columns, with_source=True))
    texts = ["a", None, "a"] if "t" in columns else [None] * 3
    assert [(row.get("t"), row["source_row"]) for row in rows] == list(zip(texts, [1, 2, 3], strict=True))
    assert all(list(row)[: len(columns)] == columns for row in rows)


def test_a_column_that_should_hold_strings_and_does_not_is_one_bad_record(file):
    with pytest.raises(BadRecordError, match=r"a\.parquet: column 'n' is int64, not a string"):
        rows_of(Dataset.from_files(file, string_columns=["n"]))
    assert rows_of(Dataset.from_files(file, string_columns=["n"], on_error="skip")) == []
    rows = rows_of(Dataset.from_files(file, string_columns=["t", "d"]))
    assert [(row["t"], row["d"]) for row in rows] == [("a", "x"), (None, "y"), ("a", "x")]


def test_rows_that_are_lost_with_a_file_are_counted(file, tmp_path):
    dataset = Dataset.from_files(file, string_columns=["n"], on_error="quarantine")
    with Session(backend="inline") as session:
        report = session.run(dataset.write_jsonl(tmp_path / "out"))
    assert (report.counters["rows_in"], report.counters["rejected"]) == (3, 3)
    (entry,) = [json.loads(line) for line in report.rejects[0].open()]
    assert entry["rows"] == 3


def test_a_damaged_part_of_a_dataset_is_to_be_made_again(tmp_path):
    numbers = Dataset.from_rows([{"n": i, "t": str(i) * 9} for i in range(500)])
    with Session(backend="inline") as session:
        (part,) = session.run(numbers.write_parquet(tmp_path / "out")).files
    data = bytearray(part.read_bytes())
    data[4:1000] = b"\xff" * 996
    part.write_bytes(data)
    with pytest.raises(
        BadRecordError, match=rf"part-00000\.parquet: .*: delete {tmp_path}/out and make it again"
    ) as raised:
        rows_of(Dataset.from_files(tmp_path / "out"))
    assert "on_error" not in str(raised.value)
