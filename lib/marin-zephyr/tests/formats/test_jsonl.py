"""JSON lines, clean and dirty: what is read, what is refused with line and offset, and nothing in between."""

import base64
import gzip
import json
import random
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import marin_zephyr.formats.lines as lines_module
from marin_zephyr.errors import BadRecordError, SchemaError, TruncatedFileError
from marin_zephyr.formats import jsonl
from marin_zephyr.formats.files import InputFile
from marin_zephyr.formats.lines import BLOCK_BYTES
from marin_zephyr.formats.objects import measure_depth
from marin_zephyr.formats.rejects import Desk
from marin_zephyr.formats.writers import part_writer
from marin_zephyr.nodes import RAW, FilterExpr, ReadOptions
from marin_zephyr.operations import TaskContext, run_chain


def write(path: Path, data: bytes) -> InputFile:
    path.write_bytes(data)
    format = "json" if path.suffix == ".json" else "jsonl"
    return InputFile(url=str(path), name=path.name, format=format, compression=None, size=len(data), version="")


def read(path: Path, data: bytes, policy: str = "raise", **options) -> tuple[list[dict], list[dict]]:
    """The rows, and the rejects."""
    desk = Desk(policy, path.parent / "rejects.jsonl")
    frames = list(jsonl.read(write(path, data), ReadOptions(**options), desk))
    desk.close()
    refused = [json.loads(line) for line in desk.path.read_text().splitlines()] if desk.path.exists() else []
    return [row for frame in frames for row in frame.to_dicts()], refused


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.jsonl"


SCALARS = st.one_of(
    st.none(),
    st.text(max_size=6),
    st.text(alphabet="0123-T:Z. ", max_size=12),
    st.sampled_from(["2020-01-01", "\0", "é😀"]),
)
VALUES = st.fixed_dictionaries(
    {
        "s": SCALARS,
        "n": st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
        "b": st.one_of(st.none(), st.booleans()),
    },
    optional={
        "f": st.floats(allow_nan=False, allow_infinity=False),
        "l": st.lists(SCALARS, max_size=3),
        "d": st.fixed_dictionaries({"x": SCALARS, "y": st.integers(0, 5)}),
    },
)


@settings(max_examples=60)
@given(rows=st.lists(VALUES, min_size=1, max_size=12), ascii=st.booleans(), end=st.sampled_from(["\n", "\r\n", "\n\n"]))
def test_reading_equals_pythons_json(rows, ascii, end, tmp_path_factory):
    path = tmp_path_factory.mktemp("jsonl") / "a.jsonl"
    data = "".join(json.dumps(row, ensure_ascii=ascii) + end for row in rows).encode()
    got, refused = read(path, data)
    names = {name for row in rows for name in row}
    assert refused == []
    assert [{k: v for k, v in row.items() if v is not None} for row in got] == [
        {k: v for k, v in row.items() if v is not None and k in names} for row in rows
    ]


