"""Progress: a line every two seconds through `logging`, or a bar where a command line asks for one.

A library does not print. `LogProgress` is the default: it logs at INFO to ``marin_zephyr.progress``, so that silence is
the caller's choice. `BarProgress` draws a bar on a terminal, and is what the ``zephyr`` command uses there.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Protocol

_log = logging.getLogger("marin_zephyr.progress")
_EVERY_SECONDS = 2.0


class Progress(Protocol):
    """Is told how a stage goes. Calls come from one thread, in the order start, advance..., finish."""

    def start(self, stage: str, *, num_tasks: int, num_done: int) -> None:
        """A stage begins; ``num_done`` of its tasks were committed by an earlier run."""
        ...

    def advance(self, *, rows: int) -> None:
        """One more task is committed; it read ``rows`` rows."""
        ...

    def finish(self) -> None:
        """The stage is committed."""
        ...


class LogProgress:
    """``normalize: 7/14 shards, 21,000 rows, 9,800 rows/s`` every two seconds, and once at the end."""

    def start(self, stage: str, *, num_tasks: int, num_done: int) -> None:
        """Resets the clock."""
        self._stage, self._num_tasks, self._done, self._rows = stage, num_tasks, num_done, 0
        self._began = self._spoke = time.monotonic()

    def advance(self, *, rows: int) -> None:
        """Speaks if two seconds have gone since it last did."""
        self._done += 1
        self._rows += rows
        if time.monotonic() - self._spoke >= _EVERY_SECONDS:
            self._spoke = time.monotonic()
            _log.info("%s", self._line())

    def finish(self) -> None:
        """Says how it ended."""
        _log.info("%s", self._line())

    def _line(self) -> str:
        seconds = max(1e-3, time.monotonic() - self._began)
        speed = f"{self._rows:,} rows, {self._rows / seconds:,.0f} rows/s"
        return f"{self._stage}: {self._done}/{self._num_tasks} shards, {speed}"


class BarProgress:
    """A bar with rows and rows/s, on standard error."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._bar: Any = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rows]:,} rows, {task.fields[rate]:,.0f} rows/s"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )

    def start(self, stage: str, *, num_tasks: int, num_done: int) -> None:
        """A new bar under the earlier ones."""
        self._rows, self._began = 0, time.monotonic()
        self._bar.start()
        self._task = self._bar.add_task(stage, total=num_tasks, completed=num_done, rows=0, rate=0.0)

    def advance(self, *, rows: int) -> None:
        """One task further."""
        self._rows += rows
        rate = self._rows / max(1e-3, time.monotonic() - self._began)
        self._bar.update(self._task, advance=1, rows=self._rows, rate=rate)

    def finish(self) -> None:
        """Leaves the bar as it stands."""
        self._bar.stop()
