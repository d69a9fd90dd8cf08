"""Conversations to documents: the whole conversation is read, the assistant's turns are learned.

A row holds a list of messages, each with ``role`` and ``content`` (or, as ShareGPT has it, ``from`` and ``value``). A
chat template renders it (`chat_templates`), the template's special strings become control tokens and those of the
messages do not (`special_strings`), and the mask is set where the assistant speaks (`marked`).

Where the assistant speaks, the template says with ``{% generation %}``. One that does not say is asked: the
conversation is rendered up to each of the assistant's turns, with the prompt that asks for it, and up to that turn's
end. If each of these is the beginning of the next and of the whole, then the turn is what lies between, its end-of-turn
token included and white space after that not. If it is not so, the row is refused, and the fix is to put the blocks in.
(It takes three renderings a turn: templates with the blocks are also faster.)

Every row becomes a document or is refused with its reason; none is mended by guessing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from marin_zephyr.errors import ChatTemplateError, RejectRow, SchemaError
from marin_zephyr.tokens.batches import Encoded, Rows
from marin_zephyr.tokens.chat_templates import ChatTemplate, Rendered, read_chat_template
from marin_zephyr.tokens.marked import MarkedEncoder, MarkedText, Span, check_characters
from marin_zephyr.tokens.special_strings import SpecialStrings
from marin_zephyr.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from marin_zephyr.tokens.texts import SpecialIds

ASSISTANT = "assistant"

_RULES = 1  # counted up when the same conversation would give other ids or another mask
_SHARE_GPT = {"human": "user", "gpt": ASSISTANT}
_NO_TURNS = (
    "the chat template does not let its turns be told apart: put what the assistant says in it between "
    "{% generation %} and {% endgeneration %}"
)


@dataclass(frozen=True)
class ChatFormat:
    """That rows are conversations, and how they are read.

    Attributes:
        template: a chat template: its text, a file, ``"chatml"``, or None for the tokenizer's own.
        messages_field: the column of messages.
    """

    template: str | Path | None = None
    messages_field: str = "messages"


class ChatEncoder:
    """A `RowEncoder` of conversations."""

    def __init__(
        self, tokenizer: Tokenizer, specials: "SpecialIds", *, template: str, messages_field: str = "messages"
    ) -> None:
        """Makes an encoder.

        Args:
            tokenizer: whose ids are wanted.
            specials: what begins and ends each document, where the template does not write it itself.
            template: the text of the chat template (`read_chat_template`).
            messages_field: the column of messages.

        Raises:
            ChatTemplateError: the template is malformed, or is the built-in one and the tokenizer lacks its tokens.
        """
        self._tokenizer = tokenizer
        self._specials = specials
        self._field = messages_field
        self._encoder = MarkedEncoder(tokenizer, specials)
        self._strings = SpecialStrings(self._encoder.special_strings)
        self._template = ChatTemplate(
            template, bos_token=_token(tokenizer, tokenizer.bos_id), eos_token=_token(tokenizer, tokenizer.eos_id)
        )

    @classmethod
    def of(cls, chat: ChatFormat, tokenizer: Tokenizer, specials: "SpecialIds", *, beside: str | Path | None) -> Self:
        """The encoder of a format; ``beside`` is where the tokenizer was loaded from."""
        template = read_chat_template(chat.template, tokenizer=beside)
        encoder = cls(tokenizer, specials, template=template, messages_field=chat.messages_field)
        if chat.template == "chatml":
            lacking = {"<|im_start|>", "<|im_end|>"}.difference(encoder._encoder.special_strings)
            if lacking:
                raise ChatTemplateError(
                    f"the chat template 'chatml' needs the special tokens {', '.join(sorted(lacking))}, which the "
                    "tokenizer lacks: add them to it, or give a template of its own"
                )
        return encoder

    @property
    def columns(self) -> tuple[str, ...]:
        """The column of messages."""
        return (self._field,)

    @property
    def text_columns(self) -> tuple[str, ...]:
        """None: messages are no text."""
        return ()

    @property
    def identity(self) -> Mapping[str, Any]:
        """The template's digest, the column, and the version of the rules."""
        return {
            "chat_template": self._template.digest,
            "chat_rules": _RULES,
            "jinja2": version("jinja2"),
            "messages_field": self._field,
        }

    def replica(self) -> Self:
        """An equal encoder for another thread."""
        return type(self)(self._tokenizer, self._specials, template=self._template.content, messages_field=self._field)

    def encode(self, rows: Rows) -> Encoded:
        """Encodes a run of conversations.

        Raises:
            SchemaError: the frame has no such column, or it holds no lists of messages.
        """
        return self._encoder.encode(partial(self._marked, row) for row in _column(rows, self._field))

    def _marked(self, row: Any) -> MarkedText:
        messages = _messages(_parsed(row, self._field) if isinstance(row, str) else row)
        if not any(message["role"] == ASSISTANT for message in messages):
            raise RejectRow("no assistant turn")
        rendered = self._template.render(messages)
        controls = self._strings.find(rendered.text, messages, lambda others: self._template.render(others).text)
        counted = rendered.generated if self._template.marks_turns else self._turns(messages, rendered, controls)
        return MarkedText(rendered.text, controls, counted)

    def _turns(self, messages: Sequence[Mapping[str, Any]], whole: Rendered, controls: Sequence[Span]) -> list[Span]:
        """Where the assistant speaks, found by rendering beginnings of the conversation."""
        ends = {stop for _, stop in controls}
        turns = []
        for number, message in enumerate(messages):
            if message["role"] != ASSISTANT:
                continue
            try:
                before = self._template.render(messages[:number]).text
                prompt = self._template.render(messages[:number], prompt=True).text
                after = self._template.render(messages[: number + 1]).text
            except RejectRow:
                raise RejectRow(_NO_TURNS) from None
            turn = after[len(prompt) :]
            says = (message["content"] or "").strip()
            # A template that ignores the prompt might write a heading there, which nobody says.
            is_told = prompt != before or (says and turn.lstrip().startswith(says))
            if not (whole.text.startswith(after) and after.startswith(prompt) and is_told):
                raise RejectRow(_NO_TURNS)
            trimmed = len(after.rstrip())
            turns.append((len(prompt), trimmed if trimmed in ends else len(after)))
        return turns


