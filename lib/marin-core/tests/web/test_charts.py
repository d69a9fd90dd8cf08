"""Charts keep what matters of the data and say what they show."""

import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core.web.charts import MAX_POINTS, Series, bar_chart, line_chart, m4, nice_ticks, tick_labels

VALUES = st.one_of(st.none(), st.floats(-1e6, 1e6))


@given(st.lists(VALUES, max_size=400), st.integers(4, 64))
def test_thinning_keeps_order_extremes_and_ends_within_the_bound(ys: list[float | None], max_points: int) -> None:
    points = [(float(i), y) for i, y in enumerate(ys)]
    kept = m4(points, max_points=max_points)
    assert len(kept) <= max(max_points, 0)
    assert set(kept) <= set(points)
    assert [x for x, _ in kept] == sorted({x for x, _ in kept})
    finite = [y for y in ys if y is not None]
    if finite:
        seen = [y for _, y in kept if y is not None]
        assert (min(seen), max(seen)) == (min(finite), max(finite))
    if points:
        assert (kept[0], kept[-1]) == (points[0], points[-1])


def test_one_spike_in_a_million_points_survives() -> None:
    points = [(float(i), 1.0) for i in range(100_000)]
    points[54_321] = (54_321.0, 99.0)
    kept = m4(points)
    assert len(kept) <= MAX_POINTS
    assert (54_321.0, 99.0) in kept


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.integers(2, 8))
def test_ticks_are_inside_evenly_apart_and_about_as_many_as_asked(low: float, span: float, count: int) -> None:
    high = low + span
    if not high > low:
        return
    ticks = nice_ticks(low, high, count=count)
    assert len(ticks) <= count + 1
    slack = 1e-6 * max(abs(low), abs(high), span)
    assert all(low - slack <= tick <= high + slack for tick in ticks)


@pytest.mark.parametrize(
    ("ticks", "name", "labels"),
    [
        ([0.3, 0.31, 0.32], "", ["0.30", "0.31", "0.32"]),
        ([0, 1_000_000, 2_000_000], "", ["0", "1M", "2M"]),
        ([17_000, 17_500, 18_000], "tokens_per_s", ["17.0k", "17.5k", "18.0k"]),
        ([0, 2e-5], "lr", ["0", "2e-5"]),
        ([0, 20_000_000], "num_bytes", ["0 B", "20.0 MB"]),
        ([5.0], "", ["5"]),
    ],
)
def test_tick_labels_share_a_unit_and_their_decimals(ticks: list[float], name: str, labels: list[str]) -> None:
    assert tick_labels(ticks, name=name) == labels


EXTREME = st.floats() | st.sampled_from([5e-324, 1e308, -1e308, 1e9, 1e9 + 1e-3, 0.0])


@given(st.lists(EXTREME | st.none(), max_size=8), st.booleans())
def test_any_numbers_give_a_chart_of_finite_coordinates(ys: list[float | None], large: bool) -> None:
    chart = line_chart("loss", [Series("a", list(range(len(ys))), ys)], x_label="step", large=large)
    for path in re.findall(r' d="([^"]*)"', chart):
        for number in re.findall(r"[^MLh ]+", path):
            assert 0 <= float(number) <= 1000
    assert not re.search(r'="[^"%]*(nan|inf)[^"%]*%"', chart)


def test_a_gap_lifts_the_pen() -> None:
    chart = line_chart("loss", [Series("a", [0, 1, 2, 3], [1.0, math.nan, 2.0, 3.0])], x_label="step")
    path = re.search(r'<path d="([^"]*)"', chart)
    assert path is not None
    assert path[1].count("M") == 2
    assert "nan" not in chart.lower()


def test_the_points_ride_along_for_the_readout() -> None:
    chart = line_chart("loss", [Series("a", [0, 1], [1.0, 2.5])], x_label="step")
    found = re.search(r'data-series="([^"]*)"', chart)
    assert found is not None
    assert json.loads(found[1].replace("&quot;", '"')) == [{"label": "a", "points": [[0, 1.0], [1, 2.5]]}]
    assert "loss against step. a: 1 at step 0, 2.5 at step 1" in chart


@pytest.mark.parametrize("ys", [[math.nan, None], [], [7.0], [3.0, 3.0]])
def test_degenerate_series_are_drawn_or_said_to_be_empty(ys: list[float | None]) -> None:
    chart = line_chart("loss", [Series("a", list(range(len(ys))), ys)], x_label="step")
    assert ("No finite value" in chart) == (not any(y is not None and math.isfinite(y) for y in ys))


def test_several_lines_have_a_legend_and_one_has_its_last_value() -> None:
    one = Series("a", [0, 1], [1.0, 2.0])
    two = Series("b", [0, 1], [2.0, 1.0])
    assert "last 2" in line_chart("loss", [one], x_label="step")
    both = line_chart("loss", [one, two], x_label="step")
    assert both.count('class="key') == 2
    assert "last" not in both


def test_bars_start_at_zero_and_the_largest_comes_first() -> None:
    bars = bar_chart({"small": 1.0, "large": 4.0}, name="bits_per_byte")
    assert bars.index("large") < bars.index("small")
    assert 'width="100.00%"' in bars
    assert 'width="25.00%"' in bars


def test_negative_bars_lie_left_of_zero() -> None:
    bars = bar_chart({"loss": -1.0, "gain": 3.0})
    assert 'x="0.00%" width="25.00%"' in bars
    assert 'x="25.00%" width="75.00%"' in bars
