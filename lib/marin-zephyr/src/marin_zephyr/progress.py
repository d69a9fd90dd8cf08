"""Progress: a line every two seconds through `logging`, or a bar where a command line asks for one.

A library does not print. `LogProgress` is the default: it logs at INFO to ``marin_zephyr.progress``, so that silence is
the caller's choice. `BarProgress` draws a bar on a terminal, and is what the ``zephyr`` command uses there.

What is counted has three sizes: steps, of which there may be a known total (shards, documents), items (rows, tokens)
and bytes of input. How much is left is told by bytes where they are known: shards are seldom of one size, and bytes
are what takes time.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any, Protocol

from marin_zephyr.reporting.quantities import cut, shown_bytes, shown_duration

_log = logging.getLogger("marin_zephyr.progress")
_LOG_SECONDS = 2.0
_BAR_SECONDS = 0.1
_BAR_WIDTH = 12
_MANY_STEPS = 1000
_MARGIN = 4  # a terminal that echoes ^C at the end of a full line would leave a copy of it


@dataclass(frozen=True, kw_only=True)
class Work:
    """A piece of work that is about to begin."""

    name: str
    steps: str
    """What is counted, in the plural."""
    items: str
    """What the steps are made of, in the plural."""
    total: int | None
    """How many steps there are, if that is known."""
    done: int = 0
    """How many of them an earlier run has done."""
    num_bytes: int = 0
    """Bytes of input in all, as far as they are known; 0 if not."""
    done_bytes: int = 0
    """How many of them an earlier run has done."""


class Progress(Protocol):
    """Is told how one piece of work after the other goes. Calls come from one thread: start, advance..., finish."""

    def start(self, work: Work) -> None:
        """Work begins."""
        ...

    def advance(self, *, items: int, steps: int = 1, rejected: int = 0, num_bytes: int = 0, retried: int = 0) -> None:
        """One more step is done, or several.

        Args:
            items: how many they were made of.
            steps: how many.
            rejected: how many of these were refused.
            num_bytes: its bytes of input.
            retried: how many steps had to be tried again since the last call.
        """
        ...

    def finish(self) -> None:
        """The work has ended, well or not."""
        ...


class _Counts:
    """The counts, and when they were last shown."""

    def start(self, work: Work) -> None:
        """Starts from nothing, or from what an earlier run has done."""
        self._work = work
        self._done, self._bytes = work.done, work.done_bytes
        self._items = self._rejected = self._retried = 0
        self._began = self._shown = time.monotonic()

    def _count(self, items: int, *, steps: int, rejected: int, num_bytes: int, retried: int, every: float) -> bool:
        """Counts steps; whether it is time to show the counts again."""
        self._done += steps
        self._items += items
        self._rejected += rejected
        self._bytes += num_bytes
        self._retried += retried
        now = time.monotonic()
        is_due = now - self._shown >= every
        if is_due:
            self._shown = now
        return is_due

    @property
    def _elapsed(self) -> float:
        return max(1e-3, time.monotonic() - self._began)

    def _steps_done(self) -> str:
        of = "" if self._work.total is None else f"/{self._work.total:,}"
        return f"{self._done:,}{of} {self._work.steps}"

    def _rates(self) -> list[str]:
        """Items a second, steps if they come by the thousand, and bytes where they are known."""
        rates = [f"{self._items / self._elapsed:,.0f} {self._work.items}/s"] if self._items else []
        if self._done - self._work.done >= _MANY_STEPS:
            rates.append(f"{(self._done - self._work.done) / self._elapsed:,.0f} {self._work.steps}/s")
        if read := self._bytes - self._work.done_bytes:
            rates.append(f"{shown_bytes(read / self._elapsed)}/s")
        return rates

    def _trouble(self) -> list[str]:
        counts = ((self._rejected, "rejected"), (self._retried, "retried"))
        return [f"{n:,} {what}" for n, what in counts if n]

    def _left(self) -> list[str]:
        """How long the rest will take if it goes as the work of this run went, by bytes or else by steps."""
        work = self._work
        whole, now, earlier = work.total, self._done, work.done
        if whole is not None and now >= whole:
            return []
        if work.num_bytes:
            whole, now, earlier = work.num_bytes, self._bytes, work.done_bytes
        if whole is None or now <= earlier:
            return []
        return [f"{shown_duration(self._elapsed * max(0, whole - now) / (now - earlier))} left"]


class LogProgress(_Counts):
    """``normalize: 7/14 shards, 21,000 rows, 3 rejected, 9,800 rows/s`` every two seconds, and at the end."""

    def advance(self, *, items: int, steps: int = 1, rejected: int = 0, num_bytes: int = 0, retried: int = 0) -> None:
        """Speaks if two seconds have gone since it last did."""
        counts = {"steps": steps, "rejected": rejected, "num_bytes": num_bytes, "retried": retried}
        if self._count(items, every=_LOG_SECONDS, **counts):
            self._speak()

    def finish(self) -> None:
        """Says how it ended."""
        self._speak()

    def _speak(self) -> None:
        counts = [self._steps_done(), f"{self._items:,} {self._work.items}"]
        told = [*counts, *self._trouble(), *self._rates(), *self._left()]
        _log.info("%s: %s", self._work.name, ", ".join(told))


class BarProgress(_Counts):
    """A bar with steps, time left, trouble and rates, on standard error: as much of that as fits the line."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self._bar: Any = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=_BAR_WIDTH),
            TextColumn("{task.fields[told]}", markup=False),
            console=Console(stderr=True),
        )

    def start(self, work: Work) -> None:
        """A new bar under the earlier ones."""
        super().start(work)
        shown = cut(work.name, self._bar.console.width // 3)
        self._bar.start()
        self._task = self._bar.add_task(shown, total=work.num_bytes or work.total, told="")
        self._room = self._bar.console.width - len(shown) - _BAR_WIDTH - 2 - _MARGIN
        self._draw()

    def advance(self, *, items: int, steps: int = 1, rejected: int = 0, num_bytes: int = 0, retried: int = 0) -> None:
        """Further by some steps; drawn ten times a second at most."""
        counts = {"steps": steps, "rejected": rejected, "num_bytes": num_bytes, "retried": retried}
        if self._count(items, every=_BAR_SECONDS, **counts):
            self._draw()

    def finish(self) -> None:
        """Leaves the bar as it stands, and the terminal as it was."""
        self._draw()
        self._bar.stop()

    def _draw(self) -> None:
        told = self._steps_done()
        for part in (*self._left(), *self._trouble(), *self._rates()):
            if len(told) + len(part) + 2 > self._room:
                break
            told += f", {part}"
        self._bar.update(self._task, completed=self._bytes if self._work.num_bytes else self._done, told=told)
