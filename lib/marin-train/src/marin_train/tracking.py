"""Tracking: where a run's rows go. Three methods, so that any service can be one; the built-in one is a file.

The file is the record: one JSON object a line, appended as steps finish. A resumed run begins a new one with the rows
up to the checkpoint it continues from: it reads as if the run had never stopped, except for its times, and a process
that was taken over from appends to a file that is gone. A file that lacks rows before it is refused, never continued
with a hole.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TextIO

from marin_train.errors import CheckpointError, MarinTrainError


class Tracker(Protocol):
    """What a run tells, in this order: `start` once, `log` for every row, `finish` once if the run completed."""

    def start(self, record: Mapping[str, Any], *, step: int) -> None:
        """The run begins, or goes on after ``step`` completed steps; ``record`` is its configuration and policy."""
        ...

    def log(self, row: Mapping[str, Any]) -> None:
        """One step's metrics, or behind them its evaluation's, by names that begin with ``eval/``.

        ``row["step"]`` counts from 1.
        """
        ...

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The run's row for the run table."""
        ...


class JsonlTracker:
    """Rows appended to a file, each handed to the operating system before the next step's.

    Args:
        path: the file; its directory exists.
        every_step: whether each step has a row, as in ``metrics.jsonl``.

    Raises:
        CheckpointError: by `start`, where the file lacks the rows of steps that are done.
        MarinTrainError: by `log`, where the disk takes no more.
    """

    def __init__(self, path: Path, *, every_step: bool = True) -> None:
        self._path, self._every_step = path, every_step
        self._file: TextIO | None = None

    def start(self, record: Mapping[str, Any], *, step: int) -> None:
        self._path.touch()
        lengths = [length for _, length in _rows(self._path, last_step=step)]
        if self._every_step and len(lengths) != step:
            raise CheckpointError(
                f"{self._path} has the rows of {len(lengths)} of {step} steps that are done; restore it, or choose "
                f"another output directory"
            )
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        shutil.copyfile(self._path, temporary)
        with temporary.open("r+b") as file:
            file.truncate(sum(lengths))
            os.fsync(file.fileno())  # the rows of saved steps are on the disk, and must be so in their new place
        temporary.replace(self._path)
        self._file = self._path.open("a", encoding="utf-8")

    def log(self, row: Mapping[str, Any]) -> None:
        if self._file is None:
            raise ValueError("JsonlTracker.log before start")
        try:
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()
        except OSError as error:
            raise MarinTrainError(
                f"{self._path} cannot be written: {error.strerror or error}; make room, and the same call goes on from "
                f"the last checkpoint"
            ) from error

    def sync(self) -> None:
        """Waits until the rows are on the disk, where no loss of power undoes them."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def finish(self, summary: Mapping[str, Any]) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file; also right after a run that did not finish."""
        if self._file is not None:
            with suppress(OSError):  # of a row that could not be written, which `log` has said
                self._file.close()
            self._file = None


class SilentTracker:
    """Keeps nothing: that of the processes that do not write the run's rows."""

    def start(self, record: Mapping[str, Any], *, step: int) -> None: ...

    def log(self, row: Mapping[str, Any]) -> None: ...

    def sync(self) -> None: ...

    def finish(self, summary: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a ``metrics.jsonl``, without one that a killed process left half written."""
    return [row for row, _ in _rows(Path(path))]


def _rows(path: Path, *, last_step: int | None = None) -> Iterator[tuple[dict[str, Any], int]]:
    """Whole rows with their lengths in bytes, up to ``last_step`` or the first line that is not one."""
    with path.open("rb") as file:
        for line in file:
            try:
                row = json.loads(line)
            except ValueError:
                return
            if not line.endswith(b"\n") or (last_step is not None and row["step"] > last_step):
                return
            yield row, len(line)
