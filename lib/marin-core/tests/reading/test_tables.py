"""Columns of text: whole in a pipe, whole or cut to fit on a terminal."""

from hypothesis import given
from hypothesis import strategies as st

from marin_core.reading.tables import align

ROWS = [("train/0123", "failed", "ValueError: the loss is not finite"), ("a", "committed", "")]


def test_columns_are_as_wide_as_they_need_and_nothing_trails() -> None:
    assert align(ROWS) == ["train/0123  failed     ValueError: the loss is not finite", "a           committed"]
    assert align([("x", "1", ""), ("y", "200", "")], right=frozenset({1})) == ["x    1", "y  200"]
    assert align([]) == []


def test_the_last_column_gives_way_to_the_terminal() -> None:
    assert align(ROWS, width=40)[0] == "train/0123  failed     ValueError: th..."


def test_a_terminal_too_narrow_for_the_columns_gets_the_words_on_a_line_of_their_own() -> None:
    assert align(ROWS, width=24)[:2] == ["train/0123  failed", "  ValueError: the los..."]


@given(st.lists(st.tuples(st.text(max_size=8), st.text(max_size=40)), max_size=5), st.integers(30, 80))
def test_a_row_is_one_line_whatever_its_cells_hold(rows: list[tuple[str, str]], width: int) -> None:
    lines = align(rows, width=width)
    assert len(lines) == len(rows)
    assert all(len(line) <= width and "\n" not in line for line in lines)
