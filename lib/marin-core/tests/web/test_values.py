"""Whatever a step recorded is shown, within bounds."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    assert comparable(value) is None


def test_an_upstream_is_a_link_to_its_step() -> None:
    assert render_value({"step": "a/1"}, links={"a/1": "#s4"}) == '<a href="#s4">a/1</a>'
    assert "href" not in render_value({"step": "elsewhere/1"}, links={})


def test_long_things_are_cut_and_the_rest_is_counted() -> None:
    assert "more characters" in render_value("x" * 10_000)
    assert "940 more of 1,000" in render_value(list(range(1000)))
    assert "940 more of 1,000" in render_value([{"a": i} for i in range(1000)])
    assert "940 more of 1,000" in render_value({str(i): "x" for i in range(1000)})


def test_deep_values_end_in_one_line() -> None:
    value: Any = "core"
    for depth in range(2000):
        value = {"inner": [value]}
        if depth == 20:
            assert "core" in render_value(value)
    assert len(render_value(value)) < 20_000
