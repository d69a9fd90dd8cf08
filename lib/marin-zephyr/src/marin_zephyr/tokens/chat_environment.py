"""The Jinja environment of chat templates (`chat_templates`): sandboxed, and without a clock or chance.

This module alone imports Jinja, and is itself imported when the first template is compiled."""

import json
from typing import Any, NoReturn

from jinja2 import TemplateError, Undefined, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from marin_zephyr.tokens.marked import RESERVED

OPEN, CLOSE = RESERVED[:2]
"""What a ``{% generation %}`` block writes before and after its body."""

FILE_NAME = "<template>"
"""What Jinja calls the file of a template that was made of a string."""


class Refusal(TemplateError):  # noqa: N818  a verdict on a conversation, not a failure
    """The template called ``raise_exception``."""


def make_environment() -> ImmutableSandboxedEnvironment:
    """An environment that offers what Hugging Face offers to chat templates, but for ``strftime_now``."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"], finalize=_written
    )
    known: dict[str, Any] = environment.globals  # pyrefly: ignore  of the types of the ones that Jinja puts there
    known["raise_exception"] = _raise_exception
    del known["lipsum"]
    environment.filters["tojson"] = _to_json
    del environment.filters["random"]
    return environment


def marks_turns(source: str) -> bool:
    """Whether a template has a ``{% generation %}`` block."""
    return any(OPEN in data.data for data in make_environment().parse(source).find_all(nodes.TemplateData))


class _Generation(Extension):
    """The block ``{% generation %}...{% endgeneration %}``."""

    tags = {"generation"}  # noqa: RUF012  Jinja's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        mark = [nodes.Output([nodes.TemplateData(text)], lineno=line) for text in (OPEN, CLOSE)]
        return nodes.Scope([mark[0], *body, mark[1]], lineno=line)


def _written(value: Any) -> Any:
    """What a template writes: anything else is shown with its address in memory, which is another in each run."""
    if isinstance(value, str | int | float | list | tuple | dict | Undefined | None):
        return value
    raise TemplateError(
        f"it writes {type(value).__name__!r}, which is no text (a filter to add may be `list` or `join`)"
    )


def _raise_exception(message: str) -> NoReturn:
    raise Refusal(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own escapes <, > and &, which models have not seen escaped.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
