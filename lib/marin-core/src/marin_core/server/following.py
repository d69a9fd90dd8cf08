"""A log that follows: what an attempt prints, as server-sent events, from a position in its file to its end.

Events: ``lines`` (whole lines, cleaned, as a JSON string), ``partial`` (the line that is not finished yet, which the
next event replaces) and ``end``. The id of an event is the position behind its last whole line, so a browser whose
connection broke goes on from there by itself. A stream ends when the attempt has ended, or its driver has died, and
all that it printed was sent, or when the server stops.

See: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from marin_core.server.catalogue import Catalogue
from marin_core.web.files import UnreadableFileError
from marin_core.web.logs import clean_line

_BLOCK = 64_000
_PERIOD = 0.2
"""Seconds between two looks at a log; also the longest that a stream outlives the server's last moment."""
_HEARTBEAT_LOOKS = 50
"""Looks without news after which a comment is sent, by which a closed connection is noticed."""


@dataclass(frozen=True)
class Look:
    """What one look at a log found: events to send, where to look on, and whether there was more than one block."""

    events: str
    offset: int
    partial: bytes
    is_behind: bool


def look(data: bytes, *, offset: int, shown: bytes) -> Look:
    """Events for the bytes found at a position.

    Args:
        data: at most a block, from `offset` on.
        offset: where the last whole line ended.
        shown: the unfinished line as it was sent last.
    """
    end = data.rfind(b"\n") + 1
    if end == 0 and len(data) == _BLOCK:
        end = len(data)  # a line longer than a block is shown in pieces
    whole, partial = data[:end], data[end:]
    offset += end
    events = ""
    if whole:
        lines = whole.decode("utf-8", errors="replace").removesuffix("\n").split("\n")
        events += _event("lines", "".join(f"{clean_line(line)}\n" for line in lines), offset)
    if partial != shown or (whole and partial):
        events += _event("partial", clean_line(partial.decode("utf-8", errors="replace")), offset)
    return Look(events, offset, partial, is_behind=len(data) == _BLOCK)


def _event(kind: str, text: str, offset: int) -> str:
    return f"event: {kind}\nid: {offset}\ndata: {json.dumps(text)}\n\n"


async def follow(
    catalogue: Catalogue, address: str, number: int, *, offset: int, stopping: Callable[[], bool]
) -> AsyncIterator[str]:
    """The events of an attempt's log.

    Args:
        catalogue: the prefix.
        address: of the step.
        number: of the attempt.
        offset: where to begin, in bytes.
        stopping: whether the server is about to end.
    """
    import anyio

    files, key = catalogue.files(), f"{address}/attempts/{number}/log.txt"

    def read(start: int) -> bytes:
        try:
            return files.range(key, start=start, stop=start + _BLOCK)
        except UnreadableFileError:  # not there yet, or no longer
            return b""

    shown, looks = b"", 0
    while not stopping():
        # The state comes first: what an ended attempt printed is all there when the log is read after it.
        is_running = await anyio.to_thread.run_sync(catalogue.attempt_state, address, number) == "running"
        found = look(await anyio.to_thread.run_sync(read, offset), offset=offset, shown=shown)
        offset, shown = found.offset, found.partial
        if found.events:
            yield found.events
            looks = 0
        if found.is_behind:
            continue
        if not is_running:
            yield _event("end", "", offset)
            return
        looks += 1
        if looks % _HEARTBEAT_LOOKS == 0:
            yield ": still here\n\n"
        await anyio.sleep(_PERIOD)
