"""Plain text and CSV."""

import json
from pathlib import Path

import pytest

from marin_zephyr import Dataset, Session
from marin_zephyr.errors import BadRecordError


def rows_of(dataset: Dataset) -> list[dict]:
    with Session(backend="inline") as session:
        return list(session.rows(dataset))


def rejects_of(dataset: Dataset, out: Path) -> list[dict]:
    with Session(backend="inline") as session:
        report = session.run(dataset.write_jsonl(out))
    return [json.loads(line) for path in report.rejects for line in path.read_text().splitlines()]


def test_one_row_a_line_without_its_end(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\n\ntwo\rthree")
    assert [r["text"] for r in rows_of(Dataset.from_files(tmp_path))] == ["one", "", "two\rthree"]


def test_one_row_a_file_as_it_stands(tmp_path):
    (tmp_path / "b.py").write_bytes(b"\xef\xbb\xbfx = 1\r\n")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "c.py").write_bytes(b"")
    got = rows_of(Dataset.from_files(f"{tmp_path}/**/*.py", format="text", unit="file", with_source=True))
    assert got == [
        {"text": "", "source": "a/c.py", "source_row": 1, "source_offset": 0},
        {"text": "x = 1\r\n", "source": "b.py", "source_row": 1, "source_offset": 3},
    ]


def test_undecodable_bytes_name_file_line_and_offset(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"fine\ncaf\xe9\nfine\n")
    with pytest.raises(BadRecordError, match=r"a\.txt, line 2, byte offset 5: not UTF-8: byte 0xe9 at offset 8"):
        rows_of(Dataset.from_files(tmp_path / "a.txt"))
    with pytest.raises(BadRecordError, match=r"a\.txt, line 2, byte offset 8"):
        rows_of(Dataset.from_files(tmp_path / "a.txt", unit="file"))
    refused = rejects_of(Dataset.from_files(tmp_path / "a.txt", on_error="quarantine"), tmp_path / "out")
    assert [(r["file"], r["line"], r["offset"]) for r in refused] == [("a.txt", 2, 5)]
    assert [r["text"] for r in rows_of(Dataset.from_files(tmp_path / "a.txt", on_error="skip"))] == ["fine", "fine"]


def test_a_truncated_file_keeps_its_whole_lines_and_says_so(tmp_path):
    import gzip

    lines = b"".join(b"line %d\n" % i for i in range(1000))
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(lines)[:-40])
    dataset = Dataset.from_files(tmp_path / "a.txt.gz", on_error="quarantine")
    refused = rejects_of(dataset, tmp_path / "out")
    kept = [json.loads(line)["text"] for line in (tmp_path / "out" / "part-00000.jsonl").read_text().splitlines()]
    assert kept == lines.decode().splitlines()[: len(kept)]
    assert len(kept) < 1000
    assert len(refused) == 1
    assert "truncated" in refused[0]["reason"]
    assert refused[0]["line"] == len(kept) + 1


def test_csv_is_read_as_strings_and_quoted_fields_may_hold_newlines(tmp_path):
    (tmp_path / "a.csv").write_bytes(b'id,text\n1,"a,\nb ""c"""\n2,\n')
    assert rows_of(Dataset.from_files(tmp_path)) == [{"id": "1", "text": 'a,\nb "c"'}, {"id": "2", "text": ""}]


@pytest.mark.parametrize("header", [b"id,\xff\n", b"id,id\n"], ids=["unreadable", "ambiguous"])
def test_no_line_passes_for_a_bad_header(tmp_path, header):
    (tmp_path / "a.csv").write_bytes(header + b"1,a\n2,b\n")
    assert rows_of(Dataset.from_files(tmp_path, on_error="skip")) == []
    with pytest.raises(BadRecordError, match="line 1, byte offset 0"):
        rows_of(Dataset.from_files(tmp_path))


def test_a_csv_record_of_the_wrong_width_is_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"id,text\n1,a\n2,b,c\n")
    with pytest.raises(BadRecordError, match=r"line 3, byte offset 12.*3 fields under a header of 2"):
        rows_of(Dataset.from_files(tmp_path))
