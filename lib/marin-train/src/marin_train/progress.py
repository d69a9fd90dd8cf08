"""A run on a terminal: one line that is drawn anew as steps finish. It is a tracker, told what all others are told.

Rates are means over the last seconds, since a single step's is jumpy, and without the first step's, which includes
compilation, once there is another; the remaining time follows from them. Whatever is logged meanwhile is printed above
the line.
"""

import logging
import sys
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress

_WINDOW_SECONDS = 10.0
"""Rates are means over the steps of so long."""

_BAR_WIDTH = 16


class ProgressLine:
    """A `marin_train.tracking.Tracker` that draws step, loss, time left, tokens a second and utilisation both ways, or
    as much of that, in this order, as fits the terminal.
    """

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._rows: deque[tuple[float, float, float, float]] = deque()

    def start(self, record: Mapping[str, Any], *, step: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        console = Console(stderr=True)
        self._progress = Progress(BarColumn(bar_width=_BAR_WIDTH), TextColumn("{task.description}"), console=console)
        self._room = console.width - _BAR_WIDTH - 2
        self._steps, self._told = record["config"]["steps"], 0
        self._task = self._progress.add_task("compiling the step", total=self._steps, completed=step)
        self._progress.start()

    def log(self, row: Mapping[str, Any]) -> None:
        if self._progress is None or "step_time_s" not in row:  # an evaluation's row; the loop logs a line of its own
            return
        seconds, tokens = row["step_time_s"], row["tokens_per_s"] * row["step_time_s"]
        if self._told == 1:
            self._rows.clear()
        self._told += 1
        self._rows.append((seconds, tokens, row["mfu_causal"] * seconds, row["mfu_full"] * seconds))
        while len(self._rows) > 1 and sum(row[0] for row in self._rows) > _WINDOW_SECONDS:
            self._rows.popleft()
        seconds, tokens, causal, full = (sum(column) for column in zip(*self._rows, strict=True))
        left = (self._steps - row["step"]) * seconds / len(self._rows)
        told = f"step {row['step']:,}/{self._steps:,}"
        for part in (
            "no loss" if row["loss"] is None else f"loss {row['loss']:.3f}",
            f"{_duration(left)} left",
            f"{tokens / seconds:,.0f} tokens/s",
            f"mfu {causal / seconds:.1%} causal, {full / seconds:.1%} full",
        ):
            if len(told) + len(part) + 2 > self._room:
                break
            told += f", {part}"
        self._progress.update(self._task, completed=row["step"], description=told)

    def finish(self, summary: Mapping[str, Any]) -> None:
        self.close()

    def close(self) -> None:
        """Leaves the line as it is; also right after a run that did not finish."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


class StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is at the moment, which a line that is being drawn replaces by itself."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # pyrefly: ignore[bad-override]
        return sys.stderr


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours / 24:.1f} days"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
