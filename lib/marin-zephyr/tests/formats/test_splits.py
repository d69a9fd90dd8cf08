"""A file that is cut into spans is read as if it were not, wherever the cuts fall."""

import gzip
import json
import struct
import zlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr import Dataset, Session
from marin_zephyr.formats import reader
from marin_zephyr.formats.files import InputFile, list_files, shards
from marin_zephyr.formats.rejects import Desk
from marin_zephyr.formats.splits import spans
from marin_zephyr.nodes import ReadOptions


def bgzf(data: bytes, held: int) -> bytes:
    """As bgzip writes it: members of at most 64 KiB that say their length in an extra field, and an empty one last."""
    out = b""
    for i in [*range(0, len(data), held), len(data)]:
        piece = data[i : i + held]
        packed = zlib.compressobj(6, zlib.DEFLATED, -15)
        body = packed.compress(piece) + packed.flush()
        extra = struct.pack("<2sHH", b"BC", 2, 18 + len(body) + 8 - 1)
        out += b"\x1f\x8b\x08\x04" + b"\0" * 4 + b"\0\xff" + struct.pack("<H", 6) + extra + body
        out += struct.pack("<II", zlib.crc32(piece), len(piece))
    return out


def zst(data: bytes, held: int, *, sizes: bool = True) -> list[bytes]:
    compressor = zstandard.ZstdCompressor(write_content_size=sizes, write_checksum=True)
    pieces = [data[i : i + held] for i in range(0, max(1, len(data)), held)]
    if sizes:
        return [compressor.compress(piece) for piece in pieces]
    objects = [compressor.compressobj() for _ in pieces]
    return [o.compress(piece) + o.flush() for o, piece in zip(objects, pieces, strict=True)]


def seekable(data: bytes, held: int) -> bytes:
    frames = zst(data, held, sizes=False)
    lengths = [struct.pack("<II", len(f), min(held, len(data) - i * held)) for i, f in enumerate(frames)]
    table = b"".join(lengths) + struct.pack("<IBI", len(frames), 0, 0x8F92EAB1)
    return b"".join(frames) + struct.pack("<II", 0x184D2A5E, len(table)) + table


def with_skippable(data: bytes, held: int) -> bytes:
    return b"".join(struct.pack("<II", 0x184D2A53, 2) + b"no" + frame for frame in zst(data, held))


PACK = {
    "plain": lambda data, held: data,
    "bgzf": bgzf,
    "zst": lambda data, held: b"".join(zst(data, held)),
    "zst seekable": seekable,
    "zst skippable": with_skippable,
}
COMPRESSION = {"plain": None, "bgzf": "gz"}


def put(path: Path, data: bytes, *, kind: str = "plain", held: int = 100, format: str = "jsonl") -> InputFile:
    path.write_bytes(PACK[kind](data, held))
    compression = COMPRESSION.get(kind, "zst")
    return InputFile(
        url=str(path), name="a", format=format, compression=compression, size=path.stat().st_size, version=""
    )


def cut(file: InputFile, span_bytes: int) -> list[InputFile]:
    found = spans(file.url, file.format, file.compression, size=file.size, span_bytes=span_bytes)
    return [replace(file, span=span) for span in found] or [file]


def read(files: list[InputFile], directory: Path, **options) -> tuple[list[dict], list[dict]]:
    """The rows, without nulls (a span need not know all columns), and the rejects."""
    rows, rejects = [], []
    for file in files:
        desk = Desk("quarantine", directory / "rejects.jsonl")
        for frame in reader(file.format)(file, ReadOptions(**options), desk):
            rows += [{k: v for k, v in row.items() if v is not None} for row in frame.to_dicts()]
        desk.close()
        rejects += [json.loads(line) for line in desk.path.open()] if desk.path.exists() else []
    return rows, rejects


LINES = st.one_of(
    st.builds(lambda n, t: json.dumps({"n": n, "t": t}).encode(), st.integers(0, 9), st.text(max_size=5)),
    st.integers(1, 120).map(lambda n: json.dumps({"t": "x" * n}).encode()),
    st.sampled_from(
        [b"", b"  ", b"bad", b'{"t":"caf\xe9"}', b'{"n":1}{"n":2}', b"\xef\xbb\xbf{}", b'{"t":"a\\ud800"}']
    ),
)
CONTENT = st.builds(
    lambda lines, end, last, bom: (b"\xef\xbb\xbf" if bom else b"") + end.join(lines) + (end if last else b""),
    st.lists(LINES, min_size=1, max_size=25),
    st.sampled_from([b"\n", b"\r\n"]),
    st.booleans(),
    st.booleans(),
)


