"""Ladders over several budgets."""

import pytest

from marin_delphi import CompletedAdamHParams, isoflop_ladder
from marin_delphi.errors import BudgetError, SelectionError
from marin_delphi.ladder import select

RECIPE = CompletedAdamHParams()


def test_a_ladder_is_the_candidates_of_its_budgets_in_order() -> None:
    ladder = isoflop_ladder(RECIPE, budgets=[9e18, 3e18])
    assert ladder == RECIPE.candidates(9e18) + RECIPE.candidates(3e18)


def test_an_empty_ladder_is_refused() -> None:
    with pytest.raises(BudgetError, match="budgets is empty"):
        isoflop_ladder(RECIPE, [])


def test_a_budget_named_twice_is_refused() -> None:
    with pytest.raises(BudgetError, match=r"budgets has 3e\+18 more than once"):
        isoflop_ladder(RECIPE, [3e18, 9e18, 3e18])


def test_selection_from_nothing_is_refused() -> None:
    with pytest.raises(SelectionError, match="no candidate to choose from"):
        select([], tokens_min=1e9)


def test_a_batch_of_nothing_is_refused() -> None:
    with pytest.raises(SelectionError, match="batch_size=0 must be at least 1"):
        RECIPE.candidates(3e18)[0].with_batch(0)
