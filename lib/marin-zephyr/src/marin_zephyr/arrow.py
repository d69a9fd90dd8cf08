"""Arrow data given by value: cut into shards and written as IPC streams, which are plain bytes to a plan."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import polars as pl
import pyarrow as pa

from marin_zephyr.errors import SchemaError, UsageError
from marin_zephyr.frames import BATCH_BYTES, BATCH_ROWS, named, to_frame


def streams(data: Any, num_shards: int) -> tuple[bytes, ...]:
    """One IPC stream a shard, of batches of at most 65,536 rows and about 8 MiB.

    Args:
        data: see `marin_zephyr.Dataset.from_arrow`.
        num_shards: how many.

    Raises:
        UsageError: ``data`` is no Arrow data.
        SchemaError: a column's type has no counterpart here.
    """
    table = _table(data)
    try:
        named(to_frame(table.slice(0, 0)))
    except (pl.exceptions.PolarsError, NotImplementedError) as e:
        raise SchemaError(f"from_arrow: a column cannot be used ({e}); cast or rename it before this point") from e
    bounds = [table.num_rows * i // num_shards for i in range(num_shards + 1)]
    return tuple(_stream(table.slice(begin, end - begin)) for begin, end in pairwise(bounds))


def _table(data: Any) -> pa.Table:
    if isinstance(data, pa.Table):  # through the interface a name would end at its first NUL
        return data
    try:
        if hasattr(data, "__arrow_c_stream__"):
            return pa.table(data)
        return pa.Table.from_batches([data] if isinstance(data, pa.RecordBatch) else list(data))
    except (TypeError, ValueError) as e:  # Arrow's own are ValueErrors
        what = f"{type(data).__name__} ({e})"
        raise UsageError(f"from_arrow: {what} is neither a table nor record batches of one schema") from e


def _stream(table: pa.Table) -> bytes:
    size = max(1, min(BATCH_ROWS, BATCH_BYTES * table.num_rows // max(1, table.nbytes)))
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, table.schema) as stream:
        # In one piece first: how the data came in pieces must not show in the bytes, on which the fingerprint rests.
        for batch in table.combine_chunks().to_batches(max_chunksize=size):
            stream.write_batch(batch)
    return buffer.getvalue().to_pybytes()
