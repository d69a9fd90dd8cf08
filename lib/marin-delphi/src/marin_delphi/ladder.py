"""Ladders: the configurations a recipe gives at a compute budget, and the choice of one among them.

A recipe maps a budget to candidates: shapes from narrow to wide, each with the tokens that spend the budget. Trained
together at several budgets they are an isoFLOP ladder (Hoffmann et al. 2022, approach 2), the data that a loss law
is fitted to. A target run is then one more candidate, chosen by the tokens that the law calls for.

Invariant: a `Candidate` holds only what cannot be recomputed (recipe, budget, shape, batch, steps, tokens); counts,
FLOPs and hyperparameters are derived from those at each look, so that no field can contradict another.
"""

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from marin_delphi.architecture import Architecture, ParamsConvention, flops_per_token, num_params
from marin_delphi.errors import BudgetError, SelectionError


class Recipe(Protocol):
    """What a scaling recipe offers: any frozen dataclass of this shape can be laddered, selected from and planned."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def name(self) -> str: ...

    @property
    def seq_len(self) -> int: ...

    def candidates(self, budget: float) -> "tuple[Candidate, ...]": ...

    def hyperparameters(self, *, batch_size: int, tokens: float) -> Any: ...

    def digest(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One configuration at one budget.

    Attributes:
        recipe: the recipe it came from.
        budget: compute budget, FLOPs of training.
        architecture: the shape.
        batch_size: sequences a step.
        steps: optimizer steps.
        tokens: tokens the run is charged with; ``steps`` may overrun them by less than one batch after `with_batch`.
    """

    recipe: Recipe
    budget: float
    architecture: Architecture
    batch_size: int
    steps: int
    tokens: int

    @property
    def tokens_exact(self) -> float:
        """Tokens that spend the budget to the last FLOP, before rounding to steps: ``T = C / (3 f)``."""
        return self.budget / flops_per_token(self.architecture, seq_len=self.recipe.seq_len)

    @property
    def hyperparameters(self) -> Any:
        """The recipe's hyperparameters at this batch size and `tokens_exact`."""
        return self.recipe.hyperparameters(batch_size=self.batch_size, tokens=self.tokens_exact)

    @property
    def flops(self) -> float:
        """Training FLOPs of the tokens: ``3 f tokens``, the figure a trainer logs."""
        return flops_per_token(self.architecture, seq_len=self.recipe.seq_len) * self.tokens

    @property
    def tokens_per_param(self) -> float:
        """Tokens over parameters as the recipe counts them."""
        return self.tokens / self.num_params(convention="recipe")

    def num_params(self, *, convention: ParamsConvention = "total") -> int:
        """Parameters under a declared convention. See: `marin_delphi.num_params`."""
        return num_params(self.architecture, convention=convention)

    def with_batch(self, batch_size: int) -> "Candidate":
        """The same run at another batch size: tokens stay, steps follow, hyperparameters are those of the new batch.

        Args:
            batch_size: sequences a step.

        Returns:
            A candidate with ``steps = ceil(tokens / (batch_size * seq_len))``.

        Raises:
            SelectionError: ``batch_size`` is below one.
        """
        if batch_size < 1:
            raise SelectionError(f"batch_size={batch_size} must be at least 1 sequence")
        steps = -(-self.tokens // (batch_size * self.recipe.seq_len))
        return dataclasses.replace(self, batch_size=batch_size, steps=steps)


def select(candidates: Iterable[Candidate], *, tokens_min: float) -> Candidate:
    """The candidate with the fewest tokens that has at least ``tokens_min``: the largest model still fed enough.

    Args:
        candidates: the candidates of one budget.
        tokens_min: tokens that the optimum calls for, such as Delphi's ``D*(C) = 0.04758 C^0.5684``.

    Returns:
        The candidate.

    Raises:
        SelectionError: none has that many tokens.
    """
    pool = tuple(candidates)
    fed = [c for c in pool if c.tokens >= tokens_min]
    if not fed:
        if not pool:
            raise SelectionError(f"tokens_min={tokens_min:.4g} has no candidate to choose from")
        most = max(pool, key=lambda c: c.tokens)
        raise SelectionError(
            f"tokens_min={tokens_min:.4g} exceeds every candidate at budget {most.budget:g}; the most tokens there are "
            f"{most.tokens:.4g}. Lower tokens_min or raise the budget"
        )
    return min(fed, key=lambda c: c.tokens)


def isoflop_ladder(recipe: Recipe, budgets: Iterable[float]) -> tuple[Candidate, ...]:
    """The candidates of every budget, in the order of the budgets and, within one, from narrow to wide.

    Args:
        recipe: the recipe.
        budgets: training FLOPs, each once.

    Returns:
        All candidates.

    Raises:
        BudgetError: no budget, a budget twice, one that is not positive and finite, or one without a candidate.

    See: Hoffmann et al. 2022 (arXiv 2203.15556), approach 2.
    """
    budgets = tuple(float(budget) for budget in budgets)
    if not budgets:
        raise BudgetError("budgets is empty; name at least one, such as 3e18")
    repeated = sorted({b for b in budgets if budgets.count(b) > 1})
    if repeated:
        raise BudgetError(f"budgets has {repeated[0]:g} more than once; each budget is laddered once")
    return tuple(candidate for budget in budgets for candidate in recipe.candidates(budget))


def check_budget(budget: float) -> float:
    """``budget`` as a float, or `BudgetError` if it is not a positive finite number of FLOPs."""
    if not (budget > 0 and math.isfinite(budget)):
        raise BudgetError(f"budget={budget} must be a positive, finite number of FLOPs, such as 3e18")
    return float(budget)
