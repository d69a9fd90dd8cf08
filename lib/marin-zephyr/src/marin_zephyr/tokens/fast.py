"""The fast engine: `gigatoken` (extra ``fast``), the ids of the reference some fifty times sooner.

It knows the pre-tokenizers of the common byte-level and SentencePiece-like BPE tokenizers and remembers the ids of
every pretoken that it has met. Whether its ids are to be had at all, `engines` decides.

It is asked for plain text: tokens that the reference leaves in the text as text (see `tokenizer`) are not told to it.
Texts go in as Arrow's own buffers and ids come out as one array.

See: Rød 2026, gigatoken.
"""

import json
import time
from typing import TYPE_CHECKING, Any

from marin_zephyr.errors import EngineError, EngineRefusedError
from marin_zephyr.tokens.texts import text_buffers
from marin_zephyr.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

_SHARE_OF_BUILDING = 20  # an engine is built anew when it has worked this many times as long as its building took,
_LEAST_SECONDS = 2.0  # and no sooner than this: what it remembers grows with every new word, and is never let go


class FastEngine:
    """Plain text to ids with `gigatoken`. An instance serves one thread.

    Args:
        content: a ``tokenizer.json`` as `plain_json` makes it.

    Raises:
        EngineRefusedError: it is of a kind that `gigatoken` does not know.
    """

    name = "gigatoken"

    def __init__(self, content: str) -> None:
        self._content = content
        self._build()

    def replica(self) -> "FastEngine":
        """An equal engine for another thread."""
        return FastEngine(self._content)

    def encode(self, texts: "pa.LargeStringArray") -> "tuple[NDArray[np.int32], NDArray[np.int64]]":
        """The ids of all texts and how many each has, as `Engine` says.

        Raises:
            EngineError: the engine failed on these texts.
        """
        import numpy as np

        if self._seconds > max(_LEAST_SECONDS, _SHARE_OF_BUILDING * self._building):
            self._build()
        began = time.thread_time()
        try:
            layout: Any = self._backend.encode_batch(_as_awkward(texts), parallel=False).layout
        except BaseException as error:
            raise EngineError(f"gigatoken failed: {_reason(error)}: encode with engine 'tokenizers'") from None
        self._seconds += time.thread_time() - began
        offsets = np.asarray(layout.offsets.data)
        ids = np.asarray(layout.content.data)[offsets[0] : offsets[-1]]
        return ids.view(np.int32), np.diff(offsets).astype(np.int64, copy=False)

    def _build(self) -> None:
        from gigatoken import Tokenizer as Backend

        began = time.thread_time()
        try:
            self._backend = Backend.from_json(self._content)
        except BaseException as error:
            raise EngineRefusedError(f"gigatoken does not know this tokenizer: {_reason(error)}") from None
        self._building = time.thread_time() - began
        self._seconds = 0.0


def plain_json(tokenizer: Tokenizer) -> str:
    """The ``tokenizer.json`` of a tokenizer that reads special tokens as text, as the reference does.

    Raises:
        EngineRefusedError: it has a setting that `gigatoken` is known to pass over.
    """
    fields = json.loads(tokenizer.content)
    model = fields["model"]
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise EngineRefusedError(f"gigatoken does not know this tokenizer: its model has {key} {model[key]!r}")
    kept = []
    for token in fields.get("added_tokens") or ():
        if token["special"] or token["id"] in tokenizer.special_ids:
            continue
        for key in ("single_word", "lstrip", "rstrip"):
            if token.get(key):
                raise EngineRefusedError(
                    f"gigatoken does not know this tokenizer: its token {token['content']!r} has {key}"
                )
        kept.append(token)
    return json.dumps({**fields, "added_tokens": kept, "post_processor": None, "truncation": None, "padding": None})


def _as_awkward(texts: "pa.LargeStringArray") -> Any:
    """The same texts as an awkward array over the same memory; null becomes empty."""
    import awkward as ak

    offsets, data = text_buffers(texts.fill_null("") if texts.null_count else texts)
    buffer: Any = data
    characters = ak.contents.NumpyArray(buffer, parameters={"__array__": "char"})
    strings = ak.contents.ListOffsetArray(ak.index.Index64(offsets), characters, parameters={"__array__": "string"})
    return ak.Array(strings)


def _reason(error: BaseException) -> str:
    """The first line of what the binding raised: its panics are no `Exception`, and a keyboard interrupt is not its."""
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit | MemoryError):
        raise error
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
