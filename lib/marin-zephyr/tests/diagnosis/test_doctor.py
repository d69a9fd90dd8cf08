"""The doctor: every kind of dirt is named with its place, what is harmless is a note, nothing ends at the first."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr import Dataset, Session
from marin_zephyr.diagnosis.doctor import examine, is_sound, tell
from marin_zephyr.diagnosis.kinds import conflicts, find_kinds
from marin_zephyr.diagnosis.oddities import find_oddities
from marin_zephyr.errors import TruncatedFileError
from marin_zephyr.formats.files import InputFile

ROW = b'{"t":"x","n":1}\n'  # 16 bytes
MANY = b"".join(b'{"t":"%d","n":%d}\n' % (i * 7919, i) for i in range(5000))

FAULTS = {
    "nul byte": ("a.jsonl", ROW + b'{"t":"a\0b","n":1}\n' + ROW, 2, 16, "not JSON: Invalid control character"),
    "nul padding": ("a.jsonl", ROW + b"\0" * 100, 2, 16, "not JSON"),
    "latin-1": ("a.jsonl", ROW + b'{"t":"caf\xe9","n":1}\n', 2, 16, "not UTF-8: byte 0xe9 at offset 25"),
    "lone surrogate": ("a.jsonl", ROW + b'{"t":"\\ud800","n":1}\n', 2, 16, "lone surrogate"),
    "cut line": ("a.jsonl", ROW + b'{"t":"x"', 2, 16, "not JSON"),
    "key twice": ("a.jsonl", ROW + b'{"t":"x","t":"y"}\n', 2, 16, "key 't' stands twice"),
    "late string": (
        "a.jsonl",
        ROW * 3 + b'{"t":"x","n":"one"}\n' + ROW,
        4,
        48,
        "column 'n' holds strings from here on",
    ),
    "pretty-printed": ("a.jsonl", json.dumps({"t": "x", "n": 1}, indent=2).encode(), 1, 0, "spread over lines"),
    "many pretty-printed": ("a.jsonl", json.dumps({"t": "x"}, indent=2).encode() * 3, 1, 0, "3 JSON documents spread"),
    "top-level array": ("a.jsonl", b'[{"t":"x"},\n{"t":"y"}]\n', 1, 0, "one JSON array at the top"),
    "truncated gzip": ("a.jsonl.gz", gzip.compress(MANY)[:9000], 1200, 28720, "gz file is truncated"),
    "garbage after gzip": ("a.jsonl.gz", gzip.compress(ROW) + b"garbage", 2, 16, "gz data is damaged"),
    "truncated zst": ("a.jsonl.zst", zstandard.compress(MANY)[:9000], 1, 0, "zst file is truncated"),
    "cut parquet": ("a.parquet", b"PAR1 and nothing more", None, None, "not a readable parquet file"),
    "cut csv": ("a.csv", b'a,b\n1,2\n"3,4\n', 3, 8, "not a CSV record"),
}

NOTES = {
    "byte order mark": ("a.jsonl", b"\xef\xbb\xbf" + ROW, 1, 0, "a byte order mark"),
    "crlf": ("a.jsonl", ROW + ROW.replace(b"\n", b"\r\n") * 2, 2, 31, "line ends of Windows (CRLF), 2 in all"),
    "blank lines": ("a.jsonl", ROW + b"\n \t\n" + ROW, 2, 16, "blank lines, 2 in all"),
    "nul escape": ("a.jsonl", ROW + b'{"t":"\\u0000","n":1}\n', 2, 22, "NUL characters (\\u0000) in strings, 1 in all"),
    "nan": ("a.jsonl", ROW + b'{"t":"a, NaN","n":NaN}\n{"n":-Infinity}\n', 2, 16, "NaN or infinity, in 2 lines"),
    "late float": ("a.jsonl", ROW * 3 + b'{"t":"x","n":1.5}\n', 4, 48, "column 'n' holds floats from here on"),
    "multi-member gzip": ("a.jsonl.gz", gzip.compress(ROW * 9) + gzip.compress(ROW), None, 144, "gzip of 2 members"),
    "no records": ("a.jsonl.gz", gzip.compress(b""), None, 0, "no records"),
    "huge record": ("a.jsonl", ROW + b'{"t":"' + b"x" * (2 << 20) + b'"}\n', 2, 16, "a record of 2.1 MB"),
}


def placed(found):
    return [(f.line, f.offset, f.reason) for f in found]


@pytest.mark.parametrize("kind", FAULTS)
def test_damage_is_named_with_its_place(tmp_path, kind):
    name, data, line, offset, reason = FAULTS[kind]
    (tmp_path / name).write_bytes(data)
    (diagnosis,) = examine(tmp_path / name)
    (found,) = placed(diagnosis.findings)
    assert found[:2] == (line, offset)
    assert reason in found[2]
    assert not is_sound([diagnosis])
    assert max(map(len, tell([diagnosis]).splitlines())) <= 80


@pytest.mark.parametrize("kind", NOTES)
def test_what_is_odd_and_read_all_the_same_is_a_note(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("marin_zephyr.diagnosis.oddities._HUGE_BYTES", 1 << 20)
    name, data, line, offset, reason = NOTES[kind]
    (tmp_path / name).write_bytes(data)
    (diagnosis,) = examine(tmp_path / name)
    assert is_sound([diagnosis]), diagnosis.findings
    assert any(n[:2] == (line, offset) and reason in n[2] for n in placed(diagnosis.notes)), diagnosis.notes


def test_plain_files_have_neither_faults_nor_notes(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(ROW * 3)
    (tmp_path / "b.json").write_text(json.dumps([{"t": "x", "n": 1}], indent=2))
    pq.write_table(pa.table({"t": ["x"], "n": [1]}), tmp_path / "c.parquet")
    diagnoses = examine(tmp_path)
    assert [(d.rows, d.findings, d.notes) for d in diagnoses] == [(3, (), ()), (1, (), ()), (1, (), ())]
    assert tell(diagnoses).splitlines()[-1] == "3 files, all sound"


def test_a_column_that_departs_from_the_files_before_is_found_where_it_departs(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(ROW * 2)
    (tmp_path / "b.jsonl").write_bytes(b'{"t":"x"}\n{"t":"x","n":"one"}\n')
    (tmp_path / "c.jsonl").write_bytes(ROW + b'{"t":"x","n":2,"late":true}\n')
    (tmp_path / "d.jsonl").write_bytes(b'{"t":"x","n":2.5}\n')
    a, b, c, d = examine(tmp_path)
    assert (a.findings, a.notes, c.findings, d.findings) == ((), (), (), ())
    assert placed(b.findings) == [(2, 10, "column 'n' is string here and int64 in a.jsonl; map it to one type")]
    assert placed(c.notes) == [(2, 16, "column 'late' (bool) is new here; the files before have null")]
    assert placed(d.notes) == [(1, 0, "column 'n' is float64 here and int64 before; it is read as float64")]


def test_a_column_that_holds_two_kinds_hides_no_other_fault(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(ROW + b'{"t":2,"n":"one"}\n{"t":"y","n":3}\nbad\n')
    (diagnosis,) = examine(tmp_path / "a.jsonl")
    assert [f.offset for f in diagnosis.findings] == [16, 16, 50]
    assert diagnosis.rows == 3


def input_file(path, format="jsonl"):
    size = path.stat().st_size
    return InputFile(url=str(path), name=path.name, format=format, compression=None, size=size, version="")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from([0.5, 1.5]) | st.sampled_from(["", "s", "NaN"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=50)
@given(st.lists(st.dictionaries(st.sampled_from("xyz"), VALUES, max_size=3), max_size=6))
def test_the_first_place_of_each_kind_is_that_of_a_plain_walk(tmp_path_factory, rows):
    lines = [json.dumps(row) + "\n" for row in rows]
    path = tmp_path_factory.mktemp("kinds") / "a.jsonl"
    path.write_text("".join(lines))
    expected = {}
    for number, row in enumerate(rows, 1):
        for name, value in row.items():
            if value is not None:
                offset = sum(map(len, lines[: number - 1]))
                expected.setdefault((name, type(value)), (number, offset))
    names = {"booleans": bool, "integers": int, "floats": float, "strings": str, "lists": list, "objects": dict}
    kinds = find_kinds(input_file(path))
    found = {
        (column, names[kind]): (place.line, place.offset)
        for column, places in kinds.items()
        if column in "xyz"
        for kind, place in places.items()
    }
    assert found == expected
    groups = {c: {float if t is int else t for (d, t) in expected if d == c} for c, _ in expected}
    assert {c for c, *_ in conflicts(kinds) if c in "xyz"} == {c for c, group in groups.items() if len(group) > 1}


PIECES = st.sampled_from(
    [b"\n", b"\r\n", b" \n", b"\t\r\n", b"\0\n", b'{"t":"NaN"}\n', b'{"n": NaN}\r\n', b'{"n":1}\n']
)


@settings(max_examples=50)
@given(st.lists(PIECES, max_size=8), st.booleans())
def test_oddities_are_counted_and_placed_as_by_a_plain_scan(tmp_path_factory, lines, has_mark):
    path = tmp_path_factory.mktemp("odd") / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" * has_mark + b"".join(lines))
    tests = {
        "CRLF": lambda line: line.endswith(b"\r\n"),
        "NUL bytes": lambda line: b"\0" in line,
        "NaN": lambda line: b": NaN" in line,
        "blank lines": lambda line: not line.strip(),
    }
    expected = {}
    for what, is_odd in tests.items():
        where = [i for i, line in enumerate(lines) if is_odd(line)]
        if where:
            expected[what] = (where[0] + 1, len(where))
    found = {o.reason: o for o in find_oddities(input_file(path))}
    for what, (line, count) in expected.items():
        (oddity,) = [o for reason, o in found.items() if what in reason]
        assert (oddity.line, f" {count} " in f"{oddity.reason} ") == (line, True)
    assert len(found) == len(expected) + has_mark


@pytest.mark.parametrize("suffix", ["gz", "zst", "xz", "bz2"])
def test_no_byte_at_all_is_no_compressed_file_to_doctor_and_reader_alike(tmp_path, suffix):
    (tmp_path / "a.jsonl").write_bytes(ROW)
    (tmp_path / f"b.jsonl.{suffix}").write_bytes(b"")
    _, empty = examine(tmp_path)
    assert [(offset, f"{suffix} file is truncated" in reason) for _, offset, reason in placed(empty.findings)] == [
        (0, True)
    ]
    with Session(backend="inline") as session:
        with pytest.raises(TruncatedFileError, match=f"{suffix} file is truncated"):
            session.count(Dataset.from_files(tmp_path))
        assert session.count(Dataset.from_files(tmp_path, on_error="skip")) == 1


def test_files_that_are_all_empty_are_a_diagnosis(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"")
    (tmp_path / "b.csv").write_bytes(b"")
    diagnoses = examine(tmp_path)
    assert is_sound(diagnoses)
    assert [[n.reason for n in d.notes] for d in diagnoses] == [["no records: the file has 0 bytes"]] * 2


def test_a_file_of_no_known_format_is_a_finding_and_the_rest_is_examined(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(ROW)
    (tmp_path / "b.exe").write_bytes(b"MZ")
    (tmp_path / "c.jsonl").write_bytes(b"bad\n")
    first, unknown, last = examine(tmp_path)
    assert (first.num_findings, unknown.num_findings, last.num_findings) == (0, 1, 1)
    assert "no known format" in unknown.findings[0].reason
    assert tell([first, unknown, last]).splitlines()[-1] == "3 files, 2 of them damaged: 2 faults"
