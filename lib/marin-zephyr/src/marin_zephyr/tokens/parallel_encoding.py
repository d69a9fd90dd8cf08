"""Runs of rows to runs of documents on several threads, in the order of the rows.

One thread reads, ``workers`` threads encode, and whoever iterates writes. Decompression, parsing and encoding leave
the interpreter's lock, so threads suffice: nothing is copied between processes, none is left behind by a kill, and a
caller's script needs no guard. A bounded number of runs is under way, hence memory is bounded.

Invariant: what comes out, an error included, comes in the order of the input, for any number of threads."""

import os
import queue
import threading
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager

from marin_zephyr.tokens.batches import Encoded, RowEncoder, Rows
from marin_zephyr.tokens.documents import FileEnd

_AHEAD = 16
"""MiB of text that may wait for a thread: readers give all runs of a block at once, and then none for a while."""

type _Ahead = tuple[Rows, Future[Encoded]] | FileEnd | Exception


def encode_rows(
    items: Generator[Rows | FileEnd], encoder: RowEncoder, *, workers: int
) -> Generator[tuple[Rows, Encoded] | FileEnd]:
    """Encodes runs on ``workers`` threads, and passes the ends of files on.

    An error, of ``items`` or of the encoder, is raised after all that lies before it was yielded.
    """
    local = threading.local()
    given = deque([encoder])  # one thread takes it itself: it is built, and may have words in its cache

    def set_up() -> None:
        try:
            local.encoder = given.pop()
        except IndexError:
            local.encoder = encoder.replica()

    def encode(rows: Rows) -> Encoded:
        return local.encoder.encode(rows)

    pending: deque[_Ahead] = deque()
    with (
        _single_threaded_batches(),
        ThreadPoolExecutor(workers, "encode", set_up) as pool,
        closing(_read_ahead(items)) as read,
    ):
        try:
            for item in read:
                pending.append((item, pool.submit(encode, item)) if isinstance(item, Rows) else item)
                if len(pending) >= 2 * workers:
                    yield _result(pending.popleft())
            while pending:
                yield _result(pending.popleft())
        finally:
            for item in pending:
                if isinstance(item, tuple):
                    item[1].cancel()


def _result(item: _Ahead) -> tuple[Rows, Encoded] | FileEnd:
    if isinstance(item, Exception):
        raise item
    return item if isinstance(item, FileEnd) else (item[0], item[1].result())


def _read_ahead(items: Generator[Rows | FileEnd]) -> Generator[Rows | FileEnd | Exception]:
    """The same items, and the error that ends them as the last, read by a thread that is `_AHEAD` ahead at most."""
    read: queue.SimpleQueue[Rows | FileEnd | Exception | None] = queue.SimpleQueue()
    room = threading.Semaphore(_AHEAD)
    is_closed = threading.Event()

    def work() -> None:
        try:
            with closing(items):
                for item in items:
                    read.put(item)
                    for _ in range(_size(item)):
                        room.acquire()
                    if is_closed.is_set():
                        return
        except Exception as error:  # it is raised where its turn comes
            read.put(error)
        read.put(None)

    thread = threading.Thread(target=work, name="read", daemon=True)
    thread.start()
    try:
        while (item := read.get()) is not None:
            yield item
            room.release(_size(item))
    finally:
        is_closed.set()
        room.release(_AHEAD)
        thread.join()


def _size(item: Rows | FileEnd | Exception) -> int:
    """MiB that an item counts for; one larger than all that may wait waits alone."""
    return min(max(1, item.num_bytes >> 20), _AHEAD) if isinstance(item, Rows) else 1


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
