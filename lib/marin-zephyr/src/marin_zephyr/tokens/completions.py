"""Prompts with completions to documents: both are read, the completion is learned.

A row holds two columns of text. Its document is the prompt and right behind it the completion, encoded as one text, so
that its ids are those that a model which continues the prompt's text sees; special strings in it are text. What the
completion ends with, an appended end of sequence included, counts; a token that straddles the border does too."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from marin_zephyr.errors import RejectRow
from marin_zephyr.tokens.batches import Encoded, Rows
from marin_zephyr.tokens.marked import MarkedEncoder, MarkedText
from marin_zephyr.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from marin_zephyr.tokens.texts import SpecialIds


@dataclass(frozen=True)
class CompletionFormat:
    """That rows are prompts with completions.

    Attributes:
        prompt_field: the column of prompts; a null is an empty one.
        completion_field: the column of completions; a row without one is refused.
    """

    prompt_field: str = "prompt"
    completion_field: str = "completion"


class CompletionEncoder:
    """A `RowEncoder` of prompts with completions."""

    def __init__(self, tokenizer: Tokenizer, specials: "SpecialIds", *, form: CompletionFormat) -> None:
        """Makes an encoder of rows in ``form``."""
        self._tokenizer = tokenizer
        self._specials = specials
        self._form = form
        self._encoder = MarkedEncoder(tokenizer, specials)

    @property
    def columns(self) -> tuple[str, ...]:
        """Prompt and completion."""
        return self._form.prompt_field, self._form.completion_field

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Both."""
        return self.columns

    @property
    def identity(self) -> Mapping[str, Any]:
        """The columns."""
        return {"prompt_field": self._form.prompt_field, "completion_field": self._form.completion_field}

    def replica(self) -> Self:
        """An equal encoder for another thread."""
        return type(self)(self._tokenizer, self._specials, form=self._form)

    def encode(self, rows: Rows) -> Encoded:
        """Encodes a run of rows."""
        columns = (rows.frame[name].to_list() for name in self.columns)
        return self._encoder.encode(partial(_marked, *row) for row in zip(*columns, strict=True))


def _marked(prompt: str | None, completion: str | None) -> MarkedText:
    if not completion:
        raise RejectRow("no completion")
    text = (prompt or "") + completion
    return MarkedText(text, controls=(), counted=[(len(text) - len(completion), len(text))])
