"""The nodes of a lazy plan: sources, operations, keyed work and sinks, as plain frozen dataclasses.

Sources (`FileSource` and so on) have no upstream; an operation is an `Apply` node around one of the dataclasses
below; keyed work (`Distinct`, `GroupBy`, `Reduce`, `Join`, `Sort`), positional work that cuts stages (`Union`,
`Repartition`, `Take`) and `Sink` are nodes of their own, because the planner cuts stages there.

Invariant: a node holds only plain values, functions and expressions, so a plan can be pickled, fingerprinted and
explained without being run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import polars as pl

    from marin_zephyr.columns import Aggregate

type OnError = Literal["raise", "skip", "quarantine"]
type JoinHow = Literal["inner", "left", "right", "full", "semi", "anti"]
type Row = dict[str, Any]
type Inputs = str | Path | Sequence[str | Path]

# The bytes of the line that a row was read from, without its end.
RAW = "\0raw"
FORMATS = ("jsonl", "json", "parquet", "arrow", "warc", "csv", "text")
"""What ``format=`` may be. JSON lines (jsonl); JSON lines, one array of objects, or one object over lines (json);
parquet; Arrow IPC files and streams (arrow); web archives (warc); CSV with a header (csv); any other text (text)."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What a reader is asked for; see `Dataset.from_files` for the fields."""

    unit: Literal["line", "file"] = "line"
    with_source: bool = False
    columns: tuple[str, ...] | None = None
    string_columns: tuple[str, ...] = ()
    predicate: pl.Expr | None = None
    """Rows for which it is not true are left out by the reader."""
    raw: bool = False
    """Lines are wanted as they stand, in the column `RAW`; only of formats of lines of JSON."""
    pushed: bool = False
    """Whether ``columns`` is what the plan looks at, not what the caller asked for: absent ones stay absent."""


@dataclass(frozen=True, kw_only=True)
class FileSource:
    """Rows read from files; see `Dataset.from_files` for the fields."""

    inputs: tuple[str, ...]
    format: str | None
    on_error: OnError
    max_bad: float | None = None
    root: str | None
    shard_bytes: int | None
    options: ReadOptions


@dataclass(frozen=True, kw_only=True)
class RowSource:
    """Rows given by value, cut into ``num_shards`` contiguous shards."""

    rows: tuple[Row, ...]
    num_shards: int
    on_error: OnError


@dataclass(frozen=True, kw_only=True)
class ArrowSource:
    """Rows given as Arrow IPC streams, one a shard."""

    streams: tuple[bytes, ...]
    on_error: OnError


@dataclass(frozen=True, kw_only=True)
class HubSource:
    """Rows of a dataset of the Hugging Face hub; see `Dataset.from_hf` for the fields."""

    dataset: str
    revision: str | None
    split: str
    config: str | None
    on_error: OnError
    shard_bytes: int | None
    options: ReadOptions


@dataclass(frozen=True)
class Map:
    """One row in, one row out."""

    fn: Callable[[Row], Row]


@dataclass(frozen=True)
class FlatMap:
    """One row in, any number of rows out."""

    fn: Callable[[Row], Iterable[Row]]


@dataclass(frozen=True)
class FilterRows:
    """Keeps the rows for which the function answers true."""

    fn: Callable[[Row], Any]


@dataclass(frozen=True)
class FilterExpr:
    """Keeps the rows for which the expression is true; null counts as false."""

    expr: pl.Expr


@dataclass(frozen=True)
class RejectWhere:
    """Refuses the rows for which the expression is true, with a reason."""

    expr: pl.Expr
    reason: str


@dataclass(frozen=True)
class Select:
    """Exactly these columns."""

    exprs: tuple[pl.Expr, ...]


@dataclass(frozen=True)
class WithColumns:
    """The row's columns, and these."""

    exprs: tuple[pl.Expr, ...]


@dataclass(frozen=True)
class MapBatches:
    """A function over whole batches; ``batch_rows`` fixes their size, and then they are never resized."""

    fn: Callable[[Any], Any]
    batch_format: Literal["polars", "arrow"]
    batch_rows: int | None


type RowOp = Map | FlatMap | FilterRows
type Op = RowOp | FilterExpr | RejectWhere | Select | WithColumns | MapBatches | Explode | Sample | Window | MapShards


@dataclass(frozen=True)
class Explode:
    """One row for each member of the lists in a column."""

    column: str


@dataclass(frozen=True)
class Sample:
    """Each row with probability ``fraction``, by the hash of its position."""

    fraction: float
    seed: int


@dataclass(frozen=True)
class Window:
    """A function over ``size`` consecutive rows of a shard at a time."""

    fn: Callable[[list[Row]], Iterable[Row]]
    size: int


@dataclass(frozen=True)
class MapShards:
    """A function over all rows of a shard."""

    fn: Callable[[Iterator[Row]], Iterable[Row]]


@dataclass(frozen=True)
class Apply:
    """One operation on the rows of ``upstream``."""

    upstream: Node
    op: Op


@dataclass(frozen=True, kw_only=True)
class Distinct:
    """One row a key: the first or the last in input order."""

    upstream: Node
    on: tuple[str, ...] | None
    keep: Literal["first", "last"]


@dataclass(frozen=True, kw_only=True)
class GroupBy:
    """One row a key, with aggregates over the rows of that key."""

    upstream: Node
    keys: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]


@dataclass(frozen=True)
class Union:
    """The rows of all upstreams, one after the other."""

    upstreams: tuple[Node, ...]


@dataclass(frozen=True, kw_only=True)
class Repartition:
    """The same rows in ``num_shards`` contiguous, even shards."""

    upstream: Node
    num_shards: int


@dataclass(frozen=True, kw_only=True)
class Take:
    """The first rows."""

    upstream: Node
    num_rows: int


@dataclass(frozen=True, kw_only=True)
class Reduce:
    """What a function makes of the rows of each key, sorted by ``order_by`` or else in input order."""

    upstream: Node
    keys: tuple[str, ...]
    fn: Callable[[Any, Iterator[Row]], Row | Iterable[Row]]
    order_by: tuple[str, ...]
    descending: tuple[bool, ...]


@dataclass(frozen=True, kw_only=True)
class Join:
    """Rows of two datasets with equal keys, side by side; see `Dataset.join` for the fields."""

    left: Node
    right: Node
    left_on: tuple[str, ...]
    right_on: tuple[str, ...]
    how: JoinHow
    suffix: str


@dataclass(frozen=True, kw_only=True)
class Sort:
    """All rows in the order of their keys; equal keys keep the order of the input."""

    upstream: Node
    by: tuple[str, ...]
    descending: tuple[bool, ...]
    nulls_last: bool


@dataclass(frozen=True, kw_only=True)
class Sink:
    """Writes ``path/part-00000.*`` and, last, ``path/_manifest.json``."""

    upstream: Node
    path: str
    format: Literal["jsonl", "parquet", "arrow"]
    compression: str | None


type Source = FileSource | RowSource | ArrowSource | HubSource
type Keyed = Distinct | GroupBy | Reduce | Join | Sort
type Node = Source | Apply | Keyed | Union | Repartition | Take | Sink
