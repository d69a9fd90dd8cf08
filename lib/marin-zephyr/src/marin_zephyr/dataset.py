"""The lazy dataset: every method adds a node that says what to do; nothing is done until a `Session` runs it.

A `Dataset` wraps one node (see `marin_zephyr.nodes`), and every method returns a new dataset around a new node that
points at the old one. So one dataset may feed any number of others. Arguments are checked here, where the mistake was
made, and not when a worker meets them.

The order of rows is that of the sorted file names and the lines within them. Every operation keeps it, but for `sort`,
and for grouping and joining, which give the canonical order of keys within each part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from marin_zephyr.errors import UsageError
from marin_zephyr.names import check_name
from marin_zephyr.nodes import (
    FORMATS,
    Apply,
    ArrowSource,
    Distinct,
    Explode,
    FileSource,
    FilterExpr,
    FilterRows,
    FlatMap,
    GroupBy,
    HubSource,
    Inputs,
    Join,
    JoinHow,
    Map,
    MapBatches,
    MapShards,
    Node,
    OnError,
    Op,
    ReadOptions,
    Reduce,
    RejectWhere,
    Repartition,
    Row,
    RowSource,
    Sample,
    Select,
    Sink,
    Sort,
    Take,
    Union,
    Window,
    WithColumns,
)

if TYPE_CHECKING:
    import polars as pl

    from marin_zephyr.columns import Aggregate

_ON_ERROR = ("raise", "skip", "quarantine")


@dataclass(frozen=True)
class Dataset:
    """A lazy sequence of rows. Make one with `from_files` and its siblings; run it with a `Session`."""

    node: Node

    @classmethod
    def from_files(
        cls,
        inputs: Inputs,
        *,
        format: str | None = None,
        on_error: OnError = "raise",
        max_bad: float | None = None,
        unit: Literal["line", "file"] = "line",
        with_source: bool = False,
        root: str | Path | None = None,
        columns: Sequence[str] | None = None,
        string_columns: Sequence[str] = (),
        shard_bytes: int | None = None,
    ) -> Dataset:
        """Rows of files, in the order of the sorted file names.

        Args:
            inputs: a glob, a directory (all files below it, hidden ones and those named ``_*`` excepted), or a list of
                either. Any fsspec URL.
            format: ``jsonl``, ``json``, ``parquet``, ``arrow``, ``warc``, ``csv`` or ``text``; by default told from the
                name of each file (``.jsonl.zst``: a zstandard file of JSON lines). Any other file, such as ``.py``,
                wants ``text`` said.
            on_error: what becomes of a record that cannot be read: ``raise`` names file, line and byte offset;
                ``skip`` counts it; ``quarantine`` keeps it under the sink's ``rejects/`` with the reason.
            max_bad: how many records of one stage may be refused before the run fails: a number of them (100), which is
                checked as tasks finish, or below 1 a share (0.01), which is checked before anything is published.
            unit: for text: one row a ``line`` or one row a ``file``, in the column ``text``.
            with_source: adds ``source`` (file name relative to ``root``), ``source_row`` (line or row, from 1) and
                ``source_offset`` (byte offset in the uncompressed file; null where the format has none).
            root: what ``source`` is relative to; by default the fixed part of the glob, or the directory.
            columns: read only these columns; what the others hold does not matter. One that no row has is all null.
            string_columns: in these columns a value that is neither a string nor null makes the record a bad one.
            shard_bytes: how many (uncompressed, estimated) bytes make one shard of work. Small files share a shard.

        Returns:
            A dataset. The files are listed when it runs, not now.
        """
        _check("on_error", on_error, _ON_ERROR)
        _check("unit", unit, ("line", "file"))
        max_bad = _limit(max_bad, on_error)
        if format is not None:
            _check("format", format, FORMATS)
        if not isinstance(inputs, (str, Path, Iterable)):
            raise UsageError(f"from_files: inputs={inputs!r} must be a path or a list of paths")
        patterns = [inputs] if isinstance(inputs, (str, Path)) else list(inputs)
        for pattern in patterns:
            if not isinstance(pattern, (str, Path)) or not str(pattern):
                raise UsageError(f"from_files: {pattern!r} is no path; name a file, a directory or a glob")
        if not patterns:
            raise UsageError("from_files: inputs is an empty list; name at least one file, directory or glob")
        if columns is not None and not columns:
            raise UsageError("from_files: columns is empty; name at least one, or leave it out for all")
        if shard_bytes is not None and shard_bytes < 1:
            raise UsageError(f"from_files: shard_bytes={shard_bytes} must be at least 1")
        return cls(
            FileSource(
                inputs=tuple(str(p) for p in patterns),
                format=format,
                on_error=on_error,
                max_bad=max_bad,
                root=None if root is None else str(root),
                shard_bytes=shard_bytes,
                options=ReadOptions(
                    unit=unit,
                    with_source=with_source,
                    columns=None if columns is None else tuple(columns),
                    string_columns=tuple(string_columns),
                ),
            )
        )

    @classmethod
    def from_rows(
        cls, rows: Iterable[Mapping[str, Any]], *, num_shards: int = 1, on_error: OnError = "raise"
    ) -> Dataset:
        """Rows given by value.

        Args:
            rows: dicts with string keys; see `marin_zephyr.values` for what their values may be.
            num_shards: how many contiguous shards of work to cut them into.
            on_error: what becomes of a row that an operation refuses.
        """
        if num_shards < 1:
            raise UsageError(f"from_rows: num_shards={num_shards} must be at least 1")
        _check("on_error", on_error, _ON_ERROR)
        given = tuple(rows)
        for row in given:
            if not isinstance(row, Mapping):
                raise UsageError(f"from_rows: {row!r} is no row; give dicts with string keys")
        return cls(RowSource(rows=tuple(dict(row) for row in given), num_shards=num_shards, on_error=on_error))

    @classmethod
    def from_arrow(cls, data: Any, *, num_shards: int = 1, on_error: OnError = "raise") -> Dataset:
        """Rows given as Arrow data.

        Args:
            data: a ``pyarrow.Table``, a sequence of record batches of one schema, or whatever offers the Arrow stream
                interface, such as a ``polars.DataFrame``. Its rows are copied now.
            num_shards: how many contiguous shards of work to cut them into.
            on_error: what becomes of a row that an operation refuses.

        See: https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html
        """
        if num_shards < 1:
            raise UsageError(f"from_arrow: num_shards={num_shards} must be at least 1")
        _check("on_error", on_error, _ON_ERROR)
        from marin_zephyr.arrow import streams

        return cls(ArrowSource(streams=streams(data, num_shards), on_error=on_error))

    @classmethod
    def from_hf(
        cls,
        dataset: str,
        *,
        revision: str | None,
        split: str = "train",
        config: str | None = None,
        columns: Sequence[str] | None = None,
        on_error: OnError = "raise",
        with_source: bool = False,
        shard_bytes: int | None = None,
    ) -> Dataset:
        """Rows of a dataset of the Hugging Face hub, read from its own data files (extra ``hf``).

        Args:
            dataset: its name on the hub (``roneneldan/TinyStories``), or a local directory of data files.
            revision: a commit, tag or branch of the dataset's repository; None only for a local directory.
            split: which split of it.
            config: which configuration of it, if it has more than one.
            columns: read only these columns.
            on_error: see `from_files`.
            with_source: see `from_files`.
            shard_bytes: see `from_files`.

        Returns:
            A dataset. Its files are listed when it runs, not now; they are read where the tasks run.
        """
        if revision is None and not Path(dataset).is_dir():
            raise UsageError(f"from_hf: {dataset} is no local directory, so revision must say which commit of it")
        files = cls.from_files(
            [dataset], columns=columns, on_error=on_error, with_source=with_source, shard_bytes=shard_bytes
        ).node
        assert isinstance(files, FileSource)
        return cls(
            HubSource(
                dataset=dataset,
                revision=revision,
                split=split,
                config=config,
                on_error=on_error,
                shard_bytes=shard_bytes,
                options=files.options,
            )
        )

    def map(self, fn: Callable[[Row], Row]) -> Dataset:
        """Replaces each row by ``fn(row)``. ``fn`` may raise `marin_zephyr.errors.RejectRow` to refuse the row."""
        return self._apply(Map(_function("map", fn)))

    def flat_map(self, fn: Callable[[Row], Iterable[Row]]) -> Dataset:
        """Replaces each row by the rows of ``fn(row)``, any number of them."""
        return self._apply(FlatMap(_function("flat_map", fn)))

    def filter(self, predicate: Callable[[Row], Any] | pl.Expr) -> Dataset:
        """Keeps the rows for which the function or the expression is true. A null is not true, whatever the format.

        Raises:
            UsageError: the expression looks at other rows than its own (see `marin_zephyr.reach`); so do `reject`,
                `select` and `with_columns`.
        """
        if _is_expr(predicate):
            _rowwise("filter", predicate)
            return self._apply(FilterExpr(predicate))  # pyrefly: ignore
        return self._apply(FilterRows(_function("filter", predicate)))

    def reject(self, where: pl.Expr, *, reason: str) -> Dataset:
        """Refuses the rows for which ``where`` is true: they go where ``on_error`` sends bad records."""
        if not _is_expr(where):
            raise UsageError(f"reject: where={where!r} must be an expression such as col('text').is_null()")
        _rowwise("reject", where)
        return self._apply(RejectWhere(where, reason))

    def select(self, *columns: str | pl.Expr, **named: pl.Expr) -> Dataset:
        """Exactly these columns, by name or expression, in this order."""
        return self._apply(Select(_expressions("select", columns, named)))

    def with_columns(self, *columns: pl.Expr, **named: pl.Expr) -> Dataset:
        """The row's columns and these; a column of the same name is replaced."""
        return self._apply(WithColumns(_expressions("with_columns", columns, named)))

    def map_batches(
        self,
        fn: Callable[[Any], Any],
        *,
        batch_format: Literal["polars", "arrow"] = "polars",
        batch_rows: int | None = None,
    ) -> Dataset:
        """Replaces each batch by ``fn(batch)``: a frame, or an iterable of frames.

        Args:
            fn: takes and returns a ``polars.DataFrame`` or a ``pyarrow.Table``, as ``batch_format`` says.
            batch_format: ``polars`` or ``arrow``.
            batch_rows: exactly this many rows a batch (the last of a shard excepted). By default batches come as the
                reader cuts them, at most 65,536 rows and 8 MiB: a function of the inputs alone.
        """
        _check("batch_format", batch_format, ("polars", "arrow"))
        if batch_rows is not None and batch_rows < 1:
            raise UsageError(f"map_batches: batch_rows={batch_rows} must be at least 1")
        return self._apply(MapBatches(_function("map_batches", fn), batch_format, batch_rows))

    def map_shards(self, fn: Callable[[Iterator[Row]], Iterable[Row]]) -> Dataset:
        """Replaces the rows of each shard by ``fn(rows)``: one call a shard, also for one without rows.

        Args:
            fn: takes an iterator of rows and returns, or yields, any number of them. Rows that it does not ask for are
                not read. Where a shard ends depends on the inputs alone; see ``shard_bytes`` and `repartition`.
        """
        return self._apply(MapShards(_function("map_shards", fn)))

    def window(self, size: int, fn: Callable[[list[Row]], Iterable[Row]]) -> Dataset:
        """Replaces each run of ``size`` consecutive rows by the rows of ``fn(rows)``, any number of them.

        Args:
            size: rows a window; the last one of a shard may have fewer. Windows do not overlap and do not cross shards.
            fn: may raise `marin_zephyr.errors.RejectRow` to refuse all rows of the window.
        """
        if size < 1:
            raise UsageError(f"window: size={size} must be at least 1")
        return self._apply(Window(_function("window", fn), size))

    def explode(self, column: str) -> Dataset:
        """One row for each member of the list in ``column``. A null or an empty list gives one row with a null."""
        return self._apply(Explode(*_names((column,))))

    def sample(self, fraction: float, *, seed: int) -> Dataset:
        """Keeps each row with probability ``fraction``, independently of all others.

        Args:
            fraction: between 0 and 1.
            seed: of the hash of (seed, shard, position in the shard) that decides. The same input and plan give the
                same rows on any workers; the same rows cut into other shards give another choice. A second sample
                of a sample wants another seed.
        """
        if not 0 <= fraction <= 1:
            raise UsageError(f"sample: fraction={fraction} must be between 0 and 1")
        return self._apply(Sample(float(fraction), seed))

    def take(self, n: int) -> Dataset:
        """The first ``n`` rows in order. No shard is read further than that, so bad records after it go unnoticed."""
        if not isinstance(n, int) or n < 0:
            raise UsageError(f"take: n={n} must be a whole number, at least 0")
        return Dataset(Take(upstream=self._rows("take"), num_rows=n))

    def repartition(self, n: int) -> Dataset:
        """The same rows in the same order in ``n`` shards whose sizes differ by one row at most: so many part files."""
        if not isinstance(n, int) or n < 1:
            raise UsageError(f"repartition: n={n} must be a whole number, at least 1")
        return Dataset(Repartition(upstream=self._rows("repartition"), num_shards=n))

    def union(self, *others: Dataset) -> Dataset:
        """The rows of this dataset, then those of the others in the order given. Nothing is left out or sorted.

        All must have the same ``on_error``, and the same ``max_bad`` if they set one: what is done after the union
        belongs to none of them.
        """
        if not others:
            raise UsageError("union: name at least one other dataset")
        return Dataset(Union(tuple(dataset._rows("union") for dataset in (self, *others))))

    def distinct(self, *, on: str | Sequence[str] | None = None, keep: Literal["first", "last"] = "first") -> Dataset:
        """One row a key, in input order.

        Args:
            on: the key column or columns; by default the whole row. See `shuffle.keys` for which keys are
                equal.
            keep: the ``first`` or the ``last`` row of a key in input order.
        """
        _check("keep", keep, ("first", "last"))
        names = None if on is None else _names(on)
        if names == ():
            raise UsageError("distinct: on is empty; name the key columns, or leave it out for the whole row")
        return Dataset(Distinct(upstream=self._rows("distinct"), on=names, keep=keep))

    def join(
        self,
        right: Dataset,
        *,
        on: str | Sequence[str] | None = None,
        left_on: str | Sequence[str] | None = None,
        right_on: str | Sequence[str] | None = None,
        how: JoinHow = "inner",
        suffix: str = "_right",
    ) -> Dataset:
        """Rows of this dataset and of another that have equal keys, side by side.

        Keys are equal as `shuffle.keys` says (``1`` is ``1.0``), except that a null equals nothing, as in SQL.
        A key with m rows here and n rows there gives m x n rows. The result has this dataset's columns, its key
        columns filled from the other's where a row comes from there alone, and then the other's columns without its
        keys. Rows come in the canonical order of keys within a part, then in the order of this dataset, then in that of
        the other; rows with a null in their key come where that key stands, the other's first. But if the other's input
        is estimated at 32 MiB or less and ``how`` is neither ``right`` nor ``full``, it is given to every task, no row
        of this dataset moves, and rows come in the order of this dataset, then in that of the other. Each side's
        records are refused by its own ``on_error`` and ``max_bad``; what is done after the join goes by this dataset's.

        Args:
            right: the other dataset.
            on: the key column or columns, if they have the same names in both.
            left_on: this dataset's key columns.
            right_on: the other's, in the same order.
            how: ``inner`` (pairs alone), ``left`` (and rows here without a partner), ``right`` (and rows there
                without), ``full`` (both), ``semi`` (rows here that have a partner, once), ``anti`` (those that have
                none).
            suffix: is added to the name of a column of the other that this one has, too.
        """
        check_name(suffix)
        _check("how", how, ("inner", "left", "right", "full", "semi", "anti"))
        if not isinstance(right, Dataset):
            raise UsageError(f"join: right={right!r} must be a Dataset")
        if not suffix:
            raise UsageError("join: suffix is empty; a column that both have needs two names")
        if (on is None) == (left_on is None and right_on is None):
            raise UsageError("join: give on=, or left_on= and right_on=")
        mine, other = _names(left_on if on is None else on), _names(right_on if on is None else on)
        if not mine or len(mine) != len(other):
            raise UsageError(f"join: left_on={mine} and right_on={other} must name the same number of columns")
        if len(set(mine)) < len(mine) or len(set(other)) < len(other):
            raise UsageError(f"join: left_on={mine} and right_on={other} must not name a column twice")
        return Dataset(
            Join(
                left=self._rows("join"),
                right=right._rows("join"),
                left_on=mine,
                right_on=other,
                how=how,
                suffix=suffix,
            )
        )

    def group_by(self, *keys: str) -> Grouped:
        """Groups rows by columns; follow with ``.agg(...)`` or ``.reduce(...)``."""
        if not keys:
            raise UsageError("group_by: name at least one key column")
        _names(keys)
        if len(set(keys)) < len(keys):
            raise UsageError(f"group_by: {keys} names a column twice")
        return Grouped(self._rows("group_by"), _names(keys))

    def sort(
        self, by: str | Sequence[str], *, descending: bool | Sequence[bool] = False, nulls_last: bool = False
    ) -> Dataset:
        """All rows in order: within a part file and from one to the next. Equal keys keep the order of the input.

        Args:
            by: the key column or columns, the first weighs most. See `shuffle.keys` for the order of values, which
                may be of any types.
            descending: greatest first, for all columns or one by one.
            nulls_last: whether nulls come after all else; by default before, whatever ``descending`` says.

        Returns:
            A dataset whose columns have one type each.
        """
        names = _names(by)
        if not names:
            raise UsageError("sort: by is empty; name at least one column")
        upstream, flags = self._rows("sort"), _flags("sort", descending, names)
        return Dataset(Sort(upstream=upstream, by=names, descending=flags, nulls_last=nulls_last))

    def write_parquet(self, path: str | Path, *, compression: Literal["zstd", "snappy", "none"] = "zstd") -> Dataset:
        """Writes ``path/part-00000.parquet`` and so on, one a shard of work; see `Sink`."""
        _check("compression", compression, ("zstd", "snappy", "none"))
        return self._sink(path, "parquet", compression)

    def write_arrow(self, path: str | Path, *, compression: Literal["zstd", "lz4", "none"] = "zstd") -> Dataset:
        """Writes ``path/part-00000.arrow`` (Arrow IPC files) and so on, one a shard of work; see `Sink`."""
        _check("compression", compression, ("zstd", "lz4", "none"))
        return self._sink(path, "arrow", compression)

    def write_jsonl(self, path: str | Path, *, compression: Literal["gz", "zst"] | None = None) -> Dataset:
        """Writes ``path/part-00000.jsonl`` (``.gz``, ``.zst``) and so on, one a shard of work; see `Sink`."""
        if compression is not None:
            _check("compression", compression, ("gz", "zst"))
        return self._sink(path, "jsonl", compression)

    def _apply(self, op: Op) -> Dataset:
        return Dataset(Apply(self._rows(type(op).__name__), op))

    def _rows(self, operation: str) -> Node:
        if isinstance(self.node, Sink):
            raise UsageError(f"{operation} after a write to {self.node.path}: keep the dataset from before the write")
        return self.node

    def _sink(self, path: str | Path, format: Literal["jsonl", "parquet", "arrow"], compression: str | None) -> Dataset:
        if not isinstance(path, (str, Path)) or not str(path) or "\0" in str(path):
            raise UsageError(f"write: {path!r} is no path; name a directory")
        if "://" in str(path):
            raise UsageError(f"write to {path}: only local directories can be written; copy the result afterwards")
        return Dataset(Sink(upstream=self._rows("write"), path=str(path), format=format, compression=compression))


