"""Every kind of dirt, under every policy: what is kept, what is refused and where, and that both are all there was."""

import gzip
import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import zstandard

from marin_zephyr import Dataset, Session
from marin_zephyr.errors import InputError, SchemaError

GOOD = b'{"t":"x"}\n'
LINES = b"".join(b'{"t":"line %05d"}\n' % i for i in range(3000))


@dataclass(frozen=True)
class Case:
    """Files, the texts that are in them, and what is refused: file, line, byte offset, and the reason's beginning."""

    files: dict[str, bytes]
    texts: list[str | None] | int
    refused: list[tuple[str, int | None, int | None, str]] = field(default_factory=list)


def one(data: bytes, texts: list[str | None], *refused: tuple[int, int, str]) -> Case:
    return Case({"a.jsonl": data}, texts, [("a.jsonl", *place) for place in refused])


CASES = {
    "byte order mark": one(b"\xef\xbb\xbf" + GOOD * 2, ["x", "x"]),
    "a byte order mark further on": one(GOOD + b"\xef\xbb\xbf" + GOOD, ["x"], (2, 10, "not JSON")),
    "a byte order mark alone": Case({"a.jsonl": b"\xef\xbb\xbf", "b.jsonl": GOOD}, ["x"]),
    "NUL escaped": one(b'{"t":"a\\u0000b"}\n', ["a\0b"]),
    "NUL raw": one(GOOD + b'{"t":"a\0b"}\n' + GOOD, ["x", "x"], (2, 10, "not JSON")),
    "NUL where a file was never written": one(GOOD + b"\0" * 5000 + b"\n" + GOOD, ["x", "x"], (2, 10, "not JSON")),
    "NUL to the end": one(GOOD + b"\0" * 5000, ["x"], (2, 10, "not JSON")),
    "CRLF": one(b'{"t":"a"}\r\n{"t":"b"}\r\n', ["a", "b"]),
    "CR alone": one(b'{"t":"a"}\r{"t":"b"}\n' + GOOD, ["x"], (1, 0, "not JSON")),
    "blank lines": one(b"\n\r\n  \n" + GOOD + b"\n\t\n" + GOOD + b"\n\n", ["x", "x"]),
    "no last newline": one(GOOD + GOOD[:-1], ["x", "x"]),
    "latin-1": one(GOOD + b'{"t":"caf\xe9"}\n' + GOOD, ["x", "x"], (2, 10, "not UTF-8: byte 0xe9 at offset 19")),
    "UTF-16": one('{"t":"x"}\n'.encode("utf-16-le"), [], (1, 0, "not JSON"), (2, 19, "not JSON")),
    "a lone surrogate": one(GOOD + b'{"t":"\\ud83d"}\n' + GOOD, ["x", "x"], (2, 10, "lone surrogate")),
    "a surrogate pair": one(b'{"t":"\\ud83d\\ude00"}\n', ["😀"]),
    "surrogates in bytes": one(GOOD + b'{"t":"\xed\xa0\x80"}\n' + GOOD, ["x", "x"], (2, 10, "not UTF-8")),
    "empty objects among others": one(b"{}\n" + GOOD + b"{}\n", [None, "x", None]),
    "gzip members": Case({"a.jsonl.gz": gzip.compress(GOOD) + gzip.compress(b"") + gzip.compress(GOOD)}, ["x", "x"]),
    "zst frames": Case({"a.jsonl.zst": zstandard.compress(GOOD) + zstandard.compress(GOOD)}, ["x", "x"]),
    "gzip cut": Case(
        {"a.jsonl.gz": gzip.compress(LINES)[:-60], "b.jsonl": GOOD},
        -1,
        [("a.jsonl.gz", None, None, "gz file is truncated: it ends after")],
    ),
    "gzip cut in its header": Case(
        {"a.jsonl.gz": gzip.compress(LINES)[:5], "b.jsonl": GOOD}, ["x"], [("a.jsonl.gz", 1, 0, "gz file is truncated")]
    ),
    "gzip cut in its second member": Case(
        {"a.jsonl.gz": gzip.compress(GOOD) + gzip.compress(LINES)[:-60]},
        -1,
        [("a.jsonl.gz", None, None, "gz file is truncated: it ends after")],
    ),
    "no gzip": Case({"a.jsonl.gz": GOOD * 9, "b.jsonl": GOOD}, ["x"], [("a.jsonl.gz", 1, 0, "gz data is damaged")]),
    "zst cut": Case(
        {"a.jsonl.zst": zstandard.compress(LINES * 40)[:-9], "b.jsonl": GOOD},
        -1,
        [("a.jsonl.zst", None, None, "zst file is truncated: it ends after")],
    ),
    "an empty file": Case({"a.jsonl": b"", "b.jsonl": GOOD, "c.jsonl": b"\n\n"}, ["x"]),
    "a file of dirt alone": Case({"a.jsonl": b"bad\n", "b.jsonl": GOOD}, ["x"], [("a.jsonl", 1, 0, "not JSON")]),
    "pretty-printed": Case({"a.json": b'{\n  "t": "a",\n  "u": [\n    1\n  ]\n}\n', "b.json": GOOD}, ["a", "x"]),
    "pretty-printed and cut": Case(
        {"a.json": b'{\n  "t": "a",\n', "b.json": GOOD}, ["x"], [("a.json", 1, 0, "not JSON")]
    ),
    "an array": Case(
        {"a.json": b'[{"t":"a"},\n{"t":"b"}]', "b.json": b"\xef\xbb\xbf[]", "c.json": b"[ ]\n"}, ["a", "b"]
    ),
    "an array with a bad object": Case(
        {"a.json": b'[{"t":"a"}, {"t":123456789012345678901234567890}, {"t":"b"}]'},
        ["a", "b"],
        [("a.json", 1, 12, "object 2: an integer beyond 64 bits")],
    ),
    "an array with bytes that are no text": Case(
        {"a.json": b'\xef\xbb\xbf[{"t":"\xc3\xa9"},\n{"t":"caf\xe9"},\n{"t":"b"}]\n'},
        ["é", "b"],
        [("a.json", 2, 16, "object 2: not UTF-8: byte 0xe9 at offset 25")],
    ),
    "an array of more than objects": Case(
        {"a.json": b'[{"t":"a"},\r\n 3, {"t":"b"}]'}, ["a", "b"], [("a.json", 2, 14, "object 2: expected an object")]
    ),
    "an array cut": Case(
        {"a.json": b'[{"t":"a"},\n{"t":"b'}, ["a"], [("a.json", 2, 12, "not JSON: Unterminated string")]
    ),
    "an array cut after a comma": Case({"a.json": b'[{"t":"a"},\n'}, ["a"], [("a.json", 2, 12, "not JSON: Expecting")]),
    "an array cut after its bracket": Case({"a.json": b"[", "b.json": GOOD}, ["x"], [("a.json", 1, 1, "not JSON")]),
    "an array and more": Case({"a.json": b'[{"t":"a"}]\n[]'}, ["a"], [("a.json", 2, 12, "not JSON: Extra data")]),
    "an array within an array": Case(
        {"a.json": b'[[{"t":"a"}], {"t":"b"}]'}, ["b"], [("a.json", 1, 1, "object 1: expected an object, found list")]
    ),
}


