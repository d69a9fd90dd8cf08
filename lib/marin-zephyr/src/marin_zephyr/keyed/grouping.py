"""Grouping: one row a key with aggregates of its rows.

Each shard aggregates first and sends one row a key; the other side of the exchange combines those. So a hot key costs
one row a shard, however many rows it has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from marin_zephyr.columns import Aggregate
from marin_zephyr.context import Frames, TaskContext
from marin_zephyr.counters import RowCounts
from marin_zephyr.errors import SchemaError
from marin_zephyr.frames import concat
from marin_zephyr.nodes import GroupBy
from marin_zephyr.outputs import Scattered
from marin_zephyr.planning import Builder, Open, num_partitions, partition_inputs


def expand(builder: Builder, node: GroupBy) -> Open:
    """Two stages, the last one open."""
    upstream = builder.open(node.upstream)
    num_shards, num_parts = len(upstream.inputs), num_partitions(upstream)
    partial = Aggregated(keys=node.keys, aggregates=node.aggregates, partial=True)
    upstream = replace(upstream, ops=(*upstream.ops, partial))
    exchange = builder.close(upstream, "group-partial", Scattered(on=node.keys, num_partitions=num_parts))
    return Open(
        inputs=partition_inputs(exchange, num_shards, num_parts),
        origin=exchange.fingerprint,
        weight=upstream.weight,
        on_error=upstream.on_error,
        ops=(Aggregated(keys=node.keys, aggregates=node.aggregates, partial=False),),
    )


@dataclass(frozen=True, kw_only=True)
class Aggregated:
    """Operation: one row a key, in the order in which keys first appear.

    ``partial`` ones are of one shard's rows; the others, of one partition, combine partial ones.
    """

    keys: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    partial: bool

    @property
    def label(self) -> str:
        """``partial aggregates of (domain)``."""
        return f"{'partial' if self.partial else 'combined'} aggregates of ({', '.join(self.keys)})"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it reads."""
        exprs = [expr for a in self.aggregates for expr in (a.partial() if self.partial else a.combine())]
        return tuple(dict.fromkeys([*self.keys, *(root for expr in exprs for root in expr.meta.root_names())]))

    def apply(self, frames: Frames, name: str, counts: RowCounts, context: TaskContext) -> Frames:
        """One frame."""
        exprs = [expr for a in self.aggregates for expr in (a.partial() if self.partial else a.combine())]
        held = []
        for frame in frames:
            counts.add(RowCounts(rows_in=frame.height, consumed=frame.height))
            held.append(context.require(frame, self.columns).select(self.columns))
        if not held:
            return
        try:
            made = concat(held, what=name).group_by(self.keys, maintain_order=True).agg(exprs)
        except pl.exceptions.PolarsError as e:
            raise SchemaError(f"{name}: {e}") from e
        counts.produced += made.height
        yield made
