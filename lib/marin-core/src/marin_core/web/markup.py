"""HTML built so that nothing foreign can become markup.

A report shows step names, values, logs and files that anyone may have written. The invariant: a plain ``str`` is
*text* and is escaped wherever it is put; only `Markup` is HTML, and only this module makes it out of other strings.
Forgetting to escape is therefore not a thing a page can do. The idea is MarkupSafe's, reduced to one function.
"""

import functools
import html
import re
from collections.abc import Iterable

type Child = str | int | float | Iterable[Child] | None
type Attribute = str | int | float | bool | None

_VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})
# C0 controls but tab and newline, DEL, and lone surrogates: HTML forbids the first, UTF-8 cannot write the last.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_SPECIAL = re.compile(r"[&<>\"'\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


class Markup(str):
    """A string that is HTML already. Anything else given to `element` is text."""

    __slots__ = ()


_TEXT = (Markup, str)


def escape(text: str) -> Markup:
    """The text as HTML, safe in an element and in a quoted attribute; what cannot be shown becomes U+FFFD."""
    return text if isinstance(text, Markup) else Markup(_escaped(text))


def _escaped(text: str) -> str:
    # Most text needs nothing, and a large page has a million pieces of it.
    if not _SPECIAL.search(text):
        return text
    return html.escape(_UNPRINTABLE.sub("\ufffd", text))


def element(tag: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """One element with its children.

    Args:
        tag: the element's name; a literal of ours, never data.
        *children: text (escaped), `Markup` (kept), numbers, None (nothing), or iterables of these.
        **attributes: ``class_`` and ``for_`` lose their final underscore, other underscores become hyphens; True gives
            a bare attribute, None and False none. SVG names that need capitals are written as they are.
    """
    opening = tag
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        name = _attribute_name(name)
        opening += f" {name}" if value is True else f' {name}="{_escaped(str(value))}"'
    if tag in _VOID:
        return Markup(f"<{opening}>")
    if len(children) == 1 and type(only := children[0]) in _TEXT:  # as in most elements of a large page
        return Markup(f"<{opening}>{only if type(only) is Markup else _escaped(only)}</{tag}>")  # type: ignore[arg-type]
    parts: list[str] = []
    _collect(children, parts)
    return Markup(f"<{opening}>{''.join(parts)}</{tag}>")


@functools.cache
def _attribute_name(keyword: str) -> str:
    return keyword.rstrip("_").replace("_", "-")


def fragment(*children: Child) -> Markup:
    """Children beside one another, escaped by the same rule, with no element around them."""
    parts: list[str] = []
    _collect(children, parts)
    return Markup("".join(parts))


def _collect(children: Iterable[Child], parts: list[str]) -> None:
    """Appends the children's HTML. Asks for the exact type first: a page of 10,000 steps has a million children."""
    for child in children:
        kind = type(child)
        if kind is Markup:
            parts.append(child)  # type: ignore[arg-type]
        elif child is None:
            continue
        elif kind is str or isinstance(child, str):
            parts.append(child if isinstance(child, Markup) else _escaped(child))  # type: ignore[arg-type]
        elif isinstance(child, int | float):
            parts.append(str(child))
        else:
            _collect(child, parts)


def note(*children: Child) -> Markup:
    """A remark in place of something that could not be shown."""
    return element("p", *children, class_="note")


def asset(text: str) -> Markup:
    """A style sheet or script of this package, verbatim.

    Raises:
        ValueError: the text would end the element that it is put into.
    """
    if "</" in text:
        raise ValueError("a style sheet or script of the page may not contain '</'")
    return Markup(text)
