"""Members of zip archives are files like any other; those that cannot be read go to the desk."""

import gzip
import io
import json
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marin_zephyr import Dataset, Session
from marin_zephyr.errors import InputError


def rows_of(inputs, **options) -> list[dict]:
    with Session(backend="inline") as session:
        return list(session.rows(Dataset.from_files(inputs, **options)))


def parquet(rows: list[dict]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


@pytest.fixture
def archive(tmp_path) -> Path:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("d/c.jsonl", '{"n":3}\nbad\n{"n":4}\n')
        made.writestr("b.jsonl.gz", gzip.compress(b'{"n":1}\n{"n":2}\n'))
        made.writestr("a.parquet", parquet([{"n": 0}]))
        made.writestr("d/read.me", "not data")
        made.writestr("__MACOSX/x.jsonl", "not data")
        made.mkdir("e.jsonl")
    return path


def test_members_are_read_in_the_order_of_their_names(archive, caplog):
    rows = rows_of(archive, on_error="skip", with_source=True)
    assert [(row["n"], row["source"], row["source_row"]) for row in rows] == [
        (0, "a.zip/a.parquet", 1),
        (1, "a.zip/b.jsonl.gz", 1),
        (2, "a.zip/b.jsonl.gz", 2),
        (3, "a.zip/d/c.jsonl", 1),
        (4, "a.zip/d/c.jsonl", 3),
    ]
    assert "1 of 4 members are of no known format" in caplog.text


def test_some_members_are_named_by_a_pattern(archive):
    assert [row["n"] for row in rows_of(f"{archive}::*.jsonl", on_error="skip")] == [3, 4]
    assert rows_of(f"{archive}::d/read.me", format="text") == [{"text": "not data"}]
    with pytest.raises(InputError, match=r"a\.zip: no member that matches '\*\.csv'"):
        rows_of(f"{archive}::*.csv")
    with pytest.raises(InputError, match=r"a\.zip::d/read\.me: no known format"):
        rows_of(f"{archive}::d/*")


def test_archives_are_found_in_a_directory_and_by_a_glob(archive):
    (archive.parent / "z.jsonl").write_text('{"n":9}\n')
    assert [row["n"] for row in rows_of(archive.parent, on_error="skip")] == [0, 1, 2, 3, 4, 9]
    assert [row["n"] for row in rows_of(f"{archive.parent}/*.zip::d/*.jsonl", on_error="skip")] == [3, 4]


def test_a_bad_line_is_told_with_member_line_and_offset(archive, tmp_path):
    dataset = Dataset.from_files(archive, on_error="quarantine")
    with Session(backend="inline") as session:
        report = session.run(dataset.write_jsonl(tmp_path / "out"))
    (entry,) = [json.loads(line) for path in report.rejects for line in path.open()]
    assert (entry["file"], entry["line"], entry["offset"]) == ("a.zip/d/c.jsonl", 2, 8)
    assert (report.counters["rows_in"], report.counters["rejected"]) == (6, 1)
    with pytest.raises(InputError, match=r"a\.zip::d/c\.jsonl, line 2, byte offset 8"):
        rows_of(archive)


def damaged(archive: Path, member: str) -> None:
    """Its bytes, not its entry in the directory."""
    with zipfile.ZipFile(archive) as opened:
        info = opened.getinfo(member)
    data = bytearray(archive.read_bytes())
    start = info.header_offset + 30 + len(member)
    data[start : start + info.compress_size] = b"\xff" * info.compress_size
    archive.write_bytes(data)


@pytest.mark.parametrize("member", ["d/c.jsonl", "b.jsonl.gz", "a.parquet"])
def test_a_damaged_member_goes_to_the_desk_and_the_others_are_read(archive, member):
    damaged(archive, member)
    with pytest.raises(InputError, match=rf"a\.zip::{member}.*damaged"):
        rows_of(f"{archive}::{member}")
    sound = [row["source"] for row in rows_of(archive, on_error="skip", with_source=True)]
    assert set(sound) == {f"a.zip/{m}" for m in ("d/c.jsonl", "b.jsonl.gz", "a.parquet")} - {f"a.zip/{member}"}


def test_an_encrypted_member_goes_to_the_desk_and_the_others_are_read(archive):
    with zipfile.ZipFile(archive) as opened:
        info = opened.getinfo("b.jsonl.gz")
    data = bytearray(archive.read_bytes())
    data[info.header_offset + 6] |= 1
    entry = data.index(b"PK\x01\x02", info.header_offset)
    while data[entry + 46 : entry + 46 + 10] != b"b.jsonl.gz":
        entry = data.index(b"PK\x01\x02", entry + 1)
    data[entry + 8] |= 1
    archive.write_bytes(data)
    with pytest.raises(InputError, match=r"a\.zip::b\.jsonl\.gz: is encrypted; unpack"):
        rows_of(f"{archive}::b*")
    assert [row["n"] for row in rows_of(archive, on_error="skip")] == [0, 3, 4]


@pytest.mark.parametrize("data", [b"no archive", b"PK\x05\x06" + b"\0" * 18])
def test_an_archive_without_a_readable_member_is_an_error_that_names_it(tmp_path, data):
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(InputError, match=r"a\.zip: n"):
        rows_of(tmp_path / "a.zip")


def test_a_large_member_is_read_as_a_whole(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("a.jsonl", b'{"n":1}\n' * 400_000)
    with Session(backend="inline") as session:
        assert session.count(Dataset.from_files(tmp_path / "a.zip", shard_bytes=1)) == 400_000


def test_a_member_behind_a_url_is_read(archive):
    import fsspec

    with fsspec.open("memory://archives/a.zip", "wb") as f:
        f.write(archive.read_bytes())
    rows = rows_of("memory://archives/a.zip::*", format="jsonl", on_error="skip")
    assert [row["n"] for row in rows if row.get("n") is not None] == [1, 2, 3, 4]
