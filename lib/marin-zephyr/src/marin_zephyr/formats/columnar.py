"""Parts of columns: what the sinks of parquet and of Arrow share.

Rows are held until a *group* is full (a row group of parquet, a batch of Arrow) and written as one. Where groups end
depends on the rows alone. The schema may widen while a part is written (a later batch has a float where the first had
integers, or one more column): then the part is written again from what it holds, losslessly or not at all. A part
without rows is a readable file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from marin_zephyr.batching import batches
from marin_zephyr.errors import SchemaError
from marin_zephyr.frames import BATCH_ROWS, conform, unify

GROUP_BYTES = 16 << 20
"""Of values in a group: what a part holds back, and for the time of a copy twice."""


class ColumnarPart(ABC):
    """One file of columns; groups of at most 65,536 rows and 16 MiB. Satisfies `writers.PartWriter`.

    Args:
        path: the file to write.
        compression: of the columns, as the format names it; None or ``none`` for none.
    """

    def __init__(self, path: Path, compression: str | None) -> None:
        self._path = path
        self._compression = None if compression == "none" else compression
        self._schema: pa.Schema | None = None
        self._writer: Any = None
        self._held: list[pa.Table] = []
        self._rows = self._bytes = 0

    def write(self, frame: pl.DataFrame) -> None:
        """Appends rows, holding them until a group is full.

        Raises:
            SchemaError: a column's type does not unify with that of earlier rows.
        """
        known = [] if self._schema is None else [self._schema]
        self._widen(unify([*known, self._table(frame.clear()).schema], what=self._path.name))
        for batch in batches([frame]):
            piece = self._table(batch)
            if self._held and (self._rows + piece.num_rows > BATCH_ROWS or self._bytes + piece.nbytes > GROUP_BYTES):
                self._flush()
            self._held.append(piece)
            self._rows += piece.num_rows
            self._bytes += piece.nbytes

    def close(self) -> pa.Schema:
        """Writes what is held, and ends the file; its schema."""
        self._flush()
        schema = self._schema or pa.schema([])
        (self._writer or self._open(self._path, schema)).close()
        return schema

    def rewrite(self, schema: pa.Schema) -> None:
        """Replaces a part that was closed by itself under a wider schema, atomically."""
        wide = self._path.with_suffix(".wide")
        writer = self._open(wide, schema)
        self._copy(self._path, writer, schema)
        writer.close()
        wide.replace(self._path)

    def _flush(self) -> None:
        if not self._held:
            return
        assert self._schema is not None
        if not len(self._schema):
            raise SchemaError(
                f"{self._path.name}: its rows have no column, and it would forget them; leave them out, or write jsonl"
            )
        self._writer = self._writer or self._open(self._path, self._schema)
        tables = [conform(t, self._schema, what=self._path.name) for t in self._held]
        self._append(self._writer, pa.concat_tables(tables).combine_chunks())
        self._held, self._rows, self._bytes = [], 0, 0

    def _widen(self, schema: pa.Schema) -> None:
        before, self._schema = self._schema, schema
        if self._writer is None or schema == before:
            return
        self._writer.close()
        narrow = self._path.with_suffix(".narrow")
        self._path.rename(narrow)
        self._writer = self._open(self._path, schema)
        self._copy(narrow, self._writer, schema)
        narrow.unlink()

    def _copy(self, source: Path, writer: Any, schema: pa.Schema) -> None:
        for group in self._groups(source):
            self._append(writer, conform(group, schema, what=source.name).combine_chunks())

    def _table(self, frame: pl.DataFrame) -> pa.Table:
        """Rows as the format has them."""
        return frame.to_arrow()

    @abstractmethod
    def _open(self, path: Path, schema: pa.Schema) -> Any:
        """The format's own writer of a new file."""

    @abstractmethod
    def _append(self, writer: Any, group: pa.Table) -> None:
        """Writes rows as one group."""

    @abstractmethod
    def _groups(self, path: Path) -> Iterator[pa.Table]:
        """The groups of a file."""
