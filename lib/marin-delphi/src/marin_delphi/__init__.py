"""Scaling recipes: from a compute budget to complete configurations, with every count's convention declared.

- `CompletedAdamHParams`   the Delphi recipe: budgets to candidates, and hyperparameters for any batch and token count.
- `isoflop_ladder`         the candidates of several budgets.
- `num_params`             parameters of an architecture, by convention.
- `flops_per_token`        FLOPs of a token, by convention.
"""

from marin_delphi.architecture import flops_per_token, num_params
from marin_delphi.ladder import isoflop_ladder
from marin_delphi.recipes import CompletedAdamHParams

__all__ = ["CompletedAdamHParams", "flops_per_token", "isoflop_ladder", "num_params"]