DIRTY = {
    "latin-1": (b'{"t":"caf\xe9"}', "not UTF-8: byte 0xe9"),
    "no JSON": (b"{'t': 1}", "not JSON"),
    "cut off": (b'{"t": "ab', "not JSON"),
    "two objects": (b'{"t":"a"}{"t":"b"}', "not JSON: Extra data"),
    "trailing": (b'{"t":"a"} x', "not JSON: Extra data"),
    "an array": (b'["t"]', "expected an object, found list"),
    "a number": (b"3", "expected an object, found int"),
    "a key twice": (b'{"t":"a","t":"b"}', "key 't' stands twice"),
    "lone surrogate": (b'{"t":"\\ud800"}', "lone surrogate"),
    "raw NUL": (b'{"t":"a\x00b"}', "not JSON"),
    "huge integer": (b'{"n":123456789012345678901234567890}', "beyond 64 bits"),
    "deep": (b'{"t":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested more than 256 deep: 100,001 levels"),
    "deep in a new column": (b'{"u":' + b"[" * 20_000, "nested more than 256 deep: 20,001 levels"),
    "deep and nothing else": (b"[" * 20_000, "nested more than 256 deep: 20,000 levels"),
    "too deep for a column": (b'{"t":' + b"[" * 48 + b"]" * 48 + b"}", "a value nested more than 48 deep"),
}


@pytest.mark.parametrize("kind", DIRTY)
def test_a_bad_line_is_refused_with_its_place_and_the_others_are_kept(path, kind):
    bad, reason = DIRTY[kind]
    good = b'{"t":"x"}\n'
    rows, refused = read(path, good + bad + b"\n" + good, "quarantine")
    assert rows == [{"t": "x"}, {"t": "x"}] or kind == "huge integer"
    assert [(r["line"], r["offset"], r["file"]) for r in refused] == [(2, len(good), "a.jsonl")]
    assert reason in refused[0]["reason"]
    with pytest.raises(BadRecordError, match=rf"a\.jsonl, line 2, byte offset {len(good)}"):
        read(path, good + bad + b"\n" + good)


def test_the_raw_bytes_of_a_bad_line_are_kept(path):
    _, refused = read(path, b'{"t":"caf\xe9"}\r\n', "quarantine")
    assert base64.b64decode(refused[0]["raw"]) == b'{"t":"caf\xe9"}'


def test_byte_order_mark_crlf_blank_lines_and_a_missing_last_newline(path):
    rows, _ = read(path, b'\xef\xbb\xbf{"n":1}\r\n\r\n  \n{"n":2}', with_source=True)
    assert [(r["n"], r["source_row"], r["source_offset"]) for r in rows] == [(1, 1, 3), (2, 4, 17)]


def test_places_are_those_of_the_lines(path):
    lines = [json.dumps({"n": i, "t": "x" * (i % 7)}).encode() + b"\n" for i in range(500)]
    rows, _ = read(path, b"".join(lines), with_source=True)
    data = path.read_bytes()
    for row in rows:
        assert json.loads(data[row["source_offset"] :].split(b"\n", 1)[0])["n"] == row["n"] == row["source_row"] - 1


def test_a_late_float_widens_the_column_and_loses_nothing(path):
    assert read(path, b'{"n":1}\n{"n":1.5}\n')[0] == [{"n": 1.0}, {"n": 1.5}]


def test_an_integer_that_a_float_column_would_round_is_an_error(path):
    with pytest.raises(SchemaError, match="column 'n'"):
        read(path, b'{"n":9007199254740993}\n{"n":1.5}\n')


def test_a_late_string_among_numbers_is_an_error_that_names_file_and_column(path):
    with pytest.raises(SchemaError, match=r"a\.jsonl, lines 1 to 2: column 'n' holds int and str"):
        read(path, b'{"n":1}\n{"n":"x"}\n')


def test_a_late_string_in_a_later_block_is_an_error_too(path):
    data = b'{"n":1}\n' * (BLOCK_BYTES // 8) + b'{"n":"x"}\n'
    with pytest.raises(SchemaError, match=r"a\.jsonl: column 'n' is int64"):
        read(path, data)


def test_strings_that_look_like_dates_stay_strings(path):
    rows = [{"t": "x", "d": None}] * 30 + [{"t": "2020-01-01", "d": "2020-01-01 00:00:00"}] * 2
    got, _ = read(path, "".join(json.dumps(r) + "\n" for r in rows).encode())
    assert got == rows


def test_json_files_hold_lines_an_array_or_one_object(tmp_path):
    for data in (b'{"n":1}\n{"n":2}\n', b'[{"n":1},\n {"n":2}]'):
        assert read(tmp_path / "a.json", data)[0] == [{"n": 1}, {"n": 2}]
    assert read(tmp_path / "a.json", b'{\n  "n": 1\n}\n')[0] == [{"n": 1}]


def test_asked_for_columns_come_in_order_and_absent_ones_are_null(path):
    rows, _ = read(path, b'{"a":1,"b":2,"c":3}\n', columns=("c", "z", "a"))
    assert [list(row.items()) for row in rows] == [[("c", 3), ("z", None), ("a", 1)]]


@pytest.mark.parametrize("late", [1, 25, BLOCK_BYTES // 8], ids=["in the sample", "in the block", "in a later block"])
def test_columns_that_are_not_asked_for_may_hold_anything(path, late):
    lines = [b'{"t":"a","x":1}\n'] * late + [b'{"t":"b","x":"one"}\n', b'{"t":"c","x":{"y":[]},"z":0}\n']
    rows, refused = read(path, b"".join(lines), "quarantine", columns=("t",))
    assert refused == []
    assert rows == [{"t": "a"}] * late + [{"t": "b"}, {"t": "c"}]


@pytest.mark.parametrize("columns", [None, ("t",)])
def test_whether_a_line_is_a_record_does_not_depend_on_the_columns(path, columns):
    good = b'{"t":"a","x":1}\n'
    bad = [b'{"t":"b","x":' + b"[" * 20_000, b'{"t":"b","x":1,"x"}', b'{"t":"b","x":"\\ud800"}']
    bad += [b'{"t":"b","x":"caf\xe9"}', b'{"t":"b","x":' + b"[" * 300 + b"]" * 300 + b"}", b'{"t":"b"}{"t":"c"}']
    for line in bad:
        rows, refused = read(path, good + line + b"\n" + good, "quarantine", columns=columns)
        assert ([row["t"] for row in rows], [entry["line"] for entry in refused]) == (["a", "a"], [2])


@pytest.mark.parametrize("first", [0, 30], ids=["at the start", "after the sample"])
@pytest.mark.parametrize("value", [b"7", b"true", b'["x"]', b'{"y":"x"}'])
def test_what_should_be_a_string_and_is_none_is_refused_with_its_place(path, first, value):
    good = b'{"t":"x","u":1}\n'
    data = good * first + b'{"t":' + value + b'}\n{"t":null}\n{"u":2}\n' + good
    rows, refused = read(path, data, "quarantine", columns=("t",), string_columns=("t",))
    assert rows == [{"t": "x"}] * first + [{"t": None}, {"t": None}, {"t": "x"}]
    assert [(entry["line"], entry["offset"]) for entry in refused] == [(first + 1, len(good) * first)]
    assert "'t' is" in refused[0]["reason"]
    with pytest.raises(BadRecordError, match=f"line {first + 1}, .*not a string"):
        read(path, data, string_columns=("t",))


def test_an_array_of_objects_obeys_the_same_options(tmp_path):
    data = b'[{"t":"a","x":1}, {"t":2,"x":"one"}, {"t":"c"}]'
    options = {"columns": ("t",), "string_columns": ("t",), "with_source": True}
    rows, refused = read(tmp_path / "a.json", data, "quarantine", **options)
    assert [(row["t"], row["source_row"]) for row in rows] == [("a", 1), ("c", 3)]
    assert [entry["reason"] for entry in refused] == ["object 2: 't' is int, not a string"]
    with pytest.raises(SchemaError, match=r"a\.json: column 't' holds int and str"):
        read(tmp_path / "a.json", data)


def test_a_truncated_array_goes_to_the_desk_after_its_objects(tmp_path):
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b'[{"t":"a"},\n {"t":"b"}]', mtime=0)[:-4])
    file = InputFile(url=str(path), name=path.name, format="json", compression="gz", size=1, version="")
    desk = Desk("skip", tmp_path / "rejects.jsonl")
    assert [row for frame in jsonl.read(file, ReadOptions(), desk) for row in frame.to_dicts()] == [
        {"t": "a"},
        {"t": "b"},
    ]
    assert desk.num_records == 1
    with pytest.raises(TruncatedFileError):
        list(jsonl.read(file, ReadOptions(), Desk("raise", desk.path)))


def test_batches_are_bounded(path):
    desk = Desk("raise", path.parent / "rejects.jsonl")
    frames = list(jsonl.read(write(path, b'{"n":1}\n' * 200_000), ReadOptions(), desk))
    assert pl.concat(frames).height == 200_000
    assert max(frame.height for frame in frames) <= 65_536


DEEP = b"[" * 60 + b"]" * 60
UNKEEPABLE = [b"123456789012345678901234567890", b"9" * 5000, b'{"y":[-9223372036854775809]}', DEEP]
UNKEEPABLE += [b'1,"x":2', b'{"y":1,"z":0,"y":"1"}', b'[{"y\\u0000":1}]']


@pytest.mark.parametrize(
    "value", UNKEEPABLE, ids=["huge", "digits", "inside", "deep", "twice", "twice inside", "NUL in a key"]
)
@pytest.mark.parametrize("first", [0, 30], ids=["at the start", "after the sample"])
def test_a_value_that_cannot_be_kept_costs_the_line_only_where_it_is_asked_for(path, value, first):
    good = b'{"t":"a","x":1}\n'
    data = good * first + b'{"t":"b","x":' + value + b"}\n" + good
    rows, refused = read(path, data, "quarantine", columns=("t",))
    assert ([row["t"] for row in rows], refused) == (["a"] * first + ["b", "a"], [])
    rows, refused = read(path, data, "quarantine")
    assert ([row["t"] for row in rows], [entry["line"] for entry in refused]) == (["a"] * (first + 1), [first + 1])


def test_an_object_of_an_array_that_cannot_be_kept_is_refused_alone(tmp_path):
    data = b'[{"t":"a","x":1}, {"t":"b","x":123456789012345678901234567890}]'
    rows, refused = read(tmp_path / "a.json", data, "quarantine")
    assert rows == [{"t": "a", "x": 1}]
    assert [entry["reason"] for entry in refused] == [
        "object 2: an integer beyond 64 bits: 123456789012345678901234567890"
    ]
    assert len(read(tmp_path / "a.json", data, columns=("t",))[0]) == 2


def test_a_document_nested_too_deep_is_one_reject(tmp_path):
    rows, refused = read(tmp_path / "a.json", b"[\n" * 20_000, "quarantine")
    assert rows == []
    assert [entry["reason"] for entry in refused] == ["nested more than 256 deep: 20,000 levels"]


def test_the_deepest_value_that_is_kept_can_be_written_and_read_again(path, tmp_path):
    from marin_zephyr import Dataset, Session

    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        path.write_bytes(b'{"x":' + opening * 47 + b"1" + closing * 47 + b"}\n")
        with Session(backend="inline") as session:
            session.run(Dataset.from_files(path).write_parquet(tmp_path / "out"))
            assert len(list(session.rows(Dataset.from_files(tmp_path / "out")))) == 1


BRACKETS = st.lists(st.sampled_from([b"[", b"]", b"{", b"}", b'"', b"\\\\", b'\\"', b"a", b'{"k":']), max_size=400)


@given(value=st.recursive(st.text(alphabet='[]{}"\\', max_size=300), lambda inner: st.lists(inner, max_size=3)))
def test_brackets_in_strings_are_not_nesting(value):
    def depth(value):
        return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0

    padded = [value, *([[]] * 50)]
    assert measure_depth(json.dumps(padded).encode()) == depth(padded)


@given(pieces=BRACKETS)
def test_measuring_takes_any_bytes(pieces):
    data = b"".join(pieces)
    assert 0 <= measure_depth(data) <= data.count(b"[") + data.count(b"{")


# What a line of a damaged file looks like: bytes of it changed, dropped, doubled, or one line run into the next.
GOOD = [b'{"t":"a","n":1,"x":{"y":[1,2]}}', b'{"n":2,"t":"\xc3\xa9\\n","x":null}', b'{"t":"","n":-3,"x":{"y":[]}}', b""]
PIECES = st.sampled_from(
    [b'"', b"{", b"}", b"[", b"]", b",", b":", b"\n", b"\r", b" ", b"\0", b"\xff", b"\\ud800", b"NaN"]
)
PIECES |= st.sampled_from(
    [b'"t":', b'"x":1,', b"1e999", b"9" * 25, b"[[", b'{"x":', b"}{", b"}\n{", b"\x0b", b"0", b"-"]
)


@st.composite
def damaged(draw):
    """Lines of which some are damaged."""
    data = bytearray(b"\n".join(draw(st.lists(st.sampled_from(GOOD), min_size=1, max_size=12))))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 2))] = draw(PIECES)
    return bytes(data).replace(b"-NaN", b"NaN")  # which Arrow takes for NaN, and Python refuses


