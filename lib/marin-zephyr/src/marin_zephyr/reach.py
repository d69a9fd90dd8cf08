"""The reach of expressions: whether each row's value depends on that row alone, so that batches do not matter.

``col("n").mean()`` or ``.shift()`` would be taken over whatever a batch happens to hold, and give another answer for
other batches. So they are refused where they are written. An expression is walked as the tree that Polars serialises:
*shapes* that combine values of one row lead on to their operands, functions that look beyond the row are known by
name, and so is what changes the number of rows. What is not known here is let through: a later Polars may have it.

A function of the caller (``map_batches`` of a column) is taken at its word: with ``is_elementwise=True`` it may pass.

See: ``Expr.meta.is_row_separable`` of Polars, which tells it of a tree's top alone, and of no tree with a wildcard.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from marin_zephyr.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

_BYTES = re.compile(r"\[[0-9,]+\]")  # a literal's data, or a pickled function: large, and never needed
_SHOWN = 80

# Shapes whose value depends on their row's operands alone -> where these stand.
_OPERANDS = {
    "Alias": (0,),
    "KeepName": (),
    "RenameAlias": ("expr",),
    "Cast": ("expr",),
    "BinaryExpr": ("left", "right"),
    "Ternary": ("predicate", "truthy", "falsy"),
    "StructEval": ("expr", "evaluation"),
    "Function": ("input",),
    "AnonymousFunction": ("input",),
    "Eval": ("expr",),  # what is done within a list is the list's own affair
}
_ACROSS_SHAPES = frozenset(("Agg", "Over", "Rolling", "Sort", "SortBy", "Gather", "Slice", "Filter", "Explode", "Len"))

# Functions that look at other rows, or give another number of them.
# fmt: off
_ACROSS = frozenset(
    (
        "Append", "ApproxNUnique", "ApproxQuantile", "ArgMax", "ArgMin", "ArgSort", "ArgUnique", "ArgWhere",
        "Correlation", "CumCount", "CumMax", "CumMin", "CumProd", "CumSum", "Diff", "DropNans", "DropNulls",
        "Entropy", "EwmMean", "EwmMeanBy", "EwmStd", "EwmSum", "EwmSumBy", "EwmVar", "ExtendConstant",
        "GatherEvery", "Hist", "IndexOf", "Interpolate", "InterpolateBy", "Kurtosis", "LowerBound", "MaxBy",
        "MinBy", "Mode", "NullCount", "PctChange", "PeakMax", "PeakMin", "Product", "QCut", "Quantile", "RLE",
        "RLEID", "Random", "Rank", "Repeat", "Reshape", "Reverse", "RollingExpr", "RollingExprBy",
        "SearchSorted", "Shift", "ShiftAndFill", "Skew", "TopK", "TopKBy", "Unique", "UniqueCounts",
        "UpperBound", "ValueCounts", "ArrayExpr.Explode", "Bitwise.And", "Bitwise.Or", "Bitwise.Xor",
        "Boolean.All", "Boolean.Any", "Boolean.HasNulls", "Boolean.IsDuplicated", "Boolean.IsEmpty",
        "Boolean.IsFirstDistinct", "Boolean.IsLastDistinct", "Boolean.IsSorted", "Boolean.IsUnique",
        "FillNullWithStrategy.Backward", "FillNullWithStrategy.Forward", "FillNullWithStrategy.Max",
        "FillNullWithStrategy.Mean", "FillNullWithStrategy.Min", "Range.DateRange", "Range.DatetimeRange",
        "Range.IntRange", "Range.LinearSpace", "Range.TimeRange", "StringExpr.ConcatVertical",
    )
)
# fmt: on

_FIX = (
    "an expression sees one batch at a time. For the whole dataset use group_by(...).agg(...), distinct or sort; for "
    "each batch, map_batches"
)


def check_rowwise(operation: str, exprs: Sequence[pl.Expr]) -> None:
    """Refuses expressions that look beyond the row.

    Args:
        operation: whose argument they are, for the error.
        exprs: the expressions.

    Raises:
        UsageError: names the expression, and what in it looks at other rows.
    """
    for expr in exprs:
        found = across_rows(expr)
        if found is not None:
            shown = str(expr)
            shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
            raise UsageError(f"{operation}: {shown}: {found}")


def across_rows(expr: pl.Expr) -> str | None:
    """Why an expression looks beyond the row, and what to do; None if it does not, or if that cannot be told."""
    try:
        tree = json.loads(_BYTES.sub("[]", expr.meta.serialize(format="json")))
    except (ValueError, RecursionError):
        return None
    if _shape(tree)[0] == "Literal" and "Series" in tree["Literal"]:
        return "a Series has a value for each row of one batch; use join, or from_arrow"
    return next(filter(None, map(_why, _nodes(tree))), None)


def _nodes(tree: Any) -> Iterator[tuple[str, Any]]:
    """The nodes of a tree that are evaluated for rows, the outer first, each with its body."""
    stack = [tree]
    while stack:
        shape, body = _shape(stack.pop())
        if shape == "Agg" and not _reads(body):  # of a literal: is_in(pl.Series(...).implode())
            continue
        yield shape, body
        if shape == "KeepName":
            stack.append(body)
        for where in _OPERANDS.get(shape, ()):
            operand = body[where]
            stack += operand if isinstance(operand, list) else [operand]


def _why(node: tuple[str, Any]) -> str | None:
    shape, body = node
    if shape in _ACROSS_SHAPES:
        inner = _shape(body)[0] if shape == "Agg" else shape
        return f"{inner} looks at other rows, and {_FIX}"
    if shape == "Eval" and "Cumulative" in body["variant"]:
        return f"cumulative_eval looks at other rows, and {_FIX}"
    if shape == "AnonymousFunction" and "ROW_SEPARABLE" not in body["options"]["flags"]:
        return (
            f"its function may look at other rows, and {_FIX}. If each value depends on its own row alone, pass "
            "is_elementwise=True"
        )
    if shape != "Function":
        return None
    outer, inner = _shape(body["function"])
    qualified = f"{outer}.{_shape(inner)[0]}"
    if qualified == "StringExpr.Strptime" and inner["Strptime"][1]["format"] is None:
        return "the format is told from the first values of a batch, and may be another in the next; pass format="
    if outer in _ACROSS or qualified in _ACROSS:
        return f"{outer if outer in _ACROSS else qualified.partition('.')[2]} looks at other rows, and {_FIX}"
    return None


def _shape(node: Any) -> tuple[str, Any]:
    """``{"Cast": body}`` as its name and body, a bare ``"Len"`` with None."""
    if isinstance(node, dict) and len(node) == 1:
        return next(iter(node.items()))
    return (node, None) if isinstance(node, str) else ("", None)


def _reads(body: Any) -> bool:
    """Whether anything in a tree is a column."""
    return any(f'"{name}"' in json.dumps(body) for name in ("Column", "Selector", "Len"))
