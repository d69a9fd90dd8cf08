"""Nothing foreign becomes markup."""

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core.web.markup import Markup, asset, element, escape, fragment

ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=()))


class Reader(HTMLParser):
    """What a parser that shares no code with the writer makes of a piece of HTML."""

    def __init__(self, markup: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def displayable(text: str) -> str:
    return "".join(
        "\ufffd" if (ord(c) < 32 and c not in "\t\n") or 0xD800 <= ord(c) < 0xE000 or c == "\x7f" else c for c in text
    )


@given(ANY_TEXT, ANY_TEXT)
def test_any_text_comes_back_as_the_same_text_and_makes_no_element(text: str, attribute: str) -> None:
    markup = element("p", text, title=attribute)
    read = Reader(markup)
    assert read.elements == [("p", {"title": displayable(attribute)})]
    assert read.text == displayable(text)
    markup.encode("utf-8")


def test_markup_is_kept_and_text_beside_it_is_escaped() -> None:
    assert element("p", element("b", "a<b"), "&") == "<p><b>a&lt;b</b>&amp;</p>"


def test_joined_markup_is_text_again() -> None:
    joined = Markup("<b>") + "x"
    assert escape(joined) == "&lt;b&gt;x"


def test_attributes_lose_the_final_underscore_and_gain_hyphens() -> None:
    assert element("a", class_="x", aria_hidden="true", hidden=True, title=None, data_n=3) == (
        '<a class="x" aria-hidden="true" hidden data-n="3"></a>'
    )


def test_children_may_be_nested_numbers_or_none() -> None:
    assert fragment(["a", ("b", [1, None])], 2.5) == "ab12.5"


def test_a_script_that_would_end_its_element_is_refused() -> None:
    with pytest.raises(ValueError, match="may not contain"):
        asset("let a = '</script>'")
