"""The exception tree of marin-delphi; every message names the field, the value and the fix.

MarinDelphiError
├── RecipeError       a recipe or architecture whose coefficients cannot describe a run (exit 2)
├── BudgetError       a compute budget that is no number, or at which the recipe has no configuration (exit 2)
└── SelectionError    no candidate satisfies what was asked of it (exit 2)
"""


class MarinDelphiError(Exception):
    """Base of every error that marin-delphi raises on purpose."""

    exit_code = 1


class RecipeError(MarinDelphiError, ValueError):
    """A recipe or architecture that cannot describe a run."""

    exit_code = 2


class BudgetError(MarinDelphiError, ValueError):
    """A compute budget that is not a positive number, or at which a recipe has no configuration."""

    exit_code = 2


class SelectionError(MarinDelphiError, ValueError):
    """No candidate satisfies the selection, or an override of a candidate is out of range."""

    exit_code = 2