def put(directory: Path, files: dict[str, bytes]) -> Path:
    directory.mkdir()
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return directory


def run(raw: Path, policy: str, out: Path) -> tuple[list[str | None], list[dict], dict[str, int]]:
    """The texts, the rejects, and the counters."""
    with Session(backend="inline") as session:
        report = session.run(Dataset.from_files(raw, on_error=policy, shard_bytes=1).write_parquet(out))
    tables = [pq.read_table(path) for path in report.files]
    assert len({str(table.schema) for table in tables}) == 1
    texts = [row.get("t") for table in tables for row in table.to_pylist()]
    entries = [json.loads(line) for path in report.rejects for line in path.open(encoding="utf-8")]
    return texts, entries, report.counters


@pytest.mark.parametrize("policy", ["raise", "skip", "quarantine"])
@pytest.mark.parametrize("kind", CASES)
def test_dirt(tmp_path, kind, policy):
    case = CASES[kind]
    raw = put(tmp_path / "raw", case.files)
    if policy == "raise" and case.refused:
        name, line, offset, reason = case.refused[0]
        place = f"{name}, line {line}, byte offset {offset}: {reason}" if line is not None else f"{name}: {reason}"
        with pytest.raises(InputError) as raised:
            run(raw, policy, tmp_path / "out")
        # A file that breaks off is told as such, without a line.
        assert place in str(raised.value) or (offset in (0, None) and f"{name}: {reason}" in str(raised.value))
        assert not list((tmp_path / "out").glob("part-*"))
        return
    texts, entries, counters = run(raw, policy, tmp_path / "out")
    assert counters["rows_in"] == counters["rows_out"] + counters["rejected"]
    assert (counters["rows_out"], counters["rejected"]) == (len(texts), len(case.refused))
    if case.texts == -1:  # as many of the lines as lie before the cut
        kept = [text for text in texts if text != "x"]
        whole = [json.loads(line)["t"] for line in LINES.splitlines()] * 40
        assert kept == whole[: len(kept)]
        assert kept
    else:
        assert texts == case.texts
    assert len(entries) == (len(case.refused) if policy == "quarantine" else 0)
    for entry, (name, line, offset, reason) in zip(entries, case.refused, strict=False):
        assert (entry["file"], entry["reason"][: len(reason)]) == (name, reason)
        assert line is None or (entry["line"], entry["offset"]) == (line, offset)


def test_rows_of_no_column_are_kept_or_refused_and_never_forgotten(tmp_path):
    raw = Dataset.from_files(put(tmp_path / "raw", {"a.jsonl": b"{}\n" * 3}))
    with Session(backend="inline") as session:
        assert list(session.rows(raw)) == [{}] * 3
        assert session.run(raw.write_jsonl(tmp_path / "out")).files[0].read_bytes() == b"{}\n" * 3
        with pytest.raises(SchemaError, match=r"part-00000\.parquet: its rows have no column"):
            session.run(raw.write_parquet(tmp_path / "out"))


