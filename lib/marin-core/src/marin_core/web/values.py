"""A recorded value as HTML, whatever it is.

Values are JSON: scalars are written plainly, a list of objects, or an object of objects of the same fields, becomes a
table, an object of numbers of one quantity a bar chart, other objects a list of names and values. Everything is bounded
in depth, length and text, with the rest counted in place, so that a step that returned a million numbers still has a
page.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from marin_core.quantities import format_quantity, is_number
from marin_core.web.charts import bar_chart, drawable
from marin_core.web.markup import Markup, element, fragment, note
from marin_core.web.tables import ABSENT, data_table

_MAX_TEXT = 4000
_MAX_ITEMS = 60
_MAX_INLINE = 12
"""Scalars of a list that are written on one line."""
_MAX_WORD = 32
"""The longest text that is set as a figure, or beside others on one line."""
_MAX_COLUMNS = 12
_MAX_DEPTH = 6
_MAX_BARS = 24
_BAR_RATIO = 1000.0
"""Numbers further apart than this are not one quantity, and the smallest bar would be invisible."""
_QUANTITY = re.compile(
    r"(?<![a-z])(per|loss|losses|accuracy|accuracies|perplexity|ppl|score|scores|error|errors|rate|rates|ratio|ratios|"
    r"share|shares|fraction|percent|precision|recall|f1|auc|bleu|rouge|bits|bytes|flops|tokens|documents|rows|examples|"
    r"words|count|counts|num|number|size|sizes|seconds|time|times|throughput|memory|cost|costs|price|prices|weights)"
    r"(?![a-z])"
)
"""What the name of one quantity under several names has in it: ``bits_per_byte``, ``num_tokens``, ``eval_loss``."""
_SETTINGS = frozenset({"lr", "learning_rate", "seed", "step", "steps", "epoch", "epochs", "depth", "width", "layers"})
"""Names of what was varied, never of what one quantity was measured of."""


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


def figures(value: Any, *, name: str = "") -> list[tuple[str, Any]]:
    """The scalars of a value, numbers before words; floats first, since what was measured interests before counts."""
    if value is None:
        return []
    named = [(str(k), v) for k, v in value.items()] if isinstance(value, Mapping) else [(name, value)]
    scalars = [(k, v) for k, v in named if is_number(v) or isinstance(v, bool)]
    words = [(k, v) for k, v in named if isinstance(v, str) and _is_word(v)]
    return [*sorted(scalars, key=lambda pair: not isinstance(pair[1], float)), *words]


def in_words(name: str, value: Any) -> str:
    """A scalar as text."""
    return format_quantity(name, value) if is_number(value) or isinstance(value, bool) else str(value)


def comparable(value: Any, *, name: str) -> dict[str, float] | None:
    """The numbers of an object that a bar chart can compare: two or more, all finite, of like magnitude, recorded under
    the name of one quantity and called by what it was measured of; else None."""
    if not isinstance(value, Mapping) or not 2 <= len(value) <= _MAX_BARS or not _QUANTITY.search(name.lower()):
        return None
    if any(str(k).lower() in _SETTINGS or _QUANTITY.search(str(k).lower()) for k in value):
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
    numbers = comparable(value, name=name)
    if numbers:
        return bar_chart(numbers, name="" if depth else name)
    items = list(value.items())
    if _are_alike(value.values()):
        heads = [element("th", str(k), scope="row") for k, _ in items[:_MAX_ITEMS]]
        return _table([v for _, v in items], links, depth, first=heads)
    rows = [
        (element("dt", str(k)), element("dd", render_value(v, name=str(k), links=links, depth=depth + 1)))
        for k, v in items[:_MAX_ITEMS]
    ]
    return element("dl", rows, _rest(len(items), element_name="dd"), class_="fields")


def _are_alike(values: Iterable[Any]) -> bool:
    """Two or more objects of the same fields, all scalar: the rows of a table."""
    found = list(values)
    return (
        len(found) > 1
        and all(isinstance(v, Mapping) and v and v.keys() == found[0].keys() and set(v) != {"step"} for v in found)
        and not any(isinstance(inner, Mapping | list | tuple) for v in found for inner in v.values())
    )


def _list(value: Sequence[Any], name: str, links: Mapping[str, str], depth: int) -> Markup:
    if not value:
        return element("code", "[]")
    if depth >= _MAX_DEPTH:
        return _text(_compact(value))
    if len(value) > 1 and all(isinstance(item, Mapping) and item for item in value):
        return _table(value, links, depth)
    if all(is_number(v) or isinstance(v, bool) or v is None or (isinstance(v, str) and _is_word(v)) for v in value):
        shown = ", ".join(json.dumps(v) if v is None else in_words(name, v) for v in value[:_MAX_INLINE])
        more = f" … {len(value) - _MAX_INLINE:,} more of {len(value):,}" if len(value) > _MAX_INLINE else None
        return element("span", shown, element("span", more, class_="more") if more else None, class_="inline")
    items = [element("li", render_value(v, name=name, links=links, depth=depth + 1)) for v in value[:_MAX_ITEMS]]
    return element("ul", items, _rest(len(value), element_name="li"), class_="items")


def _is_word(text: str) -> bool:
    return 0 < len(text) <= _MAX_WORD and text.isprintable()


def _table(
    rows: Sequence[Mapping[str, Any]], links: Mapping[str, str], depth: int, *, first: Sequence[Markup] = ()
) -> Markup:
    """A list of objects: their keys, in order of appearance, are the columns."""
    names = list(dict.fromkeys(key for row in rows[:_MAX_ITEMS] for key in row))
    columns = {c: [row.get(c, ABSENT) for row in rows[:_MAX_ITEMS]] for c in names[:_MAX_COLUMNS]}
    table = data_table(
        columns, lambda name, value: render_value(value, name=name, links=links, depth=depth + 1), first=first
    )
    left_out = f"{len(names) - _MAX_COLUMNS} more columns" if len(names) > _MAX_COLUMNS else None
    rest = "; ".join(filter(None, [_more(len(rows)), left_out]))
    return fragment(table, note(rest) if rest else None)


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