def outcome(path, data, **options):
    try:
        return repr(read(path, data, "quarantine", **options))
    except SchemaError:
        return "types that do not agree"


@settings(max_examples=50)
@given(data=damaged(), columns=st.sampled_from([None, ("t",), ("n", "z"), ("x", "t")]), raw=st.booleans())
def test_reading_at_full_speed_equals_reading_line_by_line(data, columns, raw, tmp_path_factory):
    path = tmp_path_factory.mktemp("jsonl") / "a.jsonl"
    data = b"\n".join(GOOD[:3]) + b"\n" + data
    options = {"columns": columns, "with_source": True, "raw": raw}
    fast = outcome(path, data, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl, "_SMALLEST_PART", 40)
        assert outcome(path, data, **options) == fast
        patch.setattr(jsonl, "_parse_fast", lambda *_: None)
        patch.setattr(jsonl, "_SMALLEST_PART", 1 << 20)
        assert outcome(path, data, **options) == fast


def test_a_block_too_large_for_arrow_is_read_in_parts(path, monkeypatch):
    data = b"".join(b'{"n":%d}\n' % i for i in range(3000))
    whole = read(path, data, with_source=True)
    monkeypatch.setattr(jsonl, "_ARROW_LIMIT", 5000)
    monkeypatch.setattr(jsonl, "_SMALLEST_PART", 1000)
    assert read(path, data, with_source=True) == whole


