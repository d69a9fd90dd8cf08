"""Logs: what ranks write, read line by line while they write it or after.

A log is the file that a rank's stdout and stderr go to, so following it costs the rank nothing and loses nothing when
the follower dies. Lines are handed on whole: what follows the last line break waits for its rest, or for the end.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

CHUNK = 1 << 20


class Follower:
    """Reads several growing logs from where it last stopped.

    Args:
        logs: one file a rank, in order; they may not be there yet.
    """

    def __init__(self, logs: Sequence[Path]) -> None:
        self._logs = tuple(logs)
        self._offsets = [0] * len(self._logs)
        self._rests = [b""] * len(self._logs)

    def lines(self, *, last: bool = False) -> Iterator[tuple[int, str]]:
        """Lines that have become whole since the last call, rank by rank, as (rank, text without its line break).

        Args:
            last: nothing more will be written, so that an unfinished line counts as whole.
        """
        for rank, path in enumerate(self._logs):
            for line in self._read(rank, path):
                yield rank, line.decode("utf-8", "replace")
            if last and self._rests[rank]:
                yield rank, self._rests[rank].decode("utf-8", "replace")
                self._rests[rank] = b""

    def _read(self, rank: int, path: Path) -> Iterator[bytes]:
        try:
            log = path.open("rb")
        except FileNotFoundError:
            return
        with log:
            log.seek(self._offsets[rank])
            while chunk := log.read(CHUNK):
                self._offsets[rank] += len(chunk)
                *whole, self._rests[rank] = (self._rests[rank] + chunk).split(b"\n")
                yield from whole
