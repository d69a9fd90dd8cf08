"""Reading documents: a fixed order, places to go on from, all formats, and refusals that name file and place."""

import bz2
import errno
import gzip
import json
import lzma
import os
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr.errors import BadRecordError, InputError, SchemaError, TooManyBadRecordsError, TruncatedFileError
from marin_zephyr.tokens import documents
from marin_zephyr.tokens.batches import Rows
from marin_zephyr.tokens.documents import BEGINNING, Cursor, Dirt, FileEnd, input_files, read_documents, read_rows

_TEXTS = [None if number % 9 == 0 else f"dökument {number}" for number in range(50)]


class Row(NamedTuple):
    file: int
    row: int
    text: str | None
    source: str


def read(inputs, *, begin=BEGINNING, field="text", dirt=None) -> tuple[list[Row], list[FileEnd]]:
    """All rows one by one, and the ends of files."""
    rows, ends = [], []
    dirt = dirt or Dirt("raise", None, Path("unused"))
    for item in read_rows(input_files(inputs), columns=(field,), text_columns=(field,), dirt=dirt, begin=begin):
        if isinstance(item, FileEnd):
            ends.append(item)
            continue
        assert item.frame.columns == [field]
        pairs = zip(item.frame[field].to_list(), item.sources.to_list(), strict=True)
        rows += [Row(item.file, item.first_row + i, *pair) for i, pair in enumerate(pairs)]
    return rows, ends


def texts(inputs, **options) -> list[str | None]:
    return [row.text for row in read(inputs, **options)[0]]


def rejects(directory: Path) -> dict[str, list[dict]]:
    files = sorted(directory.iterdir()) if directory.is_dir() else []
    return {path.name: [json.loads(line) for line in path.read_text().splitlines()] for path in files}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory, write_parquet, write_jsonl) -> Path:
    directory = tmp_path_factory.mktemp("mixed")
    write_jsonl(directory / "b.jsonl", _TEXTS[20:31])
    write_parquet(directory / "a.parquet", _TEXTS[:20])
    write_parquet(directory / "c.parquet", _TEXTS[31:])
    return directory


# -------------------------------------------------------------------------------------------------------------- order


def test_files_come_in_the_order_of_their_names_and_rows_in_theirs(mixed: Path):
    rows, ends = read(mixed)
    assert [row.text for row in rows] == _TEXTS
    assert [row.file for row in rows] == [0] * 20 + [1] * 11 + [2] * 19
    assert [row.row for row in rows] == [*range(20), *range(11), *range(19)]
    assert [(end.file, end.num_rows) for end in ends] == [(0, 20), (1, 11), (2, 19)]


@settings(max_examples=30)
@given(file=st.integers(0, 3), row=st.integers(0, 21), run_bytes=st.integers(1, 200))
def test_reading_goes_on_from_any_place_with_the_rest(mixed: Path, file: int, row: int, run_bytes: int):
    before, documents.RUN_BYTES = documents.RUN_BYTES, run_bytes
    try:
        rows, ends = read(mixed, begin=Cursor(file, row))
    finally:
        documents.RUN_BYTES = before
    assert rows == [r for r in read(mixed)[0] if (r.file, r.row) >= (file, row)]
    assert ends == [end for end in read(mixed)[1] if end.file >= file]


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(0, 40), max_size=30))
def test_a_run_ends_with_the_row_that_fills_it(tmp_path_factory, sizes: list[int]):
    path = tmp_path_factory.mktemp("runs") / "a.parquet"
    pq.write_table(pa.table({"text": ["é" * size for size in sizes]}, schema=pa.schema({"text": pa.string()})), path)
    before, documents.RUN_BYTES = documents.RUN_BYTES, 50
    try:
        dirt = Dirt("raise", None, Path("unused"))
        items = list(read_rows(input_files(path), columns=("text",), text_columns=("text",), dirt=dirt))
    finally:
        documents.RUN_BYTES = before
    runs = [item.frame["text"].str.len_bytes() for item in items if isinstance(item, Rows)]
    assert pl.concat([pl.Series([], dtype=pl.UInt32), *runs]).to_list() == [2 * size for size in sizes]
    assert all(run.sum() >= 50 for run in runs[:-1])
    assert all(run[:-1].sum() < 50 for run in runs)