def test_lines_that_hold_two_objects_and_objects_of_two_lines_do_not_cancel_out(path):
    rows, refused = read(path, b'{"n":0}\n{"n":1}{"n":2}\n{"n":\n3}\n{"n":4}\n', "quarantine", with_source=True)
    assert [(row["n"], row["source_row"]) for row in rows] == [(0, 1), (4, 5)]
    assert [entry["line"] for entry in refused] == [2, 3, 4]


def test_dirt_costs_only_the_part_in_which_it_is(path, monkeypatch):
    lines = [b'{"n":%d,"t":"%s"}\n' % (i, b"x" * 100) for i in range(20_000)]
    lines[7000] = b"dirt\n"
    by_hand = []
    slow = jsonl._parse_lines
    monkeypatch.setattr(jsonl, "_parse_lines", lambda block, *rest: by_hand.append(block) or slow(block, *rest))
    rows, refused = read(path, b"".join(lines), "quarantine", with_source=True)
    assert [row["source_row"] for row in rows] == [i + 1 for i in range(20_000) if i != 7000]
    assert [row["n"] for row in rows] == [i for i in range(20_000) if i != 7000]
    assert [entry["line"] for entry in refused] == [7001]
    assert len(by_hand) == 1
    assert len(by_hand[0].data) <= 1 << 17


