"""Texts to documents of ids: one column, an engine, and the special ids around each document.

`HuggingFaceEngine` is the engine that is always there. `tokenizers` leaves the interpreter's lock while it encodes, so
each thread needs only a replica of its own: threads that share one contend for its cache of words. The cache is made
larger than `tokenizers` makes it, since what text repeats is words. Long texts are encoded in stretches
(`cutting`): that bounds memory.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from marin_zephyr.errors import EngineError, TextTooLongError, TokenizerError
from marin_zephyr.tokens.batches import Encoded, Engine, Rows
from marin_zephyr.tokens.cutting import LongEncoder
from marin_zephyr.tokens.hugging_face import encoding
from marin_zephyr.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

# While it is encoded, text takes some hundred bytes a token: of so little text, memory given back is used again.
_BATCH_CHARS = 96 << 10
_STRETCH_CHARS = 128 << 10
_CACHED_WORDS = 1 << 16


@dataclass(frozen=True)
class SpecialIds:
    """The ids around every document: None where there is none."""

    bos: int | None
    eos: int | None

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, append_eos: bool, prepend_bos: bool) -> "SpecialIds":
        """Those of ``tokenizer``; raises `TokenizerError` if it lacks one that is wanted."""
        for wanted, token_id, role in (
            (append_eos, tokenizer.eos_id, "eos"),
            (prepend_bos, tokenizer.bos_id, "bos"),
        ):
            if wanted and token_id is None:
                raise TokenizerError(
                    f"the tokenizer has no {role} token that could be told: load it with "
                    f"load_tokenizer(path, {role}_token=...), or tokenize without"
                )
        return cls(bos=tokenizer.bos_id if prepend_bos else None, eos=tokenizer.eos_id if append_eos else None)

    def around(
        self, ids: "NDArray[np.int32]", lengths: "NDArray[np.int64]"
    ) -> "tuple[NDArray[np.int32], NDArray[np.int64]]":
        """Ids and lengths with the special ids around each document that has any id.

        Args:
            ids: shape ``[tokens]``, the documents' ids one after the other.
            lengths: shape ``[documents]``.
        """
        import numpy as np

        ends = np.cumsum(lengths)
        has_any = lengths > 0
        starts, ends = (ends - lengths)[has_any], ends[has_any]
        # np.insert keeps the order of equal places, and where a document ends the next one begins: so ends come first.
        around = [(where, special) for where, special in ((ends, self.eos), (starts, self.bos)) if special is not None]
        if not around:
            return ids, lengths
        places = np.concatenate([where for where, _ in around])
        specials = np.repeat(np.array([special for _, special in around], np.int32), len(starts))
        return np.insert(ids, places, specials), lengths + has_any * len(around)


class TextEncoder:
    """Encodes one column of text; a null is an empty text, of which nothing is left.

    Args:
        engine: text to ids.
        specials: what goes around each document.
        text_field: the column.
    """

    def __init__(self, engine: Engine, specials: SpecialIds, *, text_field: str = "text") -> None:
        self._engine = engine
        self._specials = specials
        self._text_field = text_field

    @property
    def columns(self) -> tuple[str, ...]:
        """The text."""
        return (self._text_field,)

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The text."""
        return (self._text_field,)

    @property
    def identity(self) -> Mapping[str, Any]:
        """Where the text is. Engines give the same ids, or are not used."""
        return {"text_field": self._text_field}

    def replica(self) -> "TextEncoder":
        """An equal encoder with an engine of its own."""
        return self.using(self._engine.replica())

    def using(self, engine: Engine) -> "TextEncoder":
        """The same with another engine."""
        return type(self)(engine, self._specials, text_field=self._text_field)

    def encode(self, rows: Rows) -> Encoded:
        """Every row is a document but those whose text can only be encoded whole, and is too long for that.

        Raises:
            EngineError: the engine's ids of a document are not those of the reference: which file and row.
        """
        import polars as pl
        import pyarrow as pa

        column = rows.frame[self._text_field]
        # Where it is text already, nothing is asked of the pool of Polars, which makes whoever asks wait.
        column = column if column.dtype == pl.String else column.cast(pl.String)
        texts = column.rechunk().to_arrow().cast(pa.large_string())
        try:
            (ids, lengths), refused = self._engine.encode(texts), {}
        except TextTooLongError:
            ids, lengths, refused = self._one_by_one(texts)
        except EngineError as error:
            if error.number is None:
                raise
            where = f"{rows.sources[error.number]}, row {rows.first_row + error.number}"
            raise EngineError(f"{where}: {error}", number=error.number) from None
        ids, lengths = self._specials.around(ids, lengths)
        return Encoded(ids=ids, lengths=lengths, num_bytes=byte_lengths(texts), mask=None, refused=refused)

    def _one_by_one(
        self, texts: "pa.LargeStringArray"
    ) -> "tuple[NDArray[np.int32], NDArray[np.int64], dict[int, str]]":
        """Ids and lengths, and of the rows that cannot be encoded the reasons."""
        import numpy as np

        arrays, lengths, refused = [np.zeros(0, np.int32)], np.zeros(len(texts), np.int64), {}
        for number in range(len(texts)):
            try:
                ids, [lengths[number]] = self._engine.encode(texts.slice(number, 1))
            except TextTooLongError as error:
                refused[number] = str(error)
            else:
                arrays.append(ids)
        return np.concatenate(arrays), lengths, refused


