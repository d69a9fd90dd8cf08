"""What a run shows: a bar where a body counts, its own words elsewhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core.progress import bar_text


@pytest.mark.parametrize("line", ["step 30/120  loss 4.3", "7 of 14 parts", "1,500/6,000 rows"])
def test_a_line_that_counts_gets_a_bar_of_its_share(line):
    bar, rest = bar_text(line).split(" ", 1)
    assert rest == line
    share = 0.25 if "of" not in line else 0.5
    assert bar.count("━") / len(bar) == share


@pytest.mark.parametrize("line", ["", "compiling", "9/8 is more than all", "0/0", "version 1.2"])
def test_any_other_line_stays_as_it_is(line):
    assert bar_text(line) == line


@given(st.text())
def test_no_line_breaks_the_display(line):
    assert bar_text(line).endswith(line)


def test_a_long_list_is_told_as_a_whole_and_many_changes_are_counted():
    from marin_core.reasons import flatten, recipe_changes

    def recipe(items: list[str], **others: int) -> dict:
        arguments = {"files": ("tuple", [("str", i) for i in items])}
        return {"function": "f", "version": None, "arguments": arguments | {k: ("int", v) for k, v in others.items()}}

    old, new = recipe([f"{i}.py" for i in range(1740)]), recipe([f"{i}.txt" for i in range(40)])
    (change,) = recipe_changes(old, new)
    assert change.startswith("files: 1740 items")
    assert "40 items" in change
    assert recipe_changes(old, old) == []
    assert len(flatten(recipe(["a", "b"]))) == 4
