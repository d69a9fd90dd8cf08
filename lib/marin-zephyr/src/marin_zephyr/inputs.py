"""The inputs of tasks that any plan may have: files, rows by value, Arrow data by value, and a partition of blocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa

from marin_zephyr.context import Frames, TaskContext
from marin_zephyr.counters import RowCounts
from marin_zephyr.formats import reader
from marin_zephyr.formats.files import InputFile, check_unchanged
from marin_zephyr.frames import batches_of_rows, named, to_frame
from marin_zephyr.nodes import ReadOptions, Row
from marin_zephyr.shuffle.blocks import read_blocks

_BYTES_A_ROW = 256


@dataclass(frozen=True, kw_only=True)
class FilesInput:
    """Read these files, in this order."""

    files: tuple[InputFile, ...]
    options: ReadOptions

    @property
    def weight(self) -> int:
        """Estimated bytes once decompressed."""
        return sum(file.weight for file in self.files)

    @property
    def name(self) -> str:
        """The first file, and how many more."""
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        return self.files[0].url + more

    def frames(self, context: TaskContext, counts: RowCounts) -> Frames:
        """The files' rows; records that cannot be read are counted as rejected."""
        try:
            for file in self.files:
                check_unchanged(file)
                frames = reader(file.format)(file, self.options, context.desk)
                yield from counted(frames if self.options.raw else map(named, frames), counts)
                check_unchanged(file)
        finally:  # also if whoever reads has enough
            counts.rows_in += context.desk.num_records + context.desk.num_filtered
            counts.rejected += context.desk.num_records
            counts.filtered += context.desk.num_filtered
            context.absent["read"] = context.desk.absent


@dataclass(frozen=True, kw_only=True)
class RowsInput:
    """These rows, by value."""

    rows: tuple[Row, ...]

    @property
    def weight(self) -> int:
        """A guess."""
        return len(self.rows) * _BYTES_A_ROW

    @property
    def name(self) -> str:
        """How many rows."""
        return f"{len(self.rows):,} rows given by value"

    def frames(self, context: TaskContext, counts: RowCounts) -> Frames:
        """The rows as frames."""
        return counted(batches_of_rows(self.rows), counts)


@dataclass(frozen=True, kw_only=True)
class ArrowInput:
    """These rows, as an Arrow IPC stream."""

    stream: bytes

    @property
    def weight(self) -> int:
        """Bytes."""
        return len(self.stream)

    @property
    def name(self) -> str:
        """How large."""
        return f"{len(self.stream):,} bytes of Arrow given by value"

    def frames(self, context: TaskContext, counts: RowCounts) -> Frames:
        """The rows, a batch of the stream at a time."""
        with pa.ipc.open_stream(self.stream) as batches:
            yield from counted((named(to_frame(pa.Table.from_batches([batch]))) for batch in batches), counts)


SOURCES = (FilesInput, RowsInput, ArrowInput)
"""The inputs that bring rows into a plan; all others hold what an earlier stage has made."""


@dataclass(frozen=True, kw_only=True)
class PartitionInput:
    """One partition of an exchange: its blocks in each of the files, in order."""

    files: tuple[Path, ...]
    partition: int
    weight: int = 0

    @property
    def name(self) -> str:
        """Which partition."""
        return f"partition {self.partition} of {len(self.files)} files"

    def frames(self, context: TaskContext, counts: RowCounts) -> Frames:
        """The partition's rows, file after file."""
        return counted((f for path in self.files for f in read_blocks(path, self.partition)), counts)


def counted(frames: Iterable[pl.DataFrame], counts: RowCounts) -> Frames:
    """The same frames, their rows counted as passed."""
    for frame in frames:
        counts.rows_in += frame.height
        counts.passed += frame.height
        yield frame
