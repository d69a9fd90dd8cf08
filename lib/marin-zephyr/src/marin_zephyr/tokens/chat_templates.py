"""Chat templates: conversations to text, with Jinja, as Hugging Face renders them.

A template sees ``messages``, ``bos_token``, ``eos_token``, ``add_generation_prompt``, ``tools`` and ``documents`` (both
none), ``raise_exception``, and a ``tojson`` that escapes no HTML; blocks are trimmed, loops have ``break`` and
``continue``, and the sandbox forbids the rest of Python. What it puts between ``{% generation %}`` and
``{% endgeneration %}`` is the assistant's: the block writes a noncharacter before and after its body, so that the
stretch is found wherever the text goes on its way, through macros and filters too.

A rendering depends on nothing but the conversation: there is no clock and no chance. ``strftime_now`` is not defined,
which sends templates that ask for it politely (Llama 3) to their own fixed date; others fail with its name.

See: https://huggingface.co/docs/transformers/chat_templating for what templates may expect.
"""

import hashlib
import json
import re
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marin_zephyr.errors import ChatTemplateError, RejectRow
from marin_zephyr.tokens.marked import RESERVED, Span

if TYPE_CHECKING:
    import jinja2

CHATML = """\
{% for message in messages %}
{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' %}
{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}
{%- else %}
{{- message.content + '<|im_end|>' }}
{%- endif %}
{{- '\\n' }}
{%- endfor %}
"""
"""The built-in template ``chatml``; its two control tokens must be special tokens of the tokenizer."""


@dataclass(frozen=True)
class Rendered:
    """A conversation as text.

    Attributes:
        text: it.
        generated: ``(start, stop)`` in characters of what its ``{% generation %}`` blocks wrote.
    """

    text: str
    generated: tuple[Span, ...]


@dataclass(frozen=True)
class ChatTemplate:
    """A compiled chat template.

    Attributes:
        content: its text.
        bos_token: what it sees as ``bos_token``; undefined if None.
        eos_token: likewise.
    """

    content: str = field(repr=False)
    bos_token: str | None
    eos_token: str | None

    def __post_init__(self) -> None:
        """Raises `ChatTemplateError`, with the line, if it is no template."""
        import jinja2

        if any(character in self.content for character in RESERVED):
            raise ChatTemplateError("the chat template holds noncharacters (U+FDD0 to U+FDDF), which are no text")
        try:
            self._compiled  # noqa: B018  compiles it
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(f"the chat template, line {error.lineno}: {error.message}") from None
        except (RecursionError, SyntaxError) as error:  # of Python, which Jinja compiles it to
            reason = "too deep" if isinstance(error, RecursionError) else error.msg
            raise ChatTemplateError(f"the chat template is nested too far: {reason}") from None

    @cached_property
    def digest(self) -> str:
        """The sha256 of its text, in hexadecimal."""
        return hashlib.sha256(self.content.encode()).hexdigest()

    @cached_property
    def marks_turns(self) -> bool:
        """Whether it has a ``{% generation %}`` block."""
        from marin_zephyr.tokens.chat_environment import marks_turns

        return marks_turns(self.content)

    @cached_property
    def _compiled(self) -> "jinja2.Template":
        from marin_zephyr.tokens.chat_environment import make_environment

        return make_environment().from_string(self.content)

    def render(self, messages: Sequence[Mapping[str, Any]], *, prompt: bool = False) -> Rendered:
        """Renders a conversation.

        Args:
            messages: the messages.
            prompt: end with what asks the assistant to speak (``add_generation_prompt``).

        Raises:
            RejectRow: the template refuses it, or fails on it: with its line.
        """
        from marin_zephyr.tokens.chat_environment import Refusal

        names = {"bos_token": self.bos_token, "eos_token": self.eos_token}
        try:
            text = self._compiled.render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=prompt,
                **{name: token for name, token in names.items() if token is not None},
            )
        except Refusal as refusal:
            raise RejectRow(f"the chat template refuses it: {refusal.message}") from None
        except Exception as error:  # a template can fail like any program
            raise RejectRow(_failure(error)) from None
        return _unmarked(text)


def read_chat_template(source: str | Path | None, *, tokenizer: str | Path | None) -> str:
    """The text of a chat template.

    Args:
        source: the template itself (whatever holds ``{{`` or ``{%``), a file that holds it, ``"chatml"`` for the
            built-in one, or None for the one that lies beside the tokenizer.
        tokenizer: where the tokenizer was loaded from: a directory, or a file in it.

    Raises:
        ChatTemplateError: there is none.
    """
    if source is None:
        return _tokenizers_own(tokenizer)
    if source == "chatml":
        return CHATML
    if isinstance(source, str) and ("{{" in source or "{%" in source):
        return source
    return _read(Path(source))


def _tokenizers_own(tokenizer: str | Path | None) -> str:
    advice = "give one: a file, its text, or the built-in 'chatml'"
    if tokenizer is None or str(tokenizer) == "bytes":
        raise ChatTemplateError(f"the tokenizer has no directory in which a chat template could lie; {advice}")
    directory = Path(tokenizer) if Path(tokenizer).is_dir() else Path(tokenizer).parent
    if (directory / "chat_template.jinja").is_file():
        return _read(directory / "chat_template.jinja")
    config = directory / "tokenizer_config.json"
    found: Any = None
    if config.is_file():
        try:
            found = json.loads(_read(config)).get("chat_template")
        except (ValueError, RecursionError, AttributeError) as error:
            raise ChatTemplateError(f"{config} is no JSON object: {error}") from None
    if isinstance(found, list):  # several, by name
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    if not isinstance(found, str):
        raise ChatTemplateError(
            f"no chat template lies beside the tokenizer {tokenizer}, neither in chat_template.jinja nor in "
            f"tokenizer_config.json; {advice}"
        )
    return found


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise ChatTemplateError(f"{path} is no UTF-8: {error}") from None
    except OSError as error:
        raise ChatTemplateError(f"chat template {path} cannot be read: {error.strerror or error}") from None


def _unmarked(text: str) -> Rendered:
    """The text without the marks of generation blocks, and where these were."""
    from marin_zephyr.tokens.chat_environment import CLOSE, OPEN

    pieces: list[str] = []
    spans: list[Span] = []
    length = depth = begin = 0
    for piece in re.split(f"([{OPEN}{CLOSE}])", text):
        if piece == OPEN:
            begin = begin if depth else length
            depth += 1
        elif piece == CLOSE:
            depth -= 1
            if not depth:
                spans.append((begin, length))
        else:
            pieces.append(piece)
            length += len(piece)
    return Rendered("".join(pieces), tuple(spans))


def _failure(error: Exception) -> str:
    """What went wrong in a template, and on which of its lines."""
    from marin_zephyr.tokens.chat_environment import FILE_NAME

    frames = traceback.extract_tb(error.__traceback__)
    line = next((frame.lineno for frame in reversed(frames) if frame.filename == FILE_NAME), None)
    where = "the chat template fails" if line is None else f"the chat template fails on line {line}"
    advice = (
        ": a store must not depend on the day, write the date into the template" if "strftime_now" in str(error) else ""
    )
    return f"{where}: {error}{advice}"
