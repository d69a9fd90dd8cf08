"""The document around a page: head, style, script, and a policy under which shown data cannot act.

A page carries its one style sheet and its scripts inside it, and the policy admits exactly those, by their hashes: no
other script runs, whatever a step's name, value or log may hold. A page that stands alone (`marin report`) states the
policy itself and may reach no network at all; one that a server sends has it in a header (`policy`), and may load
pictures from that server and ask it for news.
"""

import base64
import functools
import hashlib

from marin_core.web.markup import Child, Markup, asset, element, fragment

_STYLE = "page.css"
_ALONE = ("page.js",)
_SERVED = ("page.js", "live.js")


def document(title: str, *children: Child, served: bool = False) -> Markup:
    """A whole page.

    Args:
        title: for the browser's tab.
        *children: what the body holds; text is escaped.
        served: the page comes from the server, whose header states the policy, and keeps itself up to date.
    """
    head = element(
        "head",
        element("meta", charset="utf-8"),
        None if served else element("meta", http_equiv="Content-Security-Policy", content=policy(served=False)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="generator", content="marin serve" if served else "marin report"),
        element("link", rel="icon", href="data:,") if served else None,
        element("title", title),
        element("style", _asset(_STYLE)),
    )
    scripts = [element("script", _asset(name)) for name in (_SERVED if served else _ALONE)]
    body = element("body", *children, scripts, class_="served" if served else None)
    return fragment(Markup("<!doctype html>\n"), element("html", head, body, lang="en"), "\n")


@functools.cache
def policy(*, served: bool) -> str:
    """The content security policy of a page. See: Content Security Policy Level 3, W3C."""
    scripts = " ".join(_hash(_asset(name)) for name in (_SERVED if served else _ALONE))
    sources = f"default-src 'none'; style-src {_hash(_asset(_STYLE))}; script-src {scripts}; base-uri 'none'"
    if not served:
        return f"{sources}; img-src data:"
    return f"{sources}; img-src 'self' data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'"


@functools.cache
def _asset(name: str) -> Markup:
    from importlib import resources

    return asset(resources.files("marin_core.web").joinpath(name).read_text(encoding="utf-8"))


def _hash(text: str) -> str:
    """A source expression that admits exactly this text."""
    digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
    return f"'sha256-{digest}'"
