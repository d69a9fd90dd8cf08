"""Care: a task that has killed its worker is tried once more, so that what it was doing is known if it dies again.

A careful try runs alone, and before each call of a function of the caller it notes in a shared file which row it is at.
The file outlives the worker, also one that is killed in the middle of native code. Row functions take one row at a time
anyway, so care changes no batch and no byte of the output.

A row is known by its *position*: which operation of the chain takes it, and how many that operation took before it.
Positions do not depend on rows that are condemned later, because the chain runs in one order. A condemned row is
refused, like one that its function refuses.

Invariant: a row is blamed only for what happened while its function was at work on it.

See: Dean and Ghemawat, "MapReduce" (OSDI 2004), section 4.6, where the last record is sent to the master from a signal
handler. A shared page also serves those whom no handler can: SIGKILL, a loop in native code.
"""

from __future__ import annotations

import json
import mmap
import os
import reprlib
import struct
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from marin_zephyr.backends.memory import Gauge
from marin_zephyr.errors import RejectRow
from marin_zephyr.reporting.quantities import shown_memory

if TYPE_CHECKING:
    import polars as pl

type Position = tuple[int, int]
"""Number of the operation in its chain, number of the row among those that it takes."""

_SIZE = 4096
_HEADER = struct.Struct("<IB")
"""Length of the note, or 0; whether the function is still at work on the row."""
_AT_WORK = 4
_SHOWN = 300
"""Characters of each text in a note; with all of them at their longest a note fits on the page."""


@dataclass(frozen=True, kw_only=True)
class Note:
    """What a task is doing."""

    operation: str
    what: str = ""
    """The row or the batch, for people."""
    position: Position | None = None
    """The row's, if a row function is at work."""
    held: int = 0
    """Bytes that the worker held when it began with it."""
    idle: int = 0
    """Bytes that it held when the task began."""


class Care:
    """The worker's side: notes what the task is about to do.

    Args:
        descriptor: of the shared file.
        condemned: the rows to leave out, and why.
    """

    def __init__(self, descriptor: int, condemned: Mapping[Position, str]) -> None:
        self._page = mmap.mmap(descriptor, _SIZE)
        self._condemned = condemned
        self._gauge = Gauge(os.getpid())
        self._idle = self._gauge.read()
        self.note("reading the input")

    def row_function(self, fn: Callable[[Any], Any], *, operation: int, name: str) -> Callable[[Any], Any]:
        """A row function that notes the row before each call, and refuses the condemned.

        Args:
            fn: the function.
            operation: its number in the chain.
            name: the operation for people.
        """
        number = -1

        def call(row: Any) -> Any:
            nonlocal number
            number += 1
            reason = self._condemned.get((operation, number))
            if reason is not None:
                raise RejectRow(reason)
            self.note(name, f"row {number:,}, {_shown(row)}", (operation, number))
            result = fn(row)
            self._page[_AT_WORK] = 0
            return result

        return call

    def batches(self, frames: Iterator[pl.DataFrame], name: str) -> Iterator[pl.DataFrame]:
        """The same frames, each noted as what the operation ``name`` is about to take."""
        for frame in frames:
            size = shown_memory(int(frame.estimated_size()))
            self.note(name, f"a batch of {frame.height:,} rows, {size}")
            yield frame
            self.note(f"making batches for {name}")

    def note(self, operation: str, what: str = "", position: Position | None = None) -> None:
        """Writes what comes next over what came before."""
        held = self._gauge.read()
        fields = (operation[:_SHOWN], what[:_SHOWN], position, held, self._idle)
        data = json.dumps(fields, ensure_ascii=False).encode("utf-8", "backslashreplace")
        # Between the two headers there is no note, rather than half of one.
        self._page[: _HEADER.size] = _HEADER.pack(0, 0)
        self._page[_HEADER.size : _HEADER.size + len(data)] = data
        self._page[: _HEADER.size] = _HEADER.pack(len(data), position is not None)


@contextmanager
def shared_page() -> Generator[int]:
    """The descriptor of a file for one note; it has no name, so nothing is left of it."""
    with tempfile.TemporaryFile() as file:
        file.truncate(_SIZE)
        yield file.fileno()


def read_note(descriptor: int) -> Note | None:
    """What the worker was doing when it died, if it had come to say so."""
    data = os.pread(descriptor, _SIZE, 0)
    length, at_work = _HEADER.unpack_from(data)
    if not length:
        return None
    operation, what, position, held, idle = json.loads(data[_HEADER.size : _HEADER.size + length])
    if position is None:
        return Note(operation=operation, what=what, held=held, idle=idle)
    if not at_work:
        return Note(operation=f"gathering the rows of {operation}", held=held, idle=idle)
    return Note(operation=operation, what=what, position=(position[0], position[1]), held=held, idle=idle)


class _Brief(reprlib.Repr):
    """Shows any value in bounded time and space."""

    def repr_bytes(self, value: bytes, _level: int) -> str:
        return repr(value[: self.maxstring])


_brief = _Brief(maxstring=60)


def _shown(row: Any) -> str:
    """Where a row came from or what it is, briefly, however large it is."""
    if isinstance(row, dict) and row.get("source") is not None:
        at = {k: row.get(f"source_{k}") for k in ("row", "offset")}
        return str(row["source"]) + "".join(f", {k} {v:,}" for k, v in at.items() if isinstance(v, int))
    return _brief.repr(row)
