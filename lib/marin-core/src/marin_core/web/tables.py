"""A table of records: a row each in the order they were recorded, with the numbers of a column under one another.

Numbers of like size are written with equally many decimals, so that a column reads as a scale; each cell carries its
exact number, by which the page's script sorts. Without script the table stands as it was recorded.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from marin_core.quantities import format_quantity, is_number, label
from marin_core.web.markup import Child, Markup, element

ABSENT: Any = object()
"""Stands in a column where a row has no such field."""
_SORTABLE_FROM = 3
_LIKE = 100.0
"""Numbers of a column further apart than this are written each by itself."""


def data_table(
    columns: Mapping[str, Sequence[Any]],
    render: Callable[[str, Any], Child],
    *,
    first: Sequence[Markup] = (),
    corner: str = "",
) -> Markup:
    """Columns of equal length as a table.

    Args:
        columns: name -> a value for each row, or `ABSENT`; a `Markup` is shown as it is.
        render: draws a value that is no number, given its column's name.
        first: a ``<th>`` or ``<td>`` for each row, which stands before the columns.
        corner: the heading above `first`.
    """
    length = max([len(first), *(len(cells) for cells in columns.values())], default=0)
    numeric = {name: _is_numeric(cells) for name, cells in columns.items()}
    head = [element("th", corner, scope="col")] if first else []
    head += [
        element("th", label(name), scope="col", class_="number" if numeric[name] else None, title=_title(name))
        for name in columns
    ]
    drawn = [_cells(name, cells, render, is_numeric=numeric[name]) for name, cells in columns.items()]
    rows = [element("tr", first[i] if first else None, [cells[i] for cells in drawn]) for i in range(length)]
    table = element(
        "table",
        element("thead", element("tr", head)),
        element("tbody", rows),
        class_="data sortable" if length >= _SORTABLE_FROM else "data",
    )
    return element("div", table, class_="scroll", tabindex=0)


def align(name: str, numbers: Sequence[float]) -> list[str]:
    """Numbers of one column as text, with equally many decimals where they are of like size and of no unit."""
    texts = [format_quantity(name, n) for n in numbers]
    plain = [t.replace(",", "").removeprefix("-") for t in texts]
    sizes = [abs(n) for n in numbers if n]
    if not all(t.replace(".", "", 1).isdecimal() for t in plain) or (sizes and max(sizes) > _LIKE * min(sizes)):
        return texts
    decimals = max((len(t.partition(".")[2]) for t in plain), default=0)
    return [f"{n:,.{decimals}f}" for n in numbers] if decimals else texts


def _title(name: str) -> str | None:
    return name if label(name) != name else None


def _is_numeric(cells: Sequence[Any]) -> bool:
    there = [c for c in cells if c is not ABSENT and c is not None]
    return bool(there) and all(map(is_number, there))


def _cells(name: str, cells: Sequence[Any], render: Callable[[str, Any], Child], *, is_numeric: bool) -> list[Markup]:
    if not is_numeric:
        return [element("td", None if c is ABSENT else c if isinstance(c, Markup) else render(name, c)) for c in cells]
    texts = iter(align(name, [c for c in cells if is_number(c)]))
    return [
        element("td", next(texts), class_="number", data_value=_exact(c))
        if is_number(c)
        else element("td", None if c is ABSENT else "–", class_="number")
        for c in cells
    ]


def _exact(number: float) -> str | None:
    """The number as a script reads it; an integer beyond the floats stays where it is."""
    return repr(number) if isinstance(number, float) or abs(number) < 10**300 else None
