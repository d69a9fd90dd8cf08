"""Sweeps: many steps from one function.

A product of values in a fixed order, nothing more: a list of handles, each with its own address, that any other step
takes as one argument.
"""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from marin_core.errors import UsageError
from marin_core.steps import Step, StepFunction


def sweep(function: StepFunction, /, *, over: Mapping[str, Iterable[Any]], **fixed: Any) -> list[Step]:
    """One handle for each combination of values.

    Args:
        function: a step function.
        over: parameter -> its values. The last parameter varies fastest.
        fixed: arguments (and ``name``, ``version``…) that all handles share.

    Returns:
        The handles, in the order of `itertools.product`.

    Raises:
        UsageError: a parameter is both swept over and fixed, or the function has none of that name, or
            its values have no order.

    Example:
        >>> grid = sweep(train, over={"lr": [1e-3, 3e-3], "seed": range(2)}, data=tokens)
    """
    if not isinstance(function, StepFunction):
        raise UsageError(f"sweep of {function!r}: it is no step function; decorate it with @step")
    for name, values in over.items():
        where = f"sweep of {function.__name__}: {name!r}"
        if name in fixed:
            raise UsageError(f"{where} is both swept over and fixed")
        if isinstance(values, set | frozenset) or not isinstance(values, Iterable):
            what = "a set, which has no order" if isinstance(values, set | frozenset) else f"{values!r}, one value"
            raise UsageError(f"{where} is {what}; give a list of values")
    combinations = itertools.product(*(list(values) for values in over.values()))
    return [function(**fixed, **dict(zip(over, values, strict=True))) for values in combinations]