def test_a_document_comes_from_where_its_row_says_or_else_from_its_file(tmp_path: Path):
    pq.write_table(pa.table({"text": ["a", "b"], "source": ["raw/1.txt", None]}), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text('{"text": "c", "source": "raw/3.txt"}\n{"text": "d", "source": null}\n')
    pq.write_table(pa.table({"text": ["e"], "source": [5]}), tmp_path / "c.parquet")
    (tmp_path / "d.jsonl").write_text('{"text": "f", "source": 4}\n{"text": "g", "source": "raw/5.txt"}\n')
    (tmp_path / "e.json").write_text('[{"text": "h"}]')
    assert [row.source for row in read(tmp_path)[0]] == [
        *("raw/1.txt", "a.parquet", "raw/3.txt", "b.jsonl", "c.parquet", "d.jsonl", "d.jsonl", "e.json"),
    ]


def test_a_glob_a_list_and_a_directory_agree_and_a_file_is_read_once(mixed: Path):
    names = sorted(mixed.iterdir())
    assert texts(str(mixed / "*.*")) == texts(names) == texts([*names, mixed]) == texts(mixed)


def test_documents_for_training_have_no_nulls(mixed: Path):
    found = list(read_documents(input_files(mixed)))
    assert [text for text, _ in found] == [text or "" for text in _TEXTS]
    assert [size for _, size in found] == [len((text or "").encode()) for text in _TEXTS]


# ------------------------------------------------------------------------------------------------------------ formats


def test_every_format_gives_the_same_texts(tmp_path: Path):
    expected = ["naïve", "two\nlines", "", "東京"]
    lines = "".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(expected)).encode()
    packed = {
        "a.jsonl": lines,
        "a.ndjson": lines,
        "a.jsonl.gz": gzip.compress(lines),
        "a.jsonl.zst": zstandard.compress(lines),
        "a.jsonl.xz": lzma.compress(lines),
        "a.jsonl.bz2": bz2.compress(lines),
        "a.json": json.dumps([{"text": text} for text in expected]).encode(),
        "a.csv": b'id,text\n0,na\xc3\xafve\n1,"two\nlines"\n2,\n3,\xe6\x9d\xb1\xe4\xba\xac\n',
    }
    for name, data in packed.items():
        (tmp_path / name).write_bytes(data)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("inner/a.jsonl", lines)
    feather.write_feather(pa.table({"text": expected}), str(tmp_path / "a.arrow"))
    for path in sorted(tmp_path.iterdir()):
        assert texts(path) == expected, path.name


def test_a_url_is_read_by_its_name(tmp_path: Path, write_jsonl):
    import fsspec

    write_jsonl(tmp_path / "a.jsonl", ["a", "b"])
    with fsspec.open("memory://documents/a.jsonl", "wb") as file:
        file.write((tmp_path / "a.jsonl").read_bytes())
    rows, _ = read("memory://documents/")
    assert [(row.text, row.source) for row in rows] == [("a", "a.jsonl"), ("b", "a.jsonl")]


def test_plain_text_is_read_where_there_is_nothing_else(tmp_path: Path, write_jsonl, caplog):
    (tmp_path / "README.md").write_text("one\ntwo\n")
    assert texts(tmp_path) == ["one", "two"]
    assert "plain text in 1 files: each line is a document" in caplog.text
    caplog.clear()
    for name in ("a.jsonl", ".hidden.jsonl", "_manifest.jsonl", "rejects/r.jsonl"):
        write_jsonl(tmp_path / name, [name])
    (tmp_path / "LICENSE").write_text("mine")
    assert texts(tmp_path) == ["a.jsonl"]
    assert "2 of 3 files hold no records" in caplog.text
    assert "plain text" not in caplog.text


def test_blank_lines_are_no_rows(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\r\n\n  \n{"text": "b"}')
    assert texts(path) == ["a", "b"]


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("given", ["absent", "absent/*.parquet", "empty"])
def test_an_input_without_files_is_named(tmp_path: Path, given: str):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=given.replace("*", r"\*")) as caught:
        input_files(tmp_path / given)
    assert caught.value.exit_code == 2


def test_no_input_at_all_is_refused():
    with pytest.raises(InputError, match="no inputs"):
        input_files([])


@pytest.mark.parametrize("given", ["a.bin", ""])
def test_an_unknown_format_is_refused(tmp_path: Path, given: str):
    (tmp_path / "a.bin").write_text("a")
    (tmp_path / "b.bin").write_text("a")
    with pytest.raises(InputError, match="known format"):
        input_files(tmp_path / given)