@dataclass(frozen=True)
class Grouped:
    """A dataset and its key columns, waiting for what to make of each key's rows."""

    upstream: Node
    keys: tuple[str, ...]

    def agg(self, **aggregates: Aggregate) -> Dataset:
        """One row a key, in the canonical order of keys (`shuffle.keys`) within a part.

        Null is a key like any other. Each shard aggregates its own rows first, so a key with very many rows costs no
        more than any other.

        Args:
            **aggregates: output column -> aggregate, such as ``n=agg.count(), chars=agg.sum("chars")``.
        """
        if not aggregates:
            raise UsageError("agg: name at least one aggregate, such as n=agg.count()")
        for name, aggregate in aggregates.items():
            if not hasattr(aggregate, "named"):
                raise UsageError(f"agg: {name}={aggregate!r} is no aggregate; write one such as agg.sum('chars')")
        clash = sorted(set(aggregates) & set(self.keys))
        if clash:
            raise UsageError(f"agg: {clash[0]!r} is already a key column; give the aggregate another name")
        _names(tuple(aggregates))
        named = tuple(aggregate.named(name) for name, aggregate in aggregates.items())
        return Dataset(GroupBy(upstream=self.upstream, keys=self.keys, aggregates=named))

    def reduce(
        self,
        fn: Callable[[Any, Iterator[Row]], Row | Iterable[Row]],
        *,
        order_by: str | Sequence[str] = (),
        descending: bool | Sequence[bool] = False,
    ) -> Dataset:
        """What a function makes of the rows of each key, in the canonical order of keys within a part.

        Args:
            fn: is called as ``fn(key, rows)``: the key's value (a tuple of values for several key columns) and an
                iterator over the key's rows, which need not be used up and may be longer than memory. Returns a row or
                an iterable of rows; may be a generator.
            order_by: columns by which a key's rows are sorted, nulls first, ties in input order; by default input
                order.
            descending: greatest first; for all of ``order_by``, or one by one.
        """
        order = _names(order_by)
        function, flags = _function("reduce", fn), _flags("reduce", descending, order)
        return Dataset(Reduce(upstream=self.upstream, keys=self.keys, fn=function, order_by=order, descending=flags))


