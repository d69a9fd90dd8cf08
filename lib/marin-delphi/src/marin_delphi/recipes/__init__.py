"""Recipes: each file one frozen dataclass that maps a compute budget to complete configurations.

A recipe's coefficients are its fields, so that forking one is ``dataclasses.replace`` and two recipes differ exactly
where their fields do. `RECIPES` names those that the command line can plan with.
"""

from collections.abc import Callable

from marin_delphi.ladder import Recipe
from marin_delphi.recipes.completed_adamh import AdamHHyperparameters, CompletedAdamHParams

RECIPES: dict[str, Callable[[], Recipe]] = {"completed-adamh": CompletedAdamHParams}

__all__ = ["RECIPES", "AdamHHyperparameters", "CompletedAdamHParams"]
