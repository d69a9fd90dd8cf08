"""Whatever a step recorded is shown, within bounds."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core.web.tables import align
from marin_core.web.values import comparable, render_value

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=25,
)


@given(JSON)
def test_any_json_value_renders_to_encodable_html(value: Any) -> None:
    html = render_value(value)
    assert html.encode("utf-8").decode("utf-8") == html


def test_what_is_not_json_is_shown_by_its_repr() -> None:
    assert "1+2j" in render_value({"z": 1 + 2j})


def test_a_list_of_objects_is_a_table_with_a_column_for_each_key() -> None:
    table = render_value([{"a": 1, "b": "x"}, {"a": 2, "c": None}])
    assert table.count("<th ") == 3
    assert table.count("<tr>") == 3


def test_nested_numbers_are_compared_by_bars_but_a_record_is_not() -> None:
    value = {"bits_per_byte": {"model": 1.7, "zstd": 2.0}, "count": 3}
    assert 'class="bars"' in render_value(value)
    assert 'class="bars"' not in render_value({"count": 3, "steps": 4})


@pytest.mark.parametrize(
    "value",
    [{"a": 1.0}, {"a": 1, "b": "x"}, {"a": 1, "b": math.nan}, {"a": 1, "b": 10**6}, {"a": True, "b": 1}, [1, 2], {}],
)
def test_numbers_that_are_not_one_quantity_are_not_compared(value: Any) -> None:
    assert comparable(value, name="loss") is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("best", {"lr": 0.3, "loss": 0.98, "seed": 2}),
        ("best_loss", {"lr": 0.3, "loss": 0.98}),
        ("loss", {"lr": 0.3, "momentum": 0.9}),
        ("result", {"alpha": 1.0, "beta": 2.0}),
    ],
)
def test_a_record_of_unlike_numbers_is_a_list_of_names_and_values(name: str, value: dict[str, float]) -> None:
    shown = render_value({name: value})
    assert 'class="bars"' not in shown
    assert all(f"<dt>{key}</dt>" in shown for key in value)


def test_objects_of_the_same_fields_are_rows_of_a_table() -> None:
    table = render_value({"model": {"loss": 1.7, "runs": 4}, "zstd": {"loss": 2.0, "runs": 4}})
    assert table.count('<th scope="row">') == 2
    assert table.count("<tr>") == 3
    assert "<table" not in render_value({"a": {"x": 1}, "b": {"y": 1}})
    assert "<table" not in render_value({"a": {"step": "a/1"}, "b": {"step": "b/1"}})


def test_numbers_of_a_column_have_equally_many_decimals_where_they_are_of_like_size() -> None:
    assert align("loss", [1.98, 2.0134, 2]) == ["1.980", "2.013", "2.000"]
    assert align("lr", [0.0001, 1.0]) == ["0.0001", "1"]
    assert align("num_bytes", [10, 2_000_000]) == ["10 B", "2.0 MB"]
    assert align("seed", [1, 20]) == ["1", "20"]
    assert align("x", [float("nan"), 1.5, -2.25]) == ["NaN", "1.5", "-2.25"]


def test_short_scalars_are_on_one_line_and_counted() -> None:
    assert ">a, b, 3<" in render_value(["a", "b", 3])
    assert "… 8 more of 20" in render_value([0.5] * 20)


def test_an_upstream_is_a_link_to_its_step() -> None:
    assert render_value({"step": "a/1"}, links={"a/1": "#s4"}) == '<a href="#s4">a/1</a>'
    assert "href" not in render_value({"step": "elsewhere/1"}, links={})


def test_long_things_are_cut_and_the_rest_is_counted() -> None:
    assert "more characters" in render_value("x" * 10_000)
    assert "988 more of 1,000" in render_value(list(range(1000)))
    assert "940 more of 1,000" in render_value([{"a": i} for i in range(1000)])
    assert "940 more of 1,000" in render_value({str(i): "x" for i in range(1000)})


def test_deep_values_end_in_one_line() -> None:
    value: Any = "core"
    for depth in range(2000):
        value = {"inner": [value]}
        if depth == 20:
            assert "core" in render_value(value)
    assert len(render_value(value)) < 20_000