@given(pieces=st.lists(st.sampled_from([b"[", b"{", b"]", b"x" * 700, b"[" * 900]), max_size=12))
def test_brackets_are_counted_exactly(pieces):
    data = b"".join(pieces) or b"{"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl, "_SCAN_BYTES", 2048)
        counted = jsonl._openings(data)
    expected = [data.count(b"[", 0, i * 1024) + data.count(b"{", 0, i * 1024) for i in range(len(counted) - 1)]
    assert counted.tolist() == [*expected, data.count(b"[") + data.count(b"{")]


PREDICATES = {
    "n > 0": pl.col("n") > 0,
    "string": pl.col("t").str.len_chars() > 0,
    "null": pl.col("t").is_null(),
    "absent": pl.col("z").is_null(),
    "absent string": pl.col("z").str.contains("a"),
    "two": (pl.col("n") > 1) | (pl.col("t") == "a"),
    "always": pl.lit(True),
}


@settings(max_examples=50)
@given(data=damaged(), name=st.sampled_from(list(PREDICATES)), columns=st.sampled_from([None, ("t",), ("x", "n")]))
def test_a_predicate_equals_reading_everything_and_filtering(data, name, columns, tmp_path_factory):
    path = tmp_path_factory.mktemp("jsonl") / "a.jsonl"
    file = write(path, b"\n".join(GOOD[:3]) + b"\n" + data)
    # Without a predicate its columns are asked for by name: what cannot be kept in them is refused all the same.
    names = None if columns is None else tuple(dict.fromkeys((*columns, *PREDICATES[name].meta.root_names())))
    whole, pushed = (Desk("quarantine", path.parent / f"{kind}.jsonl") for kind in ("whole", "pushed"))
    try:
        frames = list(jsonl.read(file, ReadOptions(columns=names, with_source=True), whole))
        expected = [row for frame in frames for row in keep(frame, PREDICATES[name])]
    except SchemaError:
        return
    options = ReadOptions(columns=columns, with_source=True, predicate=PREDICATES[name])
    got = [row for frame in jsonl.read(file, options, pushed) for row in frame.to_dicts()]
    asked = None if columns is None else {*columns, "source", "source_row", "source_offset"}
    assert repr(got) == repr([{k: v for k, v in row.items() if asked is None or k in asked} for row in expected])
    assert pushed.num_filtered == sum(frame.height for frame in frames) - len(expected)
    assert pushed.num_records == whole.num_records
    assert set(pushed.absent) == (set(PREDICATES[name].meta.root_names()) if columns is None else set())


