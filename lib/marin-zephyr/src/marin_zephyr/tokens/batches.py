"""What flows from reading to writing: runs of rows in, runs of encoded documents out, both as columns.

A run is small (about a megabyte of text), belongs to one input file, and keeps the order of its rows. Nothing on
this way is a Python object a document: texts are one Arrow buffer, ids are one array, and a document is a length.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    import pyarrow as pa
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Rows:
    """A run of rows of one input file.

    Attributes:
        file: the number of the input file.
        first_row: the number of the first of them among the rows that the file's reader yields.
        frame: the columns that the encoder asked for, as they were read. Of a record of JSON, a column that is no text
            holds all of the record, as text: what lies nested there need not be of one type in all records.
        sources: String, one a row: the file that it first came from, as a corpus's column ``source`` says, else the
            input file's name.
        num_bytes: about how much text they hold.
    """

    file: int
    first_row: int
    frame: "pl.DataFrame"
    sources: "pl.Series"
    num_bytes: int = 0


@dataclass(frozen=True)
class Encoded:
    """The rows of a run as documents.

    Attributes:
        ids: Int32[tokens], all documents one after the other, special ids included.
        lengths: Int64[rows], ids of each document; 0 where nothing was left of a row, or where it was refused.
        num_bytes: Int64[rows], UTF-8 bytes of each document's text.
        mask: Bool[tokens], which ids count in the loss; None where all do.
        refused: row of the run -> why it is no document. Every such row has length 0.
    """

    ids: "NDArray[np.int32]"
    lengths: "NDArray[np.int64]"
    num_bytes: "NDArray[np.int64]"
    mask: "NDArray[np.bool_] | None"
    refused: Mapping[int, str]


class RowEncoder(Protocol):
    """Rows to documents of ids. One instance serves one thread; `replica` makes another."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads."""
        ...

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Those of them that hold text: a row with anything else there is refused by the reader."""
        ...

    @property
    def identity(self) -> Mapping[str, Any]:
        """All that decides which ids come out, JSON-able: it enters the manifest's settings and the plan's digest."""
        ...

    def replica(self) -> Self:
        """An equal encoder for another thread."""
        ...

    def encode(self, rows: Rows) -> Encoded:
        """Encodes a run; a row that cannot be a document is refused with its reason, never dropped.

        Raises:
            SchemaError: the frame lacks a column, or one is of another type.
        """
        ...


class Engine(Protocol):
    """Plain text to ids, without special tokens, whatever the text says."""

    @property
    def name(self) -> str:
        """``tokenizers`` or ``gigatoken``."""
        ...

    def replica(self) -> Self:
        """An equal engine for another thread."""
        ...

    def encode(self, texts: "pa.LargeStringArray") -> "tuple[NDArray[np.int32], NDArray[np.int64]]":
        """Int32[tokens], the ids of all texts one after the other, and Int64[texts], how many each has; null has 0."""
        ...