@settings(max_examples=50)
@given(
    data=CONTENT,
    span_bytes=st.integers(1, 80),
    held=st.integers(1, 60),
    kind=st.sampled_from(sorted(PACK)),
    format=st.sampled_from(["jsonl", "text"]),
    with_source=st.booleans(),
)
def test_spans_give_the_rows_and_rejects_of_the_file(
    tmp_path_factory, data, span_bytes, held, kind, format, with_source
):
    directory = tmp_path_factory.mktemp("split")
    file = put(directory / "a", data, kind=kind, held=held, format=format)
    pieces = cut(file, span_bytes)
    if len(data) > span_bytes + held:
        assert len(pieces) > 1
    assert read(pieces, directory, with_source=with_source) == read([file], directory, with_source=with_source)


@given(data=st.binary(min_size=1, max_size=300), span_bytes=st.integers(1, 99), held=st.integers(1, 60))
@settings(max_examples=30)
def test_the_cut_follows_from_the_file_and_covers_it(tmp_path_factory, data, span_bytes, held):
    for kind in PACK:
        file = put(tmp_path_factory.mktemp("cut") / "a", data, kind=kind, held=held)
        found = [piece.span for piece in cut(file, span_bytes)]
        if found == [None]:
            continue
        assert (found[0].begin, found[-1].end) == (0, len(data))
        assert all(before.end == after.begin for before, after in pairwise(found))
        assert sum(span.num_bytes for span in found) == len(data)


