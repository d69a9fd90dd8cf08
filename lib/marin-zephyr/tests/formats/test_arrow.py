"""Arrow files and streams: read whole or refused, written as equal bytes for equal rows."""

import hashlib
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr import Dataset, Session
from marin_zephyr.errors import BadRecordError, SchemaError, TruncatedFileError
from marin_zephyr.formats.arrow import ArrowPart

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "n": st.none() | st.integers(-(2**63), 2**63 - 1),
            "f": st.none() | st.floats(allow_nan=False),
            "t": st.none() | st.text(max_size=5),
            "b": st.none() | st.binary(max_size=5),
            "l": st.none() | st.lists(st.integers(0, 3), max_size=3),
            "d": st.fixed_dictionaries({"x": st.none() | st.text(max_size=2)}),
        }
    ),
    max_size=10,
)
SCHEMA = {
    "n": pl.Int64,
    "f": pl.Float64,
    "t": pl.String,
    "b": pl.Binary,
    "l": pl.List(pl.Int64),
    "d": pl.Struct({"x": pl.String}),
}


def rows_of(path: Path, **options) -> list[dict]:
    with Session(backend="inline") as session:
        return list(session.rows(Dataset.from_files(path, **options)))


def write(path: Path, table: pa.Table, kind: str, *, batch_rows: int = 3) -> None:
    make = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    with pa.OSFile(str(path), "wb") as sink, make(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=batch_rows)


@settings(max_examples=40)
@given(rows=ROWS, kind=st.sampled_from(["file", "stream", "sink"]), cut=st.integers(0, 10))
def test_rows_come_back_as_they_were_written(tmp_path_factory, rows, kind, cut):
    path = tmp_path_factory.mktemp("arrow") / "a.arrow"
    frame = pl.DataFrame(rows, schema=SCHEMA)
    if kind == "sink":
        part = ArrowPart(path, "zstd")
        for piece in (frame[:cut], frame[cut:]):
            part.write(piece)
        assert part.close() == frame.to_arrow().schema
    else:
        write(path, frame.to_arrow(), kind)
    assert rows_of(path) == frame.to_dicts()


@pytest.mark.parametrize("name", ["a.feather", "a.ipc", "a.arrow.gz"])
@pytest.mark.parametrize("kind", ["file", "stream"])
def test_a_file_is_known_by_its_name_and_a_stream_by_its_bytes(tmp_path, name, kind):
    import gzip

    write(tmp_path / name, pa.table({"n": range(10), "t": pa.array(["x"] * 10).dictionary_encode()}), kind)
    if name.endswith(".gz"):
        (tmp_path / name).write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    rows = rows_of(tmp_path / name, columns=["t", "gone", "n"], with_source=True, string_columns=["t"])
    assert [list(row.values()) for row in rows] == [["x", None, i, name, i + 1, None] for i in range(10)]


@settings(max_examples=40)
@given(cut=st.integers(1, 1500), kind=st.sampled_from(["file", "stream"]))
def test_a_cut_file_never_passes_for_whole(tmp_path_factory, cut, kind):
    path = tmp_path_factory.mktemp("cut") / "a.arrow"
    write(path, pa.table({"n": range(20), "t": [str(i) for i in range(20)]}), kind)
    data = path.read_bytes()
    path.write_bytes(data[: max(1, len(data) - cut)])
    with pytest.raises(BadRecordError, match=r"a\.arrow: not a readable Arrow file: from row \d+ on"):
        rows_of(path)
    rows = rows_of(path, on_error="skip")
    assert [row["n"] for row in rows] == list(range(len(rows)))


def test_a_cut_compressed_file_is_told_as_one(tmp_path):
    import gzip

    write(tmp_path / "a", pa.table({"n": range(10)}), "file")
    (tmp_path / "a.arrow.gz").write_bytes(gzip.compress((tmp_path / "a").read_bytes())[:-5])
    with pytest.raises(TruncatedFileError):
        rows_of(tmp_path / "a.arrow.gz")
    assert rows_of(tmp_path / "a.arrow.gz", on_error="skip") == []


def test_text_that_is_none_is_found(tmp_path):
    write(tmp_path / "a.arrow", pa.table({"t": ["abcdefgh", "x"]}), "file")
    data = (tmp_path / "a.arrow").read_bytes()
    (tmp_path / "a.arrow").write_bytes(data.replace(b"abcdefgh", b"abcd\xffefg"))
    with pytest.raises(BadRecordError, match="from row 1 on"):
        rows_of(tmp_path / "a.arrow")


def test_a_column_that_should_hold_strings_and_does_not_costs_the_file(tmp_path):
    write(tmp_path / "a.arrow", pa.table({"n": range(10)}), "file")
    with pytest.raises(BadRecordError, match="column 'n' is int64, not a string"):
        rows_of(tmp_path / "a.arrow", string_columns=["n"])
    dataset = Dataset.from_files(tmp_path / "a.arrow", string_columns=["n"], on_error="skip")
    with Session(backend="inline") as session:
        assert session.run(dataset.write_jsonl(tmp_path / "out")).counters["rejected"] == 10


def test_parts_are_equal_bytes_for_equal_rows_however_they_come(tmp_path):
    frame = pl.DataFrame({"n": range(200_000), "t": [str(i % 7) for i in range(200_000)]})
    digests = set()
    for run in range(2):
        part = ArrowPart(tmp_path / f"{run}.arrow", "zstd")
        part.write(frame)
        part.close()
        digests.add(hashlib.sha256((tmp_path / f"{run}.arrow").read_bytes()).hexdigest())
    assert len(digests) == 1
    with pa.OSFile(str(tmp_path / "0.arrow"), "rb") as opened:
        reader = pa.ipc.open_file(opened)
        sizes = [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]
    assert sizes == [65_536, 65_536, 65_536, 3392]


def test_a_schema_widens_without_loss_or_not_at_all(tmp_path):
    part = ArrowPart(tmp_path / "a.arrow", None)
    part.write(pl.DataFrame({"n": range(70_000)}))
    part.write(pl.DataFrame({"n": [0.5], "late": ["x"]}))
    assert part.close() == pa.schema({"n": pa.float64(), "late": pa.large_string()})
    rows = rows_of(tmp_path / "a.arrow")
    assert (rows[69_999], rows[70_000]) == ({"n": 69_999.0, "late": None}, {"n": 0.5, "late": "x"})
    part.rewrite(pa.schema({"n": pa.float64(), "late": pa.large_string(), "m": pa.int64()}))
    assert rows_of(tmp_path / "a.arrow")[70_000] == {"n": 0.5, "late": "x", "m": None}
    assert [p.name for p in tmp_path.iterdir()] == ["a.arrow"]
    part = ArrowPart(tmp_path / "b.arrow", "zstd")
    part.write(pl.DataFrame({"n": [2**53 + 1]}))
    part.write(pl.DataFrame({"n": [0.5]}))
    with pytest.raises(SchemaError, match="column 'n' cannot become double without loss"):
        part.close()


def test_a_part_of_no_rows_is_readable(tmp_path):
    ArrowPart(tmp_path / "a.arrow", "zstd").close()
    assert rows_of(tmp_path / "a.arrow") == []
