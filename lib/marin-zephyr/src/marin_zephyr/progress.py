"""Progress: a line every two seconds through `logging`, or a bar where a command line asks for one.

A library does not print. `LogProgress` is the default: it logs at INFO to ``marin_zephyr.progress``, so that silence is
the caller's choice. `BarProgress` draws a bar on a terminal, and is what the ``zephyr`` command uses there.

What is counted has two sizes: steps, of which there may be a known total (shards, documents), and items (rows, tokens).
"""

from __future__ import annotations

import logging
import time
from typing import Any, Protocol

_log = logging.getLogger("marin_zephyr.progress")
_LOG_SECONDS = 2.0
_BAR_SECONDS = 0.1


class Progress(Protocol):
    """Is told how one piece of work after the other goes. Calls come from one thread: start, advance..., finish."""

    def start(self, name: str, *, steps: str, items: str, total: int | None, done: int = 0) -> None:
        """Work begins.

        Args:
            name: what it is.
            steps: what is counted, in the plural.
            items: what the steps are made of, in the plural.
            total: how many steps there are, if that is known.
            done: how many of them an earlier run has done.
        """
        ...

    def advance(self, *, items: int, rejected: int = 0) -> None:
        """One more step is done; it was of so many items, of which some were refused."""
        ...

    def finish(self) -> None:
        """The work has ended, well or not."""
        ...


class _Counts:
    """The counts, and when they were last shown."""

    def start(self, name: str, *, steps: str, items: str, total: int | None, done: int = 0) -> None:
        """Starts from nothing."""
        self._name, self._steps, self._items_name = name, steps, items
        self._total, self._done, self._items, self._rejected = total, done, 0, 0
        self._began = self._shown = time.monotonic()

    def _count(self, items: int, *, rejected: int, every: float) -> bool:
        """Counts a step; whether it is time to show the counts again."""
        self._done += 1
        self._items += items
        self._rejected += rejected
        now = time.monotonic()
        is_due = now - self._shown >= every
        if is_due:
            self._shown = now
        return is_due

    def _speed(self) -> str:
        rate = self._items / max(1e-3, time.monotonic() - self._began)
        refused = f"{self._rejected:,} rejected, " if self._rejected else ""
        return f"{self._items:,} {self._items_name}, {refused}{rate:,.0f} {self._items_name}/s"


class LogProgress(_Counts):
    """``normalize: 7/14 shards, 21,000 rows, 3 rejected, 9,800 rows/s`` every two seconds, and at the end."""

    def advance(self, *, items: int, rejected: int = 0) -> None:
        """Speaks if two seconds have gone since it last did."""
        if self._count(items, rejected=rejected, every=_LOG_SECONDS):
            self._speak()

    def finish(self) -> None:
        """Says how it ended."""
        self._speak()

    def _speak(self) -> None:
        done = f"{self._done:,}" if self._total is None else f"{self._done:,}/{self._total:,}"
        _log.info("%s: %s %s, %s", self._name, done, self._steps, self._speed())


class BarProgress(_Counts):
    """A bar with steps, items and items/s, on standard error."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._bar: Any = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )

    def start(self, name: str, *, steps: str, items: str, total: int | None, done: int = 0) -> None:
        """A new bar under the earlier ones."""
        super().start(name, steps=steps, items=items, total=total, done=done)
        self._bar.start()
        self._task = self._bar.add_task(f"{name}, {steps}", total=total, completed=done, speed="")

    def advance(self, *, items: int, rejected: int = 0) -> None:
        """One step further; drawn ten times a second at most."""
        if self._count(items, rejected=rejected, every=_BAR_SECONDS):
            self._draw()

    def finish(self) -> None:
        """Leaves the bar as it stands, and the terminal as it was."""
        self._draw()
        self._bar.stop()

    def _draw(self) -> None:
        self._bar.update(self._task, completed=self._done, speed=self._speed())