def _check(field: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise UsageError(f"{field}={value!r} is not one of {', '.join(allowed)}")


def _names(columns: str | Sequence[str] | None) -> tuple[str, ...]:
    names = () if columns is None else (columns,) if isinstance(columns, str) else tuple(columns)
    for name in names:
        if not isinstance(name, str):
            raise UsageError(f"{name!r} must be the name of a column")
        check_name(name)
    return names


def _flags(operation: str, descending: bool | Sequence[bool], names: Sequence[str]) -> tuple[bool, ...]:
    flags = (descending,) * len(names) if isinstance(descending, bool) else tuple(descending)
    if len(flags) != len(names):
        given = f"descending has {len(flags)} entries for {len(names)} columns"
        raise UsageError(f"{operation}: {given}; give one entry for each, or one for all")
    return flags


def _limit(max_bad: float | None, on_error: OnError) -> float | None:
    """``max_bad`` as an int, a float below 1, or None."""
    if max_bad is None:
        return None
    if on_error == "raise":
        raise UsageError(f'from_files: max_bad={max_bad} says nothing beside on_error="raise"; skip or quarantine')
    if 0 < max_bad < 1:
        return float(max_bad)
    if not (max_bad >= 0 and float(max_bad).is_integer()):
        raise UsageError(f"from_files: max_bad={max_bad} is neither a number of records nor a share such as 0.01")
    return int(max_bad)


def _function(operation: str, fn: Any) -> Any:
    if not callable(fn):
        raise UsageError(f"{operation}: {fn!r} is not callable; pass a function of one argument")
    return fn


def _is_expr(value: object) -> bool:
    # By name, so that a plan of plain functions never imports Polars.
    return type(value).__module__.startswith("polars.") and hasattr(value, "meta")


def _expressions(operation: str, columns: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
    import polars as pl

    flat = [c for entry in columns for c in (entry if isinstance(entry, (list, tuple)) else (entry,))]
    if not flat and not named:
        raise UsageError(f"{operation}: name at least one column")
    for value in (*flat, *named.values()):
        if not (isinstance(value, str) or _is_expr(value)):
            raise UsageError(f"{operation}: {value!r} is neither a column name nor an expression (lit({value!r})?)")
    exprs = [pl.col(c) if isinstance(c, str) else c for c in flat]
    exprs += [(pl.col(e) if isinstance(e, str) else e).alias(name) for name, e in named.items()]
    _rowwise(operation, *exprs)
    return tuple(exprs)


def _rowwise(operation: str, *exprs: Any) -> None:
    from marin_zephyr.reach import check_rowwise

    check_rowwise(operation, exprs)
    for name in (name for expr in exprs for name in expr.meta.root_names()):
        check_name(name)
