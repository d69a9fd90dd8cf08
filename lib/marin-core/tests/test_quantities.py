"""Numbers read as people write them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core.quantities import format_bytes, format_number, format_quantity, format_seconds, format_time, label


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (1234567, "1,234,567"),
        (1.7342, "1.734"),
        (0.1, "0.1"),
        (12345.678, "12,346"),
        (0.00005, "5e-5"),
        (3.2e20, "3.2e20"),
        (-2.5, "-2.5"),
        (math.nan, "NaN"),
        (math.inf, "∞"),
        (True, "true"),
        (10**400, "about 2^1329"),
    ],
)
def test_numbers_keep_four_digits(number: float, text: str) -> None:
    assert format_number(number) == text


@given(st.floats(-1e307, 1e307))
def test_a_number_reads_back_to_four_digits(number: float) -> None:
    read = float(format_number(number).replace(",", ""))
    assert read == pytest.approx(number, rel=1e-3, abs=1e-320)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (31_240_000, "31.2 MB"), (999_990, "1.0 MB")]
)
def test_sizes_have_the_unit_that_fits(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.012, "12 ms"), (3.42, "3.42 s"), (59.97, "1 min 00 s"), (252, "4 min 12 s"), (7500, "2 h 05 min"), (None, "–")],
)
def test_durations_have_the_unit_that_fits(seconds: float | None, text: str) -> None:
    assert format_seconds(seconds) == text


def test_a_name_states_the_unit() -> None:
    assert format_quantity("num_bytes", 29_400_000) == "29.4 MB"
    assert format_quantity("step_time_s", 0.47) == "0.47 s"
    assert format_quantity("bits_per_byte", 1.7342) == "1.734"
    assert format_quantity("tokens_per_s", 17_400) == "17,400"


def test_times_are_utc_and_absurd_ones_are_said_to_be() -> None:
    assert format_time(0) == "1970-01-01 00:00:00 UTC"
    assert format_time(1e30) == "unreadable time"


def test_labels_drop_what_goes_without_saying() -> None:
    assert label("bits_per_byte") == "bits per byte"
    assert label("num_tokens") == "tokens"
