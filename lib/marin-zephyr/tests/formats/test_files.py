"""Which files are read, in which order, in which shards."""

import errno
import json
import os
import sys

import pytest

from marin_zephyr import Dataset
from marin_zephyr.errors import InputError, UsageError
from marin_zephyr.formats import infer
from marin_zephyr.formats.files import list_files, shards
from marin_zephyr.nodes import ReadOptions


def listed(inputs, **options):
    return list_files(Dataset.from_files(inputs, **options).node)


def put(path, data=b"x\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.jsonl", ("jsonl", None)),
        ("s3://b/a.NDJSON.GZ", ("jsonl", "gz")),
        ("a.json.zst", ("json", "zst")),
        ("a.parquet", ("parquet", None)),
        ("a.csv.xz", ("csv", "xz")),
        ("a.b.txt.bz2", ("text", "bz2")),
    ],
)
def test_format_and_compression_come_from_the_name(name, expected):
    assert infer(name) == expected


def test_an_unknown_name_is_an_error_with_the_fix():
    with pytest.raises(InputError, match=r"a\.py.*format=\"text\""):
        infer("a.py")
    assert infer("a.py.gz", format="text") == ("text", "gz")


def test_files_are_sorted_and_named_relative_to_the_fixed_part(tmp_path):
    for name in ("b/2.txt", "a/1.txt", "c.txt"):
        put(tmp_path / name)
    names = ["a/1.txt", "b/2.txt", "c.txt"]
    assert [f.name for f in listed(tmp_path)] == names
    assert [f.name for f in listed(f"{tmp_path}/**/*.txt")] == names
    assert [f.name for f in listed([tmp_path / "c.txt", tmp_path / "a", tmp_path / "b/2.txt"], root=tmp_path)] == names
    assert [f.name for f in listed(tmp_path / "c.txt")] == ["c.txt"]


def test_hidden_files_manifests_and_rejects_are_not_data(tmp_path):
    for name in ("a.txt", ".hidden.txt", "_manifest.json", "rejects/r.jsonl", ".staging-1/b.txt"):
        put(tmp_path / name)
    assert [f.name for f in listed(tmp_path)] == ["a.txt"]


def test_equal_relative_names_are_told_apart_by_the_whole_path(tmp_path):
    put(tmp_path / "x" / "a.txt")
    put(tmp_path / "y" / "a.txt")
    names = [f.name for f in listed([tmp_path / "x", tmp_path / "y"])]
    assert len(set(names)) == 2


@pytest.mark.parametrize("pattern", ["gone/*.jsonl", "gone.jsonl", "gone/"])
def test_missing_inputs_are_named(tmp_path, pattern):
    with pytest.raises(InputError, match="gone"):
        listed(f"{tmp_path}/{pattern}")


def test_empty_inputs_are_named(tmp_path):
    put(tmp_path / "a.jsonl", b"")
    with pytest.raises(InputError, match=r"1 file\(s\), all empty"):
        listed(tmp_path)


def test_a_remote_url_is_listed_and_read():
    import fsspec

    from marin_zephyr import Session

    with fsspec.open("memory://corpus/a.txt", "wb") as f:
        f.write(b"one\ntwo\n")
    dataset = Dataset.from_files("memory://corpus/*.txt", with_source=True)
    with Session(backend="inline") as session:
        assert [(r["text"], r["source"]) for r in session.rows(dataset)] == [("one", "a.txt"), ("two", "a.txt")]


def test_small_files_share_a_shard_and_order_is_kept(tmp_path):
    for i in range(10):
        put(tmp_path / f"{i}.txt", b"x" * 30)
    put(tmp_path / "5big.txt", b"x" * 500)
    files = listed(tmp_path)
    cut = shards(files, ReadOptions(), shard_bytes=100)
    assert [f for shard in cut for f in shard] == list(files)
    assert [len(shard) for shard in cut] == [3, 3, 1, 3, 1]


def test_a_changed_file_has_another_version(tmp_path):
    put(tmp_path / "a.txt", b"one")
    before = listed(tmp_path)
    os.utime(tmp_path / "a.txt", ns=(1, 1))
    assert listed(tmp_path) != before


@pytest.mark.parametrize(
    "options", [{"on_error": "ignore"}, {"unit": "word"}, {"format": "xml"}, {"shard_bytes": 0}, {"columns": []}]
)
def test_a_wrong_option_is_refused_by_name(options):
    with pytest.raises(UsageError, match=next(iter(options))):
        Dataset.from_files("x", **options)


@pytest.fixture
def locked(tmp_path, monkeypatch):
    """A directory among others that cannot be listed, whoever asks."""
    put(tmp_path / "raw" / "open" / "a.txt")
    put(tmp_path / "raw" / "locked" / "b.txt")
    scandir = os.scandir

    def refusing(path="."):
        if os.fspath(path).rstrip("/").endswith("/locked"):
            raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    return tmp_path / "raw"


@pytest.mark.parametrize("pattern", ["", "/**/*.txt", "/*/*.txt", "/**", "/lock*/*"])
def test_a_directory_that_cannot_be_listed_is_named_and_not_passed_over(locked, pattern):
    with pytest.raises(InputError, match=r"/locked/?: cannot be listed or read \(Permission denied\)"):
        listed(f"{locked}{pattern}")


def test_a_directory_that_is_no_input_need_not_be_readable(locked):
    assert [f.name for f in listed(f"{locked}/open/*.txt")] == ["a.txt"]
    (locked / "locked").rename(locked / ".locked")
    assert [f.name for f in listed(locked)] == ["open/a.txt"]


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are any bytes on Linux alone")
@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_a_name_that_is_not_utf8_is_escaped_in_what_is_written(tmp_path, format, capsys):
    from marin_zephyr import Session
    from marin_zephyr.cli import main

    put(tmp_path / "raw" / "a.jsonl", b'{"t":"x"}\n')
    if format == "parquet":
        with Session(backend="inline") as session:
            (made,) = session.run(Dataset.from_files(tmp_path / "raw").write_parquet(tmp_path / "made")).files
        (tmp_path / "raw" / "a.jsonl").write_bytes(made.read_bytes())
    else:
        (tmp_path / "raw" / "a.jsonl").write_bytes(b'{"t":"x"}\nbad\n')
    os.rename(tmp_path / "raw" / "a.jsonl", os.fsencode(tmp_path / "raw") + b"/\xff\xfe." + format.encode())  # noqa: PTH104
    dataset = Dataset.from_files(tmp_path / "raw", with_source=True, on_error="quarantine")
    with Session(workers=1) as session:
        report = session.run(dataset.write_jsonl(tmp_path / "out"))
    rows = [json.loads(line) for path in [*report.files, *report.rejects] for line in path.open(encoding="utf-8")]
    name = f"\\xff\\xfe.{format}"
    assert [row.get("source", row.get("file")) for row in rows] == [name] * (1 if format == "parquet" else 2)
    assert main(["doctor", str(tmp_path / "raw"), "--json"]) == (0 if format == "parquet" else 1)
    assert json.loads(capsys.readouterr().out)[0]["file"] == f"{tmp_path}/raw/{name}"
