"""The frame of the server's pages: the bar at the top, headings, tables of facts, and steps from page to page."""

from collections.abc import Iterable, Sequence

from marin_core.quantities import format_count
from marin_core.records import Digests
from marin_core.web.document import document
from marin_core.web.links import DIFF, RUNS, STEPS, search_url
from marin_core.web.markup import Child, Markup, element, fragment, note

_PLACES = (("Runs", RUNS), ("Steps", STEPS), ("Diff", DIFF))


def site_bar(prefix: str, *, here: str = "") -> Markup:
    """Links to the three listings, and which prefix this is."""
    links = [element("a", title, href=url, aria_current="page" if url == here else None) for title, url in _PLACES]
    return element("div", links, element("span", prefix, class_="prefix", title=prefix), class_="site")


def page(title: str, *children: Child, prefix: str, here: str = "", heading: Child = None) -> Markup:
    """One page.

    Args:
        title: in the browser's tab, and as its heading where there is no other.
        *children: the page's sections.
        prefix: what is being read, for the bar.
        here: the listing that this is.
        heading: stands below the bar.
    """
    header = element("header", element("h1", title) if heading is None else heading)
    return document(f"{title} · marin", site_bar(prefix, here=here), header, element("main", *children), served=True)


def remark(title: str, *said: Child, prefix: str) -> Markup:
    """A page that only says why there is no other."""
    return page(title, note(*said), prefix=prefix)


def section(title: str, *children: Child) -> Markup:
    """A part of a page under a heading."""
    return element("section", element("h2", title), *children)


def fields(rows: Iterable[tuple[str, Child]]) -> Markup:
    """Names and what they are; a row whose body is None or empty is left out."""
    kept = [(element("dt", name), element("dd", body)) for name, body in rows if body is not None and body != ""]
    return element("dl", kept, class_="fields")


def table(
    titles: Sequence[str], rows: Iterable[Markup], *, numbers: Sequence[str] = (), is_wide: bool = False
) -> Markup:
    """A table with headings, of which `numbers` stand above columns of numbers; a wide one fills the page."""
    head = [element("th", t, scope="col", class_="number" if t in numbers else None) for t in titles]
    body = element(
        "table",
        element("thead", element("tr", head)),
        element("tbody", rows),
        class_="data listing" if is_wide else "data",
    )
    return element("div", body, class_="scroll", tabindex=0)


def state(word: str) -> Markup:
    """A status with its dot."""
    known = word if word.isascii() and word.isalpha() else "unknown"
    return element("span", word, class_=f"state outcome-{known}")


def digests(found: Digests, *, output: str | None = None) -> Markup:
    """All digests, each short and copied whole by a click."""
    named = [
        ("recipe", found.recipe), ("code", found.code), ("environment", found.environment), ("inputs", found.inputs),
        ("output", output or ""),
    ]  # fmt: skip
    buttons = [
        element(
            "span",
            f"{name} ",
            element("button", full[:12], type="button", class_="digest", data_full=full, title=f"copy {full}"),
        )
        for name, full in named
        if full
    ]
    return element("span", buttons, class_="labelled")


def search(place: str, *, query: str, what: str, choices: Sequence[str] = (), chosen: str = "") -> Markup:
    """A field that asks the same listing again; with `choices`, also for those in one state alone."""
    field = element("input", type="search", name="q", value=query, placeholder=what, aria_label=f"Filter by {what}")
    options = [element("option", word, value=word, selected=word == chosen) for word in choices]
    states = element("select", element("option", "any state", value=""), options, name="state", aria_label="State")
    button = element("button", "Filter")
    clear = element("a", "clear", href=place) if query or chosen else None
    return element(
        "form", field, states if choices else None, button, clear, action=place, method="get", class_="search"
    )


def pager(place: str, *, query: str, number: int, size: int, total: int, state: str = "") -> Markup | None:
    """Which part of a listing this is, with links to the parts beside it; None where it is all on one page."""
    last = max(1, -(-total // size))
    if last == 1:
        return None
    words = ("newer", "older") if place == RUNS else ("previous", "next")
    before, after = (
        element("a", word, href=search_url(place, query=query, state=state, number=at))
        for word, at in zip(words, (number - 1, number + 1), strict=True)
    )
    return element(
        "p",
        before if number > 1 else None,
        element("span", f"page {number:,} of {last:,}"),
        after if number < last else None,
        class_="pager",
    )


def count(total: int, of: int, noun: str) -> Markup:
    """How many of how many are listed."""
    return note(format_count(total, noun) if total == of else f"{total:,} of {format_count(of, noun)}")


def joined(links: Sequence[Markup], *, most: int) -> Markup | None:
    """Some links beside one another, with the rest counted; None when there are none."""
    if not links:
        return None
    more = f" and {len(links) - most:,} more" if len(links) > most else None
    return element("span", fragment(links[:most]), more, class_="links")
