"""JSON lines out: the objects that went in come back, and what JSON has no word for is refused."""

import base64
import datetime
import json
import math

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_zephyr.errors import SchemaError
from marin_zephyr.formats import writers
from marin_zephyr.formats.writers import part_writer
from marin_zephyr.frames import frame_from_rows

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(max_size=6) | st.sampled_from(["\0\x1f\x7f", "\u2028é😀", '"\\/'])
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "s": st.none() | TEXTS,
            "i": st.none() | st.integers(-(2**63), 2**63 - 1),
            "f": st.none() | FLOATS,
            "b": st.none() | st.booleans(),
            "n": st.none(),
            'k"\\\n': st.lists(st.none() | st.integers(0, 3), max_size=3),
            "": st.none() | st.fixed_dictionaries({"x": TEXTS, "y": st.lists(FLOATS, max_size=2)}),
        }
    ),
    min_size=1,
    max_size=6,
)


def written(tmp_path, frame: pl.DataFrame) -> bytes:
    part = part_writer(tmp_path / "part.jsonl", "jsonl", None)
    part.write(frame)
    part.close()
    return (tmp_path / "part.jsonl").read_bytes()


@settings(max_examples=50)
@given(rows=ROWS)
def test_the_objects_that_went_in_come_back_from_both_encoders(rows, tmp_path_factory):
    tmp_path, frame = tmp_path_factory.mktemp("out"), frame_from_rows(rows)
    fast = written(tmp_path, frame)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writers, "_is_same_in_polars", lambda _: False)
        slow = written(tmp_path, frame)
    for lines in (fast, slow):
        assert [json.loads(line) for line in lines.decode().split("\n")[:-1]] == rows
    zeros = [math.copysign(1, json.loads(line)["f"] or 1.0) for line in fast.decode().split("\n")[:-1]]
    assert zeros == [math.copysign(1, row["f"] or 1.0) for row in rows]


def test_unsigned_and_small_integers_and_characters_beyond_ascii_are_written_as_they_are(tmp_path):
    frame = pl.DataFrame(
        {"é": ["ü"], "u": pl.Series([2**64 - 1], dtype=pl.UInt64), "i": pl.Series([-1], dtype=pl.Int8)}
    )
    assert written(tmp_path, frame) == '{"é":"ü","u":18446744073709551615,"i":-1}\n'.encode()


def test_times_and_narrow_floats_are_written_as_python_writes_them(tmp_path):
    when = datetime.datetime(2020, 1, 2, 3, 4, 5, 6)
    frame = pl.DataFrame({"d": [when.date()], "t": [when], "f": pl.Series([0.1], dtype=pl.Float32)})
    (row,) = [json.loads(line) for line in written(tmp_path, frame).splitlines()]
    assert (row["d"], row["t"]) == ("2020-01-02", when.isoformat())
    assert row["f"] == frame["f"][0]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "wrap", [lambda v: v, lambda v: [1.0, v], lambda v: {"x": [{"y": v}]}], ids=["bare", "list", "deep"]
)
@pytest.mark.parametrize("also", [1, datetime.date(2020, 1, 1)], ids=["by Polars", "by Python"])
def test_what_json_has_no_word_for_is_refused_with_its_column(tmp_path, value, wrap, also):
    frame = pl.DataFrame({"a": [also, also], "bad": [wrap(1.0), wrap(value)]})
    with pytest.raises(SchemaError, match="column 'bad' holds NaN or infinity"):
        written(tmp_path, frame)


def test_bytes_are_refused_with_their_column(tmp_path):
    with pytest.raises(SchemaError, match="column 'b' holds bytes"):
        written(tmp_path, pl.DataFrame({"b": [None, b"x"]}))
    assert written(tmp_path, pl.DataFrame({"b": pl.Series([None], dtype=pl.Binary)})) == b'{"b":null}\n'
    assert written(tmp_path, pl.DataFrame({"b": [base64.b64encode(b"x").decode()]})) == b'{"b":"eA=="}\n'


def test_what_lies_under_a_null_is_not_looked_at(tmp_path):
    whole = pl.DataFrame({"s": [{"x": math.nan}, {"x": 1.0}]})
    hidden = whole.with_columns(pl.when(pl.int_range(pl.len()) == 1).then("s"))
    assert written(tmp_path, hidden) == b'{"s":null}\n{"s":{"x":1.0}}\n'


def test_no_rows_are_no_lines(tmp_path):
    assert written(tmp_path, pl.DataFrame(schema={"a": pl.Int64, writers.RAW: pl.Binary})) == b""
    assert written(tmp_path, pl.DataFrame(schema={"a": pl.Int64})) == b""