def test_lists_of_nothing_but_nulls_are_kept(tmp_path):
    raw = put(tmp_path / "raw", {"a.jsonl": b'{"l":[null,null]}\n{"l":[null]}\n{"l":[]}\n', "b.jsonl": b'{"l":[1]}\n'})
    with Session(backend="inline") as session:
        report = session.run(Dataset.from_files(raw, shard_bytes=1).write_parquet(tmp_path / "out"))
    rows = [row["l"] for path in report.files for row in pq.read_table(path).to_pylist()]
    assert rows == [[None, None], [None], [], [1]]


@pytest.mark.parametrize("policy", ["raise", "skip", "quarantine"])
def test_nan_and_infinity_are_numbers(tmp_path, policy):
    raw = put(tmp_path / "raw", {"a.jsonl": b'{"n":NaN}\n{"n":-Infinity}\n{"n":1}\n', "b.jsonl": b'{"n":2}\n'})
    with Session(backend="inline") as session:
        report = session.run(Dataset.from_files(raw, on_error=policy).write_parquet(tmp_path / "out"))
    values = [row["n"] for path in report.files for row in pq.read_table(path).to_pylist()]
    assert math.isnan(values[0])
    assert values[1:] == [-math.inf, 1.0, 2.0]
    assert (report.counters["rows_in"], report.counters["rejected"]) == (4, 0)


@pytest.mark.parametrize("policy", ["raise", "skip", "quarantine"])
@pytest.mark.parametrize(
    ("late", "expected"),
    [
        (b'{"n":1.5}\n', [{"n": 1.0}, {"n": 1.5}]),
        (b'{"n":null}\n', [{"n": 1}, {"n": None}]),
        (b'{"n":2,"new":{"x":[]}}\n', [{"n": 1, "new": None}, {"n": 2, "new": {"x": []}}]),
        (b'{"other":"x"}\n', [{"n": 1, "other": None}, {"n": None, "other": "x"}]),
        (b'{"n":"2"}\n', None),
        (b'{"n":{"x":2}}\n', None),
        (b'{"n":[2]}\n', None),
        (b'{"n":true}\n', None),
    ],
)
@pytest.mark.parametrize("apart", [False, True], ids=["in one file", "in two shards"])
def test_late_types_and_columns_unify_without_loss_or_are_a_clear_error(tmp_path, policy, late, expected, apart):
    first = b'{"n":1}\n'
    raw = put(tmp_path / "raw", {"a.jsonl": first, "b.jsonl": late} if apart else {"a.jsonl": first + late})
    dataset = Dataset.from_files(raw, on_error=policy, shard_bytes=1).write_parquet(tmp_path / "out")
    with Session(backend="inline") as session:
        if expected is None:
            with pytest.raises(SchemaError, match="column 'n'"):
                session.run(dataset)
            return
        report = session.run(dataset)
    tables = [pq.read_table(path) for path in report.files]
    assert [row for table in tables for row in table.to_pylist()] == expected
    assert len({str(table.schema) for table in tables}) == 1


@pytest.mark.parametrize("policy", ["raise", "skip", "quarantine"])
def test_a_huge_document_is_a_row_like_any_other(tmp_path, policy):
    """Long strings of what makes scanners look again: quotes, backslashes, brackets, spaces, carriage returns."""
    pieces = ['"' * 500_000, "\\" * 500_000, "[{" * 250_000, " " * 1_000_000, "\r\n" * 250_000, "é" * 250_000]
    data = b"".join(json.dumps({"t": t}, ensure_ascii=False).encode() + b"\n" for t in pieces)
    bad = json.dumps({"t": "x" * 3_000_000}).encode()[:-1] + b"\n"
    raw = put(tmp_path / "raw", {"a.jsonl": data + (b"" if policy == "raise" else bad) + GOOD})
    texts, entries, counters = run(raw, policy, tmp_path / "out")
    assert texts == [*pieces, "x"]
    assert counters["rejected"] == (0 if policy == "raise" else 1)
    for entry in entries:
        assert (entry["line"], entry["offset"], entry["raw_bytes"]) == (7, len(data), len(bad) - 1)
        assert len(entry["raw"]) < 1_500_000


def test_an_array_of_many_objects_is_read_in_batches(tmp_path):
    rows = [{"n": i, "t": "é" * 20} for i in range(70_000)]
    raw = put(tmp_path / "raw", {"a.json": json.dumps(rows, indent=1).encode()})
    heights = []

    def noting(frame):
        heights.append(frame.height)
        return frame

    with Session(backend="inline") as session:
        got = list(session.rows(Dataset.from_files(raw, with_source=True).map_batches(noting)))
    assert max(heights) <= 65_536
    assert [(row["n"], row["source_row"]) for row in got] == [(i, i + 1) for i in range(70_000)]