def text_buffers(texts: "pa.LargeStringArray") -> "tuple[NDArray[np.int64], NDArray[np.uint8]]":
    """Int64[texts + 1], where each text begins in the UInt8[bytes], and those bytes."""
    import numpy as np

    _, offsets, data = texts.buffers()
    if not len(texts):
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    places = np.frombuffer(offsets, np.int64, len(texts) + 1, texts.offset * 8)
    return places, np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)


def byte_lengths(texts: "pa.LargeStringArray") -> "NDArray[np.int64]":
    """Int64[texts], the UTF-8 bytes of each; of a null what its slot spans, which is nothing."""
    import numpy as np

    return np.diff(text_buffers(texts)[0])


class HuggingFaceEngine:
    """Encodes with Hugging Face's `tokenizers`."""

    name = "tokenizers"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def replica(self) -> "HuggingFaceEngine":
        """An engine with a backend of its own."""
        return HuggingFaceEngine(self._tokenizer.replica())

    def encode(self, texts: "pa.LargeStringArray") -> "tuple[NDArray[np.int32], NDArray[np.int64]]":
        """Int32[tokens] and Int64[texts]."""
        import numpy as np

        lengths = np.zeros(len(texts), np.int64)
        arrays: list[NDArray[np.int32]] = [np.zeros(0, np.int32)]
        for numbers, batch in _batches(texts.to_pylist()):
            if len(batch[0]) > _STRETCH_CHARS:
                stretches = list(self._long.encode(batch[0], limit=_STRETCH_CHARS))
                lengths[numbers] = sum(map(len, stretches))
                arrays += stretches
                continue
            with encoding():
                encodings = self._backend.encode_batch_fast(batch, add_special_tokens=False)
            lengths[numbers] = list(map(len, encodings))
            ids = array("i")  # which takes a list of numbers in less time than NumPy does
            for found in encodings:
                ids.fromlist(found.ids)
            arrays.append(np.frombuffer(ids, np.int32))
        return np.concatenate(arrays), lengths

    @cached_property
    def _backend(self) -> Any:
        backend = self._tokenizer.encoder
        resize = getattr(backend.model, "_resize_cache", None)
        if resize is not None:
            resize(_CACHED_WORDS)
        return backend

    @cached_property
    def _long(self) -> LongEncoder:
        return LongEncoder(self._tokenizer)


def _batches(texts: Sequence[str | None]) -> Iterator[tuple[list[int], list[str]]]:
    """Texts and their numbers, so many at once as memory allows; a long one is alone."""
    numbers: list[int] = []
    batch: list[str] = []
    size = 0
    for number, text in enumerate(texts):
        if not text:
            continue
        if batch and (size + len(text) > _BATCH_CHARS or len(text) > _STRETCH_CHARS):
            yield numbers, batch
            numbers, batch, size = [], [], 0
        numbers.append(number)
        batch.append(text)
        size += len(text)
        if len(text) > _STRETCH_CHARS:
            yield numbers, batch
            numbers, batch, size = [], [], 0
    if batch:
        yield numbers, batch
