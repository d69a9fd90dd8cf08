"""Parquet: batches of whole rows, cut by the file's own statistics so that none passes 8 MiB.

A row group of which the statistics say that the predicate is true nowhere is not read (see `predicates`).

A footer that cannot be read means the file is damaged or was never finished: there is no record to set aside, so the
whole file goes to the desk. So it does if a column that should hold strings is of another type, and so do the rows from
a damaged batch on. Where the footer can be read, the desk is told how many rows that are.

See: https://parquet.apache.org/docs/file-format/
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from marin_zephyr.errors import InputError
from marin_zephyr.formats.files import InputFile
from marin_zephyr.formats.predicates import Bounds, may_hold
from marin_zephyr.formats.provenance import finish, needed
from marin_zephyr.formats.rejects import Desk
from marin_zephyr.formats.streams import open_random
from marin_zephyr.frames import BATCH_BYTES, BATCH_ROWS, to_frame
from marin_zephyr.nodes import ReadOptions

# Types whose order in statistics is that of their values in Polars.
_ORDERED = (
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.date32(), pa.bool_()),
)


def read(file: InputFile, options: ReadOptions, desk: Desk) -> Iterator[pl.DataFrame]:
    """Frames of a file's rows, or of its span's, in order."""
    places, done = np.ones(1, dtype=np.int64), 0
    try:
        with open_random(file.url) as opened:
            parquet = pq.ParquetFile(opened)
            schema, (groups, places, num_filtered) = parquet.schema_arrow, _chosen(parquet, file, options)
            for name in options.string_columns:
                if name in schema.names and not is_text(schema.field(name).type):
                    reason = f"column {name!r} is {schema.field(name).type}, not a string"
                    lost = len(places) + num_filtered
                    desk.record(file, line=None, offset=None, reason=reason, raw=b"", rows=max(1, lost))
                    return
            desk.num_filtered += num_filtered
            names = schema.names
            wanted = needed(options)
            if wanted is not None:  # one at least: a batch without columns forgets its rows
                names = [c for c in wanted if c in names] or names[:1]
            texts = [pl.col(c).cast(pl.String) for c in options.string_columns if c in names]
            if num_filtered:  # of rows that are not read, this tells which columns they have
                none = to_frame(schema.empty_table().select(names)).with_columns(texts)
                yield finish(none, file, options, rows=[], offsets=None, desk=desk)
            batches = parquet.iter_batches(
                batch_size=_batch_rows(parquet), row_groups=groups, columns=names, use_threads=False
            )
            for batch in batches:
                frame = to_frame(pa.Table.from_batches([batch])).with_columns(texts)
                rows = places[done : done + frame.height]
                yield finish(frame, file, options, rows=rows, offsets=None, desk=desk)
                done += frame.height
    except (pa.ArrowException, OSError, InputError) as e:
        row = places[done] if done < len(places) else 1
        reason = f"not a readable parquet file: from row {row:,} on ({' '.join(str(e).split())})"
        desk.record(file, line=None, offset=None, reason=reason, raw=b"", rows=max(1, len(places) - done))


def _chosen(parquet: pq.ParquetFile, file: InputFile, options: ReadOptions) -> tuple[list[int], np.ndarray, int]:
    """The row groups to read, the numbers of their rows from 1, and how many rows of others the predicate excludes."""
    sizes = [parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups)]
    ends = [1, *accumulate(sizes, initial=1)][1:]
    own = range(len(sizes)) if file.span is None else range(file.span.begin, min(file.span.end, len(sizes)))
    is_needed = np.ones(len(own), dtype=bool)
    if options.predicate is not None:
        bounds = {name: found for name in options.predicate.meta.root_names() if (found := _bounds(parquet, own, name))}
        is_needed = may_hold(options.predicate, bounds, len(own))
    groups = [i for i, needed in zip(own, is_needed, strict=True) if needed]
    places = [np.arange(ends[i], ends[i] + sizes[i]) for i in groups]
    num_filtered = sum(sizes[i] for i in own) - sum(sizes[i] for i in groups)
    return groups, np.concatenate([np.empty(0, dtype=np.int64), *places]), num_filtered


def _bounds(parquet: pq.ParquetFile, groups: range, name: str) -> Bounds | None:
    """What the statistics tell of a plain column whose order is Polars's; None of any other."""
    schema = parquet.schema_arrow
    paths = [parquet.schema.column(i).path for i in range(len(parquet.schema))]
    # A dotted path may be a column's name or lead into a struct; then two may be equal.
    if paths.count(name) != 1 or schema.names.count(name) != 1 or schema.field(name).type not in _ORDERED:
        return None
    low, high, is_known, num_nulls, num_rows = [], [], [], [], []
    for i in groups:
        group = parquet.metadata.row_group(i)
        statistics = group.column(paths.index(name)).statistics
        nulls = statistics.null_count if statistics is not None and statistics.has_null_count else -1
        ends = _ends(statistics)
        low.append(ends[0])
        high.append(ends[1])
        is_known.append(ends[0] is not None or nulls == group.num_rows)
        num_nulls.append(nulls)
        num_rows.append(group.num_rows)
    kind = schema.field(name).type
    return Bounds(
        low=pl.Series(pl.from_arrow(pa.array(low, type=kind))),
        high=pl.Series(pl.from_arrow(pa.array(high, type=kind))),
        is_known=np.array(is_known, dtype=bool),
        num_nulls=np.array(num_nulls, dtype=np.int64),
        num_rows=np.array(num_rows, dtype=np.int64),
    )


def _ends(statistics: Any) -> tuple[Any, Any]:
    """Least and greatest value, or None for both."""
    if statistics is None or not statistics.has_min_max:
        return None, None
    try:
        ends = statistics.min, statistics.max
    except (pa.ArrowException, UnicodeDecodeError, OverflowError):
        return None, None
    # Writers were not meant to note NaN, and some did: then the bounds bound nothing.
    return (None, None) if any(end != end for end in ends) else ends


def is_text(kind: pa.DataType) -> bool:
    """Whether an Arrow type is one of strings, plain or encoded."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return kind in (pa.null(), pa.string(), pa.large_string(), pa.string_view())


def _batch_rows(parquet: pq.ParquetFile) -> int:
    """Rows a batch, such that the widest row group's average row keeps it within half the limit."""
    meta = parquet.metadata
    widths = [
        meta.row_group(i).total_byte_size / max(1, meta.row_group(i).num_rows) for i in range(meta.num_row_groups)
    ]
    return max(1, min(BATCH_ROWS, int(BATCH_BYTES / 2 / max(1.0, *widths, 1.0))))