def test_a_column_that_is_absent_is_told_with_those_there_are(tmp_path: Path):
    pq.write_table(pa.table({"body": ["a"], "id": ["b"]}), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text('{"body": "a", "id": 1}\n')
    for name in ("a.parquet", "b.jsonl"):
        with pytest.raises(SchemaError, match=r"'text'.*body, id"):
            read(tmp_path / name)
        assert texts(tmp_path / name, field="body") == ["a"]


def test_a_column_of_numbers_is_refused(tmp_path: Path):
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(BadRecordError, match=r"a\.parquet.*int64, not a string"):
        read(tmp_path)


def test_a_damaged_parquet_file_is_named(tmp_path: Path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(InputError, match=r"a\.parquet"):
        read(tmp_path)


def test_a_file_that_is_cut_off_is_named(tmp_path: Path):
    data = gzip.compress(b'{"text": "abc"}\n' * 1000)
    (tmp_path / "a.jsonl.gz").write_bytes(data[: len(data) // 2])
    with pytest.raises(TruncatedFileError, match=r"a\.jsonl\.gz"):
        read(tmp_path)


_BAD_LINES = [
    (b'{"text": "cut', "not JSON"),
    (b'{"text": 0}', "'text' is int, not a string"),
    (b'["text"]', "expected an object, found list"),
    (b'{"text": "\\ud800"}', "surrogate"),
    (b'{"text": "\xff"}', "not UTF-8"),
    (b"[" * 20_000, "nested more than"),
]


@pytest.mark.parametrize(("line", "reason"), _BAD_LINES)
def test_a_bad_line_is_named_with_its_reason(tmp_path: Path, line: bytes, reason: str):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "fine"}\n\n' + line + b"\n")
    with pytest.raises(BadRecordError, match=reason) as caught:
        read(tmp_path)
    assert "a.jsonl, line 3, byte offset 18" in str(caught.value)


@settings(max_examples=30)
@given(
    files=st.lists(
        st.lists(st.sampled_from([b'{"text": "fine"}', *(line for line, _ in _BAD_LINES)]), max_size=6),
        min_size=1,
        max_size=4,
    ),
    begin=st.integers(0, 3),
    row=st.integers(0, 3),
)
def test_rejects_of_a_file_do_not_depend_on_where_reading_begins(tmp_path_factory, files, begin: int, row: int):
    directory = tmp_path_factory.mktemp("rejects")
    for number, lines in enumerate(files):
        path = directory / "in" / f"{number:03d}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"\n".join([b'{"text": "first"}', *lines]))
    _, ends = read(directory / "in", dirt=Dirt("quarantine", None, directory / "all"))
    read(directory / "in", begin=Cursor(begin, row), dirt=Dirt("quarantine", None, directory / "some"))
    found = rejects(directory / "all")
    assert rejects(directory / "some") == {name: of for name, of in found.items() if int(name[6:11]) >= begin}
    for number, lines in enumerate(files):
        bad = [at for at, line in enumerate(lines, 2) if line != b'{"text": "fine"}']
        assert [entry["line"] for entry in found.get(f"input-{number:05d}.jsonl", [])] == bad
        assert sum(entry["count"] for entry in ends[number].refused.values()) == len(bad)
        assert (ends[number].rejects is not None) == bool(bad)


def test_more_refusals_than_are_borne_end_the_reading(tmp_path: Path):
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(b'{"text": "fine"}\n{"text": 0}\n')
    assert len(texts(tmp_path, dirt=Dirt("skip", 2, tmp_path))) == 2
    with pytest.raises(TooManyBadRecordsError, match="2 records were refused, more than max_bad=1"):
        read(tmp_path, dirt=Dirt("skip", 1, tmp_path))


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, write_jsonl):
    path = write_jsonl(tmp_path / "a.jsonl", ["a", "b"])
    rows = read_rows(input_files(path), columns=("text",), text_columns=("text",), dirt=Dirt("raise", None, tmp_path))
    next(rows)
    write_jsonl(path, ["a", "changed"])
    with pytest.raises(InputError, match=r"a\.jsonl: was changed"):
        list(rows)


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are any bytes on Linux alone")
def test_a_name_that_is_not_utf8_is_escaped(tmp_path: Path):
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jsonl")).write_bytes(b'{"text":"x"}\n')
    assert read(tmp_path)[0] == [Row(0, 0, "x", "\\xff.jsonl")]


def test_a_directory_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch):
    (tmp_path / "a.jsonl").write_bytes(b'{"text":"x"}\n')

    def refuse(path="."):
        raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))

    monkeypatch.setattr(os, "scandir", refuse)
    monkeypatch.setattr(os, "listdir", refuse)
    for inputs in (tmp_path, tmp_path / "*.jsonl"):
        with pytest.raises(InputError, match=rf"{tmp_path}/?: cannot be listed or read \(Permission denied\)"):
            input_files(inputs)


_texts = st.lists(st.one_of(st.none(), st.text(max_size=40)), max_size=6)


@given(chunks=st.lists(_texts, min_size=1, max_size=3), data=st.data())
@settings(max_examples=50, deadline=None)
def test_bytes_of_texts_are_those_of_utf8(chunks: list[list[str | None]], data: st.DataObject) -> None:
    texts = pl.concat([pl.Series(chunk, dtype=pl.String) for chunk in chunks], rechunk=False)
    taken = slice(*sorted(data.draw(st.tuples(st.integers(0, len(texts)), st.integers(0, len(texts))))))
    expected = [len((text or "").encode()) for chunk in chunks for text in chunk][taken]
    assert documents._text_bytes(texts[taken]).tolist() == expected
