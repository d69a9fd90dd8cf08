"""Sweeps: many steps from one function.

A product of values in a fixed order, nothing more: a list of handles, each with its own address, that any other step
takes as one argument.
"""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from marin_core.errors import UsageError
from marin_core.steps import Step, StepFunction


def sweep(function: StepFunction, *, over: Mapping[str, Iterable[Any]], **fixed: Any) -> list[Step]:
    """One handle for each combination of values.

    Args:
        function: a step function.
        over: parameter -> its values. The last parameter varies fastest.
        fixed: arguments (and ``name``, ``version``…) that all handles share.

    Returns:
        The handles, in the order of `itertools.product`.

    Raises:
        UsageError: a parameter is both swept over and fixed, or the function has none of that name.

    Example:
        >>> grid = sweep(train, over={"lr": [1e-3, 3e-3], "seed": range(2)}, data=tokens)
    """
    for name in over:
        if name in fixed:
            raise UsageError(f"sweep of {function.__name__}: {name!r} is both swept over and fixed")
    combinations = itertools.product(*(list(values) for values in over.values()))
    return [function(**fixed, **dict(zip(over, values, strict=True))) for values in combinations]
