"""Previews: the right one by name and bytes, bounded, and never more than a remark for what is damaged."""

import gzip
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marin_core.web.files import PrefixFiles
from marin_core.web.previews import MAX_BYTES, render_preview


def preview(tmp_path: Path, name: str, content: bytes | str) -> str:
    data = content if isinstance(content, bytes) else content.encode()
    (tmp_path / name).write_bytes(data)
    return str(render_preview(PrefixFiles(str(tmp_path)), name, size=len(data), image=f"/images/{name}"))


@pytest.mark.parametrize(
    ("name", "content", "shown"),
    [
        (
            "a.jsonl",
            '{"id": 1, "text": "<b>"}\n{"id": 2, "more": {"n": 1}}\n',
            ">id</th>|>more</th>|<td>&lt;b&gt;</td>|",
        ),
        ("a.ndjson", "[1, 2]\n3\n", "1, 2|>3<"),
        ("a.jsonl", '{"id": 1}\n{"id"\n{"id": 3}', "The first 2 rows of 3.| Not JSON: line 2."),
        ("a.json", '{"b":[1,{"c":null}]}', '"b": [\n'.replace('"', "&quot;")),
        ("a.csv", 'x,y\n1,"two, 2"\n3\n4,5,6\n', ">x</th>|<td>two, 2</td>|>column 3</th>|The first 3 rows."),
        ("a.tsv", "x\ty\n1\t2\n", ">y</th>|<td>2</td>"),
        ("a.txt", "\x1b[31mred\x1b[0m\r\n 1%\r100%\n", "red\n100%"),
        ("README", "plain words é", "plain words é"),
        ("a.bin", bytes(range(40)), "00000010  10 11 12|&#x27;|Not text; its first 40 of 40 bytes."),
        ("a.txt", b"\x00\x01", "Not text"),
        ("a.png", b"x", '<img src="/images/a.png" alt="a.png">'),
        ("a.svg", "<svg><script>1</script></svg>", '<img src="/images/a.svg"'),
        ("a.jsonl.gz", gzip.compress(b'{"id": 7}\n'), "<td>7</td>|The first 1 row of 1."),
        ("a.txt", "", "The file is empty."),
    ],
)
def test_a_file_is_shown_by_what_it_is(tmp_path: Path, name: str, content: bytes | str, shown: str) -> None:
    html = preview(tmp_path, name, content)
    for each in shown.split("|"):
        assert each in html
    assert "<script" not in html


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", "{", "Not readable as JSON"),
        ("a.json", "[" * 100_000, "Not readable as JSON"),
        ("a.jsonl", "no\nno\n", "Not readable as JSONL"),
        ("a.csv", "\n\n", "Not readable as CSV"),
        ("a.csv", 'a,"b\n', "Not readable as CSV"),
        ("a.csv", b"a,b\xff\n1,2\n", "The first 1 row"),
        ("a.txt.gz", b"\x1f\x8bnot really", "Nothing of it could be decompressed."),
        ("a.jsonl.gz", gzip.compress(b'{"id": 7}\n{"id": 8}\n' * 999)[:60], ""),
        ("a.json.gz", b"plain", "Nothing of it could be decompressed."),
    ],
)
def test_what_is_damaged_is_said(tmp_path: Path, name: str, content: bytes | str, said: str) -> None:
    assert said in preview(tmp_path, name, content)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["json", "jsonl", "csv", "tsv", "txt", "md", "bin", "parquet", "png", "jsonl.gz", "csv.gz", "gz"]),
    st.binary(max_size=200) | st.text(max_size=80).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.booleans(),
)
def test_no_content_costs_the_page(tmp_path: Path, suffix: str, content: bytes, packed: bool) -> None:
    html = preview(tmp_path, f"a.{suffix}", gzip.compress(content) if packed else content)
    assert html.startswith("<")
    assert "<script" not in html


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.json", "a.txt", "a.bin", "a.jsonl.gz"])
def test_of_a_large_file_the_beginning_is_read_and_no_more(tmp_path: Path, name: str) -> None:
    row = json.dumps({"id": 1, "text": "x" * 90}).encode() + b"\n"
    data = row * (3 * MAX_BYTES // len(row))
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    asked: list[int] = []

    class Counted(PrefixFiles):
        def range(self, path: str, *, start: int, stop: int) -> bytes:
            found = super().range(path, start=start, stop=stop)
            asked.append(len(found))
            return found

    html = str(render_preview(Counted(str(tmp_path)), name, size=(tmp_path / name).stat().st_size, image=None))
    assert 0 < sum(asked) <= MAX_BYTES
    assert len(html) < 2 * MAX_BYTES


def test_a_bomb_is_unpacked_to_a_bound(tmp_path: Path) -> None:
    bomb = gzip.compress(b"0" * 50_000_000)
    tracemalloc.start()
    try:
        html = preview(tmp_path, "a.txt.gz", bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(html) < MAX_BYTES
    assert peak < 12 * MAX_BYTES


def test_parquet_is_shown_where_pyarrow_is_installed(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    buffer = io.BytesIO()
    rows = pyarrow.table({"id": list(range(200)), "text": ["<b>"] * 200})
    parquet.write_table(rows, buffer, row_group_size=100)
    html = preview(tmp_path, "a.parquet", buffer.getvalue())
    for each in ("200 rows in 2 row groups.", "id: int64", "<td>49</td>", "&lt;b&gt;"):
        assert each in html
    assert "<td>50</td>" not in html
    assert "Not readable as parquet" in preview(tmp_path, "b.parquet", buffer.getvalue()[:-20])
