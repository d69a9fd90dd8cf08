"""Documents to ids on several threads, in the order of the documents.

`tokenizers` leaves the interpreter's lock while it encodes, so threads suffice: nothing is copied between processes,
none is left behind by a kill, and a caller's script needs no guard. Batches are bounded in characters, hence memory is;
long documents are encoded in stretches (`cutting`)."""

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from marin_zephyr.errors import TokenizerError
from marin_zephyr.tokens.cutting import LongEncoder
from marin_zephyr.tokens.documents import Document
from marin_zephyr.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_BATCH_CHARS = 512 * 1024  # while it is encoded, text takes some hundred bytes a token
_STRETCH_CHARS = 128 * 1024


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

    def around(self, pieces: "Sequence[NDArray[np.int32]]") -> "NDArray[np.int32]":
        """The ids of the document that ``pieces`` make, shape ``[tokens]``: none at all if they have none."""
        import numpy as np

        if not any(len(piece) for piece in pieces):
            return np.zeros(0, np.int32)
        before = () if self.bos is None else (np.array([self.bos], np.int32),)
        after = () if self.eos is None else (np.array([self.eos], np.int32),)
        return np.concatenate([*before, *pieces, *after])


class EncodedDocument(NamedTuple):
    """A document's ids, with the special ones around it; the rest as in `Document`."""

    file: int
    num_bytes: int
    source: str
    ids: "NDArray[np.int32]"


def encode_documents(
    documents: Iterable[Document], tokenizer: Tokenizer, specials: SpecialIds, *, workers: int
) -> Generator[EncodedDocument]:
    """Encodes ``documents`` on ``workers`` threads; the result does not depend on how many."""
    local = threading.local()

    def set_up() -> None:
        local.tokenizer = tokenizer.replica()
        local.long = LongEncoder(local.tokenizer)

    def encode(batch: list[Document]) -> "list[list[NDArray[np.int32]]]":
        short = iter(local.tokenizer.encode_batch([d.text for d in batch if len(d.text) <= _STRETCH_CHARS]))
        return [
            [next(short)]
            if len(document.text) <= _STRETCH_CHARS
            else list(local.long.encode(document.text, limit=_STRETCH_CHARS))
            for document in batch
        ]

    with _single_threaded_batches(), ThreadPoolExecutor(workers, "encode", set_up) as pool:
        for batch, encoded in _in_order(pool, encode, _batches(documents), ahead=2 * workers):
            for document, pieces in zip(batch, encoded, strict=True):
                yield EncodedDocument(document.file, document.num_bytes, document.source, specials.around(pieces))


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.text)
        if size >= _BATCH_CHARS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _in_order[T, R](
    pool: ThreadPoolExecutor, function: Callable[[T], R], items: Iterable[T], *, ahead: int
) -> Iterator[tuple[T, R]]:
    """``(item, function(item))`` in the order of the items, of which at most ``ahead`` are in memory."""
    pending: deque[tuple[T, Future[R]]] = deque()
    try:
        for item in items:
            pending.append((item, pool.submit(function, item)))
            if len(pending) >= ahead:
                done, future = pending.popleft()
                yield done, future.result()
        while pending:
            done, future = pending.popleft()
            yield done, future.result()
    finally:
        for _, future in pending:
            future.cancel()


@contextmanager
def _single_threaded_batches() -> Generator[None]:
    """Has `tokenizers` encode on the thread that asks: its own pool would take every core, whatever ``workers``."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
