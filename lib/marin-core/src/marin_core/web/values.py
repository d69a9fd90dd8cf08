"""A recorded value as HTML, whatever it is.

Values are JSON: scalars are written plainly, a list of objects becomes a table, an object of comparable numbers a bar
chart, other objects a list of names and values. Everything is bounded in depth, length and text, with the rest counted
in place, so that a step that returned a million numbers still has a page.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from marin_core.quantities import format_number, format_quantity, is_number
from marin_core.web.charts import bar_chart, drawable
from marin_core.web.markup import Markup, element, note

_MAX_TEXT = 4000
_MAX_ITEMS = 60
_MAX_COLUMNS = 12
_MAX_DEPTH = 6
_MAX_BARS = 24
_BAR_RATIO = 1000.0
"""Numbers further apart than this are not one quantity, and the smallest bar would be invisible."""


def render_value(value: Any, *, name: str = "", links: Mapping[str, str] | None = None, depth: int = 0) -> Markup:
    """One value.

    Args:
        value: anything that JSON holds; anything else is shown by its ``repr``.
        name: the name it was recorded under, which states the unit of a number.
        links: address -> fragment, so that ``{"step": address}`` links to that step.
        depth: how deep the value is nested already.
    """
    links = links or {}
    if isinstance(value, str):
        return _text(value)
    if value is None or isinstance(value, bool):
        return element("code", json.dumps(value))
    if isinstance(value, int | float):
        return element("span", format_quantity(name, value), class_="number", title=_exact(value))
    if isinstance(value, Mapping):
        return _object(value, name, links, depth)
    if isinstance(value, list | tuple):
        return _list(value, name, links, depth)
    return _text(repr(value))


def comparable(value: Any) -> dict[str, float] | None:
    """The numbers of an object that a bar chart can compare: two or more, all finite, of like magnitude; else None."""
    if not isinstance(value, Mapping) or not 2 <= len(value) <= _MAX_BARS:
        return None
    numbers = {str(k): _float(v) for k, v in value.items() if is_number(v)}
    if len(numbers) < len(value) or not all(map(drawable, numbers.values())):
        return None
    sizes = [abs(v) for v in numbers.values() if v]
    if not sizes or max(sizes) > _BAR_RATIO * min(sizes):
        return None
    return numbers


def _float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


def _exact(number: float) -> str | None:
    """The number in full, when it is short enough to be worth a tooltip."""
    return repr(number) if isinstance(number, float) or abs(number) < 10**30 else None


def _text(value: str) -> Markup:
    shown = value if len(value) <= _MAX_TEXT else value[:_MAX_TEXT]
    more = element("span", f" … {len(value) - _MAX_TEXT:,} more characters", class_="more") if shown != value else None
    if "\n" in shown:
        return element("pre", shown, more)
    return element("span", shown, more, class_="text")


def _object(value: Mapping[Any, Any], name: str, links: Mapping[str, str], depth: int) -> Markup:
    if set(value) == {"step"} and isinstance(value["step"], str):
        address = value["step"]
        return element("a", address, href=links[address]) if address in links else element("code", address)
    if not value:
        return element("code", "{}")
    if depth >= _MAX_DEPTH:
        return _text(_compact(value))
    # The outermost object is a record of unlike things; one inside it is often one quantity under several names.
    numbers = comparable(value) if depth else None
    if numbers:
        return bar_chart(numbers, name=name)
    items = list(value.items())
    rows = [
        (element("dt", str(k)), element("dd", render_value(v, name=str(k), links=links, depth=depth + 1)))
        for k, v in items[:_MAX_ITEMS]
    ]
    return element("dl", rows, _rest(len(items), element_name="dd"), class_="fields")


def _list(value: Sequence[Any], name: str, links: Mapping[str, str], depth: int) -> Markup:
    if not value:
        return element("code", "[]")
    if depth >= _MAX_DEPTH:
        return _text(_compact(value))
    if len(value) > 1 and all(isinstance(item, Mapping) and item for item in value):
        return _table(value, links, depth)
    if all(is_number(item) or isinstance(item, bool) or item is None for item in value):
        shown = ", ".join(format_number(i) if is_number(i) else json.dumps(i) for i in value[:_MAX_ITEMS])
        return element("span", shown, _rest(len(value), element_name="span"), class_="number")
    items = [element("li", render_value(v, name=name, links=links, depth=depth + 1)) for v in value[:_MAX_ITEMS]]
    return element("ul", items, _rest(len(value), element_name="li"), class_="items")


def _table(rows: Sequence[Mapping[str, Any]], links: Mapping[str, str], depth: int) -> Markup:
    """A list of objects: their keys, in order of appearance, are the columns."""
    columns = list(dict.fromkeys(key for row in rows[:_MAX_ITEMS] for key in row))
    shown = columns[:_MAX_COLUMNS]
    numeric = {c for c in shown if all(is_number(row[c]) for row in rows[:_MAX_ITEMS] if c in row)}
    head = element("tr", [element("th", c, scope="col", class_="number" if c in numeric else None) for c in shown])
    body = [
        element(
            "tr",
            [
                element(
                    "td",
                    render_value(row[c], name=c, links=links, depth=depth + 1) if c in row else None,
                    class_="number" if c in numeric else None,
                )
                for c in shown
            ],
        )
        for row in rows[:_MAX_ITEMS]
    ]
    left_out = f"{len(columns) - len(shown)} more columns" if len(columns) > len(shown) else None
    table = element("table", element("thead", head), element("tbody", body), class_="data")
    rest = note("; ".join(filter(None, [_more(len(rows)), left_out]))) if _more(len(rows)) or left_out else None
    return element("div", table, rest, class_="scroll", tabindex=0)


def _more(count: int) -> str | None:
    return f"{count - _MAX_ITEMS:,} more of {count:,}" if count > _MAX_ITEMS else None


def _rest(count: int, *, element_name: str) -> Markup | None:
    more = _more(count)
    return element(element_name, f" … {more}", class_="more") if more else None


def _compact(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=repr)
    except (ValueError, RecursionError):
        return "too deeply nested to show"