def keep(frame, predicate):
    """What `filter` of a dataset keeps of a frame."""
    context = TaskContext(desk=Desk("raise", Path("/dev/null")), index=0, home=Path("/dev"))
    kept = run_chain(iter([frame]), [FilterExpr(predicate)], ["filter"], context)
    return [row for f in kept for row in f.select(frame.columns).to_dicts()]


def test_a_predicate_may_name_where_a_row_came_from(path):
    data = b'{"n":1}\n{"n":2}\n{"n":3}\n'
    rows, _ = read(path, data, columns=("n",), with_source=True, predicate=pl.col("source_row") > 1)
    assert [row["n"] for row in rows] == [2, 3]


def test_a_predicate_that_cannot_be_evaluated_is_an_error_that_names_the_file(path):
    with pytest.raises(SchemaError, match=r"a\.jsonl: filter"):
        read(path, b'{"n":1}\n', predicate=pl.col("n").str.contains("a"))
    with pytest.raises(SchemaError, match=r"a\.jsonl: filter: the expression gives Int64, not true or false"):
        read(path, b'{"n":1}\n', predicate=pl.col("n"))


def test_columns_that_a_predicate_alone_needs_are_not_given(path):
    rows, _ = read(path, b'{"n":1,"t":"a"}\n{"n":2,"t":"b"}\n' * 30, columns=("t",), predicate=pl.col("n") == 2)
    assert rows == [{"t": "b"}] * 30


def test_rows_without_columns_are_still_counted(path):
    desk = Desk("raise", path.parent / "rejects.jsonl")
    frames = list(jsonl.read(write(path, b'{"n":1}\n{"n":2}\n'), ReadOptions(columns=()), desk))
    assert [(frame.height, frame.width) for frame in frames] == [(2, 0)]


@pytest.mark.parametrize("compression", [None, "gz", "zst"])
def test_raw_lines_are_written_as_they_stood(path, tmp_path, compression):
    lines = [b'{"n": 1, "t": "a"}', b' {"t":"\\u00e9","n":2} ', b'{"n":3}', b'{"n":4.50,"x":[ ]}']
    file = write(path, b"\xef\xbb\xbf" + lines[0] + b"\r\n\n" + b"\n".join(lines[1:]))
    options = ReadOptions(raw=True, columns=("n",), predicate=pl.col("n") != 3)
    frames = list(jsonl.read(file, options, Desk("raise", tmp_path / "rejects.jsonl")))
    assert [row[RAW] for frame in frames for row in frame.to_dicts()] == [lines[0], lines[1], lines[3]]
    part = part_writer(tmp_path / "part", "jsonl", compression)
    for frame in frames:
        part.write(frame)
    part.close()
    written = InputFile(
        url=str(tmp_path / "part"), name="part", format="jsonl", compression=compression, size=1, version=""
    )
    again = list(jsonl.read(written, ReadOptions(raw=True), Desk("raise", tmp_path / "rejects.jsonl")))
    assert [line for frame in again for line in frame[RAW]] == [lines[0], lines[1], lines[3]]


def test_raw_objects_of_an_array_are_lines(tmp_path):
    rows, _ = read(
        tmp_path / "a.json", b'[{"n": 1,\n "t": "\xc3\xa9"}, {"n": 123456789012345678901}]', "skip", raw=True
    )
    assert [json.loads(row[RAW]) for row in rows] == [{"n": 1, "t": "é"}]


def test_a_line_longer_than_many_blocks_is_one_row(path, monkeypatch):
    text = "".join(random.Random(0).choices('ab\\"é\n', k=300_000))
    monkeypatch.setattr(lines_module, "BLOCK_BYTES", 1000)
    monkeypatch.setitem(lines_module.file_blocks.__kwdefaults__, "size", 1000)
    rows, _ = read(path, json.dumps({"t": text}).encode() + b'\n{"t":"b"}\n', with_source=True)
    assert [(row["t"], row["source_row"]) for row in rows] == [(text, 1), ("b", 2)]
