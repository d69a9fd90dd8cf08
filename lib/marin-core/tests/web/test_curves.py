"""metrics.jsonl as it is really written: cut off, out of order, with gaps."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from marin_core.web.curves import parse_metrics

NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**40), 2**40)


@given(st.lists(st.fixed_dictionaries({"step": st.integers(0, 10**6), "loss": NUMBERS}), min_size=1))
def test_rows_come_back_sorted_by_step(rows: list[dict[str, float]]) -> None:
    metrics = parse_metrics("\n".join(map(json.dumps, rows)).encode(), label="train")
    expected = sorted(rows, key=lambda row: row["step"])
    assert metrics.axis == "step"
    assert list(zip(metrics.xs, metrics.columns["loss"], strict=True)) == [
        (r["step"], float(r["loss"])) for r in expected
    ]


@given(st.binary())
def test_no_file_makes_it_fail(data: bytes) -> None:
    metrics = parse_metrics(data, label="train")
    assert all(len(ys) == len(metrics.xs) for ys in metrics.columns.values())


def test_a_last_line_that_was_cut_off_is_counted_and_the_rest_is_kept() -> None:
    metrics = parse_metrics(b'{"step": 0, "loss": 2}\n{"step": 1, "lo', label="train")
    assert metrics.num_unreadable == 1
    assert metrics.columns == {"loss": (2.0,)}


def test_without_a_step_in_every_row_the_rows_are_numbered() -> None:
    metrics = parse_metrics(b'{"loss": 3}\n{"step": 5, "loss": 2}', label="train")
    assert (metrics.axis, metrics.xs) == ("row", (0.0, 1.0))


def test_a_step_that_is_not_a_place_on_an_axis_makes_none() -> None:
    metrics = parse_metrics(b'{"step": NaN, "loss": 3}\n{"step": 1, "loss": 2}', label="train")
    assert (metrics.axis, metrics.xs) == ("row", (0.0, 1.0))


def test_what_is_not_a_number_is_a_gap() -> None:
    text = b'{"step": 0, "loss": NaN, "ok": true, "name": "x"}\n{"step": 1, "loss": 2}\n{"step": 2}'
    metrics = parse_metrics(text, label="train")
    assert set(metrics.columns) == {"loss"}
    first, second, third = metrics.columns["loss"]
    assert first is not None
    assert math.isnan(first)
    assert (second, third) == (2.0, None)


def test_a_column_that_never_changes_is_a_setting() -> None:
    metrics = parse_metrics(b'{"step": 0, "loss": 3, "hosts": 1}\n{"step": 1, "loss": 2, "hosts": 1}', label="train")
    assert metrics.varying() == ["loss"]
    assert metrics.constants() == {"hosts": 1.0}