def _column(rows: Rows, field: str) -> list[Any]:
    """Lists of messages, or JSON."""
    import polars as pl

    if field not in rows.frame.columns:
        raise SchemaError(f"no column {field!r}: there is {', '.join(rows.frame.columns)}; name the one of messages")
    column = rows.frame[field]
    if column.dtype not in (pl.List, pl.Null, pl.String):
        raise SchemaError(f"column {field!r} is {column.dtype}, not a list of messages with role and content")
    return column.to_list()


def _parsed(text: str, field: str) -> Any:
    """What JSON holds: a list of messages, or a record that has it as a field."""
    from marin_zephyr.formats.objects import check_values, parse

    try:
        value, _ = parse(text.encode())
        if isinstance(value, dict):
            if field not in value:
                raise RejectRow(f"no field {field!r}: it has {', '.join(value)}")
            value = value[field]
        check_values(value)
    except (ValueError, RecursionError) as error:
        raise RejectRow(f"{field} is no JSON that can be taken: {error}") from None
    return value


def _messages(row: Any) -> list[dict[str, Any]]:
    if not isinstance(row, list | None):
        raise RejectRow(f"it is {type(row).__name__}, not a list of messages")
    if not row:
        raise RejectRow("no messages")
    return [_message(number, message) for number, message in enumerate(row, 1)]


def _message(number: int, message: Any) -> dict[str, Any]:
    """A message as templates expect it. Columns cannot tell null from absent: it is absent, but for ``content``."""
    if not isinstance(message, Mapping):
        raise RejectRow(f"message {number} is no object with role and content")
    fields = _without_nulls(message)
    if "role" not in fields and "from" in fields:
        said_by = fields.pop("from")
        fields = {"role": _SHARE_GPT.get(said_by, said_by), "content": fields.pop("value", None), **fields}
    if not isinstance(fields.get("role"), str):
        raise RejectRow(f"message {number} has no role")
    content = _content(number, fields.get("content"))
    if content is None and "tool_calls" not in fields:
        raise RejectRow(f"message {number} has no content")
    return {**fields, "content": content}


def _content(number: int, content: Any) -> str | None:
    """A message's content; its parts, one after the other, if it is a list of texts."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RejectRow(f"message {number}: content is {type(content).__name__}, not text")
    texts = []
    for part in content:
        kind = part.get("type", "text") if isinstance(part, Mapping) else type(part).__name__
        text = part.get("text") if isinstance(part, Mapping) else part
        if kind not in ("text", "str") or not isinstance(text, str):
            raise RejectRow(f"message {number}: content has a part of type {kind!r}, not text alone")
        texts.append(text)
    return "".join(texts)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, str):
        check_characters(value)
    if isinstance(value, Mapping):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value]
    return value


def _token(tokenizer: Tokenizer, number: int | None) -> str | None:
    return None if number is None else tokenizer.backend.id_to_token(number)
