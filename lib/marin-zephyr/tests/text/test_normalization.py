"""Raw files to a corpus: faithful text, stable ids, and every refused document kept with its reason."""

import gzip
import hashlib
import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
import zstandard

from marin_zephyr.errors import BadRecordError, InputError, UsageError
from marin_zephyr.text import normalize


def rejects_of(directory: Path) -> list[dict]:
    return [json.loads(line) for path in sorted(directory.glob("rejects/*.jsonl")) for line in path.open()]


def write_tree(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def test_files_of_text_become_documents_with_schema_and_source(tmp_path: Path, read_rows) -> None:
    raw = write_tree(tmp_path / "raw", {"b.py": b"b = 1\r\nb\n", "a/z.py": "\ufeffé".encode(), "a/y.py": b" y \n"})
    report = normalize(str(raw / "**/*.py"), tmp_path / "out", documents="file", workers=1)
    rows = read_rows(tmp_path / "out")
    assert [(row["source"], row["text"], row["num_bytes"]) for row in rows] == [
        ("a/y.py", " y \n", 4),
        ("a/z.py", "é", 2),
        ("b.py", "b = 1\nb\n", 8),
    ]
    assert [list(row) for row in rows] == [["id", "text", "source", "num_bytes"]] * 3
    assert [row["id"] for row in rows] == [xxhash.xxh3_128_hexdigest(row["text"].encode()) for row in rows]
    assert (report.kept.documents, report.kept.bytes, report.num_rejected) == (3, 14, 0)


def test_rows_of_json_lines_become_documents(tmp_path: Path, read_rows) -> None:
    lines = [{"content": "one", "n": 1}, {"content": "two\r\nlines", "n": 2}]
    raw = write_tree(tmp_path / "raw", {"a.jsonl": "\n".join(map(json.dumps, lines)).encode()})
    normalize(raw, tmp_path / "out", text_field="content", workers=1)
    assert [row["text"] for row in read_rows(tmp_path / "out")] == ["one", "two\nlines"]


def test_refused_files_are_kept_with_reasons(tmp_path: Path, read_rows) -> None:
    dirt = {"latin.py": "é".encode("latin-1"), "nul.py": b"a\0b", "empty.py": b"", "good.py": b"x = 1"}
    raw = write_tree(tmp_path / "raw", dirt)
    report = normalize(raw, tmp_path / "out", documents="file", workers=1)
    assert [row["source"] for row in read_rows(tmp_path / "out")] == ["good.py"]
    reasons = {entry["file"]: entry["reason"] for entry in rejects_of(tmp_path / "out")}
    assert set(reasons) == {"latin.py", "nul.py", "empty.py"}
    assert "UTF-8" in reasons["latin.py"]
    assert "NUL" in reasons["nul.py"]
    assert "shorter than 1" in reasons["empty.py"]
    assert (report.num_rejected, report.kept.documents) == (3, 1)


def test_refused_rows_are_kept_with_reasons(tmp_path: Path, read_rows) -> None:
    lines = b'{"text": "good"}\n{"text": null}\n{"other": 1}\n{"text": \n\xff\n{"text": ""}\n{"text": "a\\u0000b"}\n'
    raw = write_tree(tmp_path / "raw", {"a.jsonl": lines})
    report = normalize(raw, tmp_path / "out", workers=1)
    assert [row["text"] for row in read_rows(tmp_path / "out")] == ["good"]
    assert sorted(entry["line"] for entry in rejects_of(tmp_path / "out")) == [2, 3, 4, 5, 6, 7]
    assert report.num_rejected == 6


def test_one_value_that_is_no_string_does_not_spoil_the_others(tmp_path: Path, read_rows) -> None:
    lines = b'{"text": "one", "x": 1}\n{"text": 2, "x": "y"}\n{"text": "three", "x": []}\n'
    raw = write_tree(tmp_path / "raw", {"a.jsonl": lines})
    report = normalize(raw, tmp_path / "out", workers=1)
    assert [row["text"] for row in read_rows(tmp_path / "out")] == ["one", "three"]
    (entry,) = rejects_of(tmp_path / "out")
    assert (entry["line"], entry["reason"]) == (2, "'text' is int, not a string")
    assert report.num_rejected == 1


def test_a_column_of_numbers_is_no_text(tmp_path: Path) -> None:
    raw = write_tree(tmp_path / "raw", {"a.jsonl": b'{"text": 1}\n{"text": 2}\n'})
    with pytest.raises(InputError, match="text_field = 'text'"):
        normalize(raw, tmp_path / "out", workers=1)


def test_raise_names_the_document(tmp_path: Path) -> None:
    raw = write_tree(tmp_path / "raw", {"a.py": b"a", "b.py": b"\xff"})
    with pytest.raises(BadRecordError, match=r"b\.py"):
        normalize(raw, tmp_path / "out", documents="file", on_error="raise", workers=1)


def test_inputs_of_nothing_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        normalize(tmp_path / "nowhere" / "*.py", tmp_path / "out", documents="file", workers=1)
    empty = write_tree(tmp_path / "raw", {"a.py": b""})
    with pytest.raises(InputError, match="empty"):
        normalize(empty, tmp_path / "out", documents="file", workers=1)


def test_a_corpus_of_refused_documents_only_is_an_error_that_says_where_the_reasons_are(tmp_path: Path) -> None:
    raw = write_tree(tmp_path / "raw", {"a.py": b"\0", "b.py": b"\xff"})
    with pytest.raises(InputError, match=r"none of the 2 documents .*rejects") as raised:
        normalize(raw, tmp_path / "out", documents="file", workers=1)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("arguments", [{"min_bytes": 0}, {"documents": "file", "format": "jsonl"}])
def test_wrong_arguments_are_refused(tmp_path: Path, arguments: dict) -> None:
    with pytest.raises(UsageError):
        normalize(tmp_path, tmp_path / "out", **arguments)


def test_ids_and_order_do_not_depend_on_workers_shards_or_the_order_of_inputs(
    tmp_path: Path, read_rows, digests
) -> None:
    files = {f"{i:03d}.py": f"value = {i}\n".encode() * (i + 1) for i in range(60)}
    raw = write_tree(tmp_path / "raw", files)
    names = [str(raw / name) for name in files]
    normalize(names, tmp_path / "one", documents="file", root=raw, shard_bytes=20_000, workers=1)
    normalize(names[::-1], tmp_path / "two", documents="file", root=raw, shard_bytes=20_000, workers=2)
    normalize(names, tmp_path / "few", documents="file", root=raw, workers=1)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    assert len(digests(tmp_path / "one")) > 1
    assert len(digests(tmp_path / "few")) == 1
    assert read_rows(tmp_path / "few") == read_rows(tmp_path / "one")


def test_refused_documents_are_told_in_one_warning_with_an_example(tmp_path: Path, caplog) -> None:
    lines = b"".join(b'{"text": "%d"}\n' % i for i in range(300))
    raw = write_tree(tmp_path / "raw", {"a.jsonl": lines + b'{"text": 1}\n\xff\n{"text": 2}\n'})
    report = normalize(raw, tmp_path / "out", workers=1)
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line == (
        "normalize: 3 of 303 documents rejected, for example a.jsonl: 'text' is int, not a string "
        f"(all in {tmp_path}/out/rejects)"
    )
    assert report.reasons == {"'text' is int, not a string": 2, "not UTF-8": 1}


def test_documents_refused_and_not_kept_are_told_too(tmp_path: Path, caplog) -> None:
    raw = write_tree(tmp_path / "raw", {"a.jsonl": b'{"text": "one"}\n\xff\n'})
    assert normalize(raw, tmp_path / "out", on_error="skip", workers=1).reasons == {}
    assert "normalize: 1 of 2 documents rejected" in caplog.text


def test_a_run_that_refuses_nothing_warns_of_nothing(tmp_path: Path, caplog) -> None:
    normalize(write_tree(tmp_path / "raw", {"a.jsonl": b'{"text": "one"}\n'}), tmp_path / "out", workers=1)
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


@pytest.mark.parametrize("kind", ["gz", "zst"])
@pytest.mark.parametrize("documents", ["row", "file"])
def test_a_cut_file_is_one_reject_that_says_what_was_read(tmp_path: Path, caplog, kind: str, documents: str) -> None:
    data = b"".join(b'{"text": "%d %s"}\n' % (i, hashlib.sha256(b"%d" % i).hexdigest().encode()) for i in range(9000))
    packed = gzip.compress(data) if kind == "gz" else zstandard.ZstdCompressor().compress(data)
    files = {f"a.jsonl.{kind}": packed[: len(packed) // 2], "b.jsonl": b'{"text": "whole"}\n'}
    report = normalize(write_tree(tmp_path / "raw", files), tmp_path / "out", documents=documents, workers=1)
    (entry,) = rejects_of(tmp_path / "out")
    assert entry["file"] == f"a.jsonl.{kind}"
    told = re.search(rf"^{kind} file is truncated: it ends after ([\d,]+) uncompressed bytes", entry["reason"])
    assert told is not None
    num_bytes = int(told[1].replace(",", ""))
    assert len(data) // 4 < num_bytes < len(data)
    assert (report.num_rejected, report.reasons) == (1, {f"{kind} file is truncated": 1})
    assert f"a.jsonl.{kind}: {kind} file is truncated" in caplog.text
    if documents == "row":
        assert report.kept.documents == data[:num_bytes].count(b"\n") + 1
        assert entry["offset"] + entry["raw_bytes"] == num_bytes
        assert f"{entry['raw_bytes']:,} bytes of a cut line and all after it are lost" in entry["reason"]


def test_a_corpus_of_refused_rows_gives_the_first_reason_and_counts_rows_of_parquet(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    pq.write_table(pa.table({"text": list(range(300))}), tmp_path / "raw" / "a.parquet")
    with pytest.raises(
        InputError, match=r"none of the 300 documents .*, for example a\.parquet: column 'text' is int64, not a string"
    ):
        normalize(tmp_path / "raw", tmp_path / "out", workers=1)
