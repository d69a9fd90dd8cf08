"""Reading documents: a fixed order, rows that can be skipped, and errors that name file and row."""

import errno
import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr.errors import BadRecordError, InputError, SchemaError
from marin_zephyr.tokens.documents import Document, count_rows, input_files, read_documents

_TEXTS = [None if number % 9 == 0 else f"dökument {number}" for number in range(50)]


def read(path, **options) -> list[Document]:
    return list(read_documents(input_files(path), **options))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory, write_parquet, write_jsonl) -> Path:
    directory = tmp_path_factory.mktemp("mixed")
    write_jsonl(directory / "b.jsonl", _TEXTS[20:31])
    write_parquet(directory / "a.parquet", _TEXTS[:20])
    write_parquet(directory / "c.parquet", _TEXTS[31:])
    return directory


def test_files_come_in_the_order_of_their_names_and_null_is_empty(mixed: Path):
    rows = read(mixed)
    assert [text for _, text, *_ in rows] == [text or "" for text in _TEXTS]
    assert [file for file, *_ in rows] == [0] * 20 + [1] * 11 + [2] * 19
    assert [size for _, _, size, _ in rows] == [len((text or "").encode()) for text in _TEXTS]


@settings(max_examples=30)
@given(skip=st.integers(0, 60))
def test_skipping_rows_leaves_the_rest(mixed: Path, skip: int):
    assert read(mixed, skip=skip) == read(mixed)[skip:]


def test_a_document_comes_from_where_its_row_says_or_else_from_its_file(tmp_path: Path):
    pq.write_table(pa.table({"text": ["a", "b"], "source": ["raw/1.txt", None]}), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text('{"text": "c", "source": "raw/3.txt"}\n{"text": "d", "source": 4}\n')
    pq.write_table(pa.table({"text": ["e"], "source": [5]}), tmp_path / "c.parquet")
    assert [document.source for document in read(tmp_path)] == [
        "raw/1.txt",
        "a.parquet",
        "raw/3.txt",
        "b.jsonl",
        "c.parquet",
    ]


def test_rows_are_counted_where_the_files_tell(mixed: Path):
    assert count_rows(input_files([mixed / "a.parquet", mixed / "c.parquet"])) == 39
    assert count_rows(input_files(mixed)) is None


def test_a_glob_a_list_and_a_directory_agree(mixed: Path):
    names = sorted(mixed.iterdir())
    assert read(str(mixed / "*.*")) == read(names) == read(mixed)


def test_a_directory_gives_its_own_visible_files_only(tmp_path: Path, write_jsonl):
    for name in ("a.jsonl", ".hidden.jsonl", "_manifest.jsonl", "rejects/r.jsonl"):
        write_jsonl(tmp_path / name, [name])
    (tmp_path / "README.md").write_text("no input")
    assert [file.name for file in input_files(tmp_path)] == ["a.jsonl"]


def test_blank_lines_are_no_rows(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\r\n\n  \n{"text": "b"}')
    assert [text for _, text, *_ in read(path)] == ["a", "b"]


@pytest.mark.parametrize("given", ["absent", "absent/*.parquet", "empty"])
def test_an_input_without_files_is_named(tmp_path: Path, given: str):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=given.replace("*", r"\*")) as caught:
        input_files(tmp_path / given)
    assert caught.value.exit_code == 2


def test_no_input_at_all_is_refused():
    with pytest.raises(InputError, match="no inputs"):
        input_files([])


def test_another_format_is_refused_with_the_fix(tmp_path: Path):
    (tmp_path / "a.csv").write_text("text\na\n")
    with pytest.raises(InputError, match=r"a\.csv.*normalise"):
        input_files(tmp_path / "a.csv")


def test_a_column_that_is_absent_is_told_with_those_there_are(tmp_path: Path):
    pq.write_table(pa.table({"body": ["a"], "id": ["b"]}), tmp_path / "a.parquet")
    with pytest.raises(SchemaError, match=r"'text'.*body, id"):
        read(tmp_path)
    assert [text for _, text, *_ in read(tmp_path, text_field="body")] == ["a"]


def test_a_column_of_numbers_is_refused(tmp_path: Path):
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(SchemaError, match="int64"):
        read(tmp_path)


def test_a_damaged_parquet_file_is_named(tmp_path: Path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(InputError, match=r"a\.parquet"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "cut', "line 3"),
        (b'{"body": "a"}', "no field 'text': it has body"),
        (b'{"text": 0}', "string 'text'"),
        (b'["text"]', "string 'text'"),
        (b"3", "string 'text'"),
        (b'{"text": "\\ud800"}', "lone surrogate"),
        (b'{"text": "\xff"}', "utf-8"),
    ],
)
def test_a_bad_line_is_named_with_its_reason(tmp_path: Path, line: bytes, reason: str):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "fine"}\n\n' + line + b"\n")
    with pytest.raises(BadRecordError, match=reason) as caught:
        read(tmp_path)
    assert "a.jsonl, line 3" in str(caught.value)


def test_a_line_nested_too_deep_is_refused_by_place(tmp_path: Path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text":"x"}\n' + b"[" * 20_000 + b"\n")
    with pytest.raises(BadRecordError, match=r"a\.jsonl, line 2: nested too deep"):
        read(tmp_path / "a.jsonl")


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are any bytes on Linux alone")
def test_a_name_that_is_not_utf8_is_escaped(tmp_path: Path):
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jsonl")).write_bytes(b'{"text":"x"}\n')
    assert read(tmp_path) == [Document(0, "x", 1, "\\xff.jsonl")]


def test_a_directory_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch):
    (tmp_path / "a.jsonl").write_bytes(b'{"text":"x"}\n')

    def refuse(path="."):
        raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))

    monkeypatch.setattr(os, "scandir", refuse)
    monkeypatch.setattr(os, "listdir", refuse)
    for inputs in (tmp_path, tmp_path / "*.jsonl"):
        with pytest.raises(InputError, match=rf"{tmp_path}/?: cannot be listed or read \(Permission denied\)"):
            input_files(inputs)