WHOLE = {
    "plain gzip": (gzip.compress(b'{"n":1}\n' * 50) * 3, "gz"),
    "cut bgzf": (bgzf(b'{"n":1}\n' * 50, 40)[:-40], "gz"),
    "bgzf and then gzip": (bgzf(b'{"n":1}\n' * 50, 40) + gzip.compress(b'{"n":1}\n'), "gz"),
    "one zst frame": (b"".join(zst(b'{"n":1}\n' * 50, 4000)), "zst"),
    "cut zst": (b"".join(zst(b'{"n":1}\n' * 50, 40))[:-3], "zst"),
    "zst of unknown sizes": (b"".join(zst(b'{"n":1}\n' * 50, 40, sizes=False)), "zst"),
    "a seek table that does not fit": (b"".join(zst(b"{}\n" * 9, 40)) + seekable(b'{"n":1}\n' * 50, 40), "zst"),
    "empty": (b"", "zst"),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_what_cannot_be_cut_is_left_whole(tmp_path, kind):
    data, compression = WHOLE[kind]
    (tmp_path / "a").write_bytes(data)
    assert spans(str(tmp_path / "a"), "jsonl", compression, size=len(data), span_bytes=1) == ()


@pytest.mark.parametrize("format", ["json", "csv", "warc", "arrow"])
def test_what_has_no_lines_of_its_own_is_left_whole(tmp_path, format):
    (tmp_path / "a").write_bytes(b"x\n" * 100)
    assert spans(str(tmp_path / "a"), format, None, size=200, span_bytes=10) == ()


def test_damage_costs_its_span_and_tells_the_place_in_the_file(tmp_path):
    """The line that begins with a frame belongs to the span before, and so do the bytes that tell it begins there."""
    data = b"".join(b'{"n":%d}\n' % i for i in range(1000, 1300))
    file = put(tmp_path / "a", data, kind="zst", held=1100)
    frames = zst(data, 1100)
    stored = bytearray(b"".join(frames))
    stored[len(frames[0]) + 14 : len(frames[0]) + 20] = b"\xff" * 6
    Path(file.url).write_bytes(stored)
    rows, refused = read(cut(file, 1100), tmp_path, with_source=True)
    assert [row["n"] for row in rows] == [*range(1000, 1100), *range(1201, 1300)]
    assert [row.get("source_row") for row in rows] == [*range(1, 101), *[None] * 99]
    assert all(data[row["source_offset"] :].startswith(b'{"n":%d}' % row["n"]) for row in rows)
    assert [(entry["line"], entry["offset"]) for entry in refused] == [(101, 1100), (101, 1100)]
    assert all("damaged: it shows after 1,100 uncompressed bytes" in entry["reason"] for entry in refused)


def test_a_line_of_many_spans_is_looked_at_once(tmp_path, monkeypatch):
    """Every span but its first gives it up at its own end, however long it is."""
    from marin_zephyr.formats import lines

    data = b'{"t":"' + b"x" * 3_000_000 + b'"}\n{"t":"y"}\n'
    file = put(tmp_path / "a", data)
    taken = []
    blocks = lines.blocks

    def counting(*args, **kwargs):
        for piece in blocks(*args, **kwargs):
            taken.append(len(piece))
            yield piece

    monkeypatch.setattr(lines, "blocks", counting)
    rows, _ = read(cut(file, 100_000), tmp_path)
    assert [len(row["t"]) for row in rows] == [3_000_000, 1]
    assert sum(taken) < 2 * len(data) + 31 * (1 << 18)


def test_lines_are_counted_only_where_a_number_is_asked_for(tmp_path, monkeypatch):
    from marin_zephyr.formats import lines

    counted = []
    monkeypatch.setattr(lines, "_count_lines", lambda file, offset: counted.append(offset) or 0)
    data = b'{"n":1}\n' * 100
    pieces = cut(put(tmp_path / "a", data), 100)
    read(pieces, tmp_path)
    assert counted == []
    read(pieces, tmp_path, with_source=True)
    assert len(counted) == len(pieces)


@pytest.fixture
def table(tmp_path):
    columns = {"n": list(range(1000)), "t": [f"text {i}" * 20 for i in range(1000)]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=90)
    return tmp_path / "a.parquet"


@settings(max_examples=15)
@given(span_bytes=st.integers(1, 60_000), with_source=st.booleans())
def test_parquet_is_cut_by_row_group(tmp_path_factory, span_bytes, with_source):
    directory = tmp_path_factory.mktemp("parquet")
    pq.write_table(pa.table({"n": list(range(1000)), "t": ["x" * 20] * 1000}), directory / "a", row_group_size=90)
    size = (directory / "a").stat().st_size
    file = InputFile(url=str(directory / "a"), name="a", format="parquet", compression=None, size=size, version="")
    pieces = cut(file, span_bytes)
    assert 1 <= len(pieces) <= 12
    assert read(pieces, directory, with_source=with_source) == read([file], directory, with_source=with_source)


def test_a_damaged_row_group_costs_the_rows_of_its_span(table):
    meta = pq.ParquetFile(table).metadata
    data = bytearray(table.read_bytes())
    start = meta.row_group(5).column(0).dictionary_page_offset or meta.row_group(5).column(0).data_page_offset
    data[start : start + 40] = b"\xff" * 40
    table.write_bytes(data)
    file = InputFile(
        url=str(table), name="a", format="parquet", compression=None, size=table.stat().st_size, version=""
    )
    rows, refused = read(cut(file, 1), table.parent)
    assert [row["n"] for row in rows] == [*range(450), *range(540, 1000)]
    assert [entry["rows"] for entry in refused] == [90]


def large(directory: Path) -> Path:
    directory.mkdir()
    lines = [json.dumps({"n": i, "t": "x" * 99}).encode() + (b"\nbad" if i % 9000 == 5 else b"") for i in range(30_000)]
    (directory / "a.jsonl").write_bytes(b"\n".join(lines))
    return directory


def test_a_run_over_spans_gives_the_rows_of_a_run_over_files(tmp_path):
    raw = large(tmp_path / "raw")
    seen = []
    for shard_bytes in (1 << 20, 1 << 40):
        dataset = Dataset.from_files(raw, shard_bytes=shard_bytes, on_error="quarantine", with_source=True)
        with Session(backend="inline") as session:
            report = session.run(dataset.write_jsonl(tmp_path / f"out-{shard_bytes}"))
        texts = [b"".join(path.read_bytes() for path in paths) for paths in (report.files, report.rejects)]
        seen.append((len(report.files), texts, report.counters))
    assert [n for n, _, _ in seen] == [4, 1]
    assert seen[0][1:] == seen[1][1:]


def test_spans_are_of_large_files_only_and_few_where_lines_are_numbered(tmp_path):
    files = list_files(Dataset.from_files(large(tmp_path / "raw")).node)
    assert shards(files, ReadOptions()) == (files,)
    assert len(shards(files, ReadOptions(), shard_bytes=1)) == 4
    assert len(shards(files, ReadOptions(with_source=True), shard_bytes=1)) == 4
    assert shards(files, ReadOptions(unit="file"), shard_bytes=1) == (files,)
    (tmp_path / "raw" / "a.jsonl").write_bytes(b"{}\n" * 4_000_000)
    files = list_files(Dataset.from_files(tmp_path / "raw").node)
    assert len(shards(files, ReadOptions(with_source=True), shard_bytes=1)) == 8
    assert len(shards(files, ReadOptions(), shard_bytes=1)) == 12


def test_a_file_that_is_not_cut_is_known_by_what_it_was(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"{}\n")
    (file,) = list_files(Dataset.from_files(tmp_path / "a.jsonl").node)
    assert file.identity == (file.url, "a.jsonl", "jsonl", None, 3, file.version)
    assert (
        len({replace(file, span=span).identity for span in spans(file.url, "jsonl", None, size=3, span_bytes=1)}) == 3
    )
