"""Reducing: a function of the caller over the rows of each key.

Rows go to the partition of their key and are sorted there, by key and then by ``order_by``, in the task's memory or on
disk; the function takes them from the merge one by one. So a key may have more rows than memory holds, and rows that
the function does not ask for are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

from marin_zephyr.context import Frames, TaskContext
from marin_zephyr.counters import RowCounts
from marin_zephyr.errors import FAILURES, UserCodeError, ZephyrError
from marin_zephyr.frames import batches_made
from marin_zephyr.keyed.ordering import GROUP, Sorter
from marin_zephyr.nodes import Reduce, Row
from marin_zephyr.outputs import Scattered
from marin_zephyr.planning import Builder, Open, num_partitions, partition_inputs
from marin_zephyr.reporting.labels import label
from marin_zephyr.reporting.quantities import clipped
from marin_zephyr.shuffle.keys import KEY

_SHOWN = 200


def expand(builder: Builder, node: Reduce) -> Open:
    """Two stages, the last one open."""
    upstream = builder.open(node.upstream)
    num_parts = num_partitions(upstream)
    scattered = Scattered(on=node.keys, num_partitions=num_parts, watched=True)
    exchange = builder.close(upstream, "reduce-rows", scattered)
    inputs = partition_inputs(exchange, num_parts, weight=upstream.weight)
    reduced = Reduced(keys=node.keys, fn=node.fn, order_by=node.order_by, descending=node.descending)
    return replace(upstream, inputs=inputs, origin=exchange.fingerprint, ops=(reduced,))


@dataclass(frozen=True, kw_only=True)
class Reduced:
    """Operation: what the function makes of each key's rows, keys in canonical order."""

    keys: tuple[str, ...]
    fn: Callable[[Any, Iterator[Row]], Row | Iterable[Row]]
    order_by: tuple[str, ...]
    descending: tuple[bool, ...]

    @property
    def label(self) -> str:
        """``reduce(newest) of (domain)``."""
        return f"reduce({label(self.fn)}) of ({', '.join(self.keys)})"

    def apply(self, frames: Frames, name: str, counts: RowCounts, context: TaskContext) -> Frames:
        """Batches of the rows made."""
        sorter = Sorter(context, on=self.keys, order_by=self.order_by, descending=self.descending)
        for frame in frames:
            counts.add(RowCounts(rows_in=frame.height, consumed=frame.height))
            sorter.add(context.require(frame, [*self.keys, *self.order_by], name))
        for frame in batches_made(self._made(sorter.frames(), name), name):
            counts.produced += frame.height
            yield frame

    def _made(self, frames: Frames, name: str) -> Iterator[Row]:
        for _, members in groupby(_coded_rows(frames), key=itemgetter(0)):
            rows = map(itemgetter(1), members)
            first = next(rows)
            values = tuple(first[key] for key in self.keys)
            yield from self._called(values[0] if len(values) == 1 else values, chain([first], rows), name)

    def _called(self, key: Any, rows: Iterator[Row], name: str) -> Iterator[Row]:
        try:
            made = self.fn(key, rows)
            if not isinstance(made, Iterable):
                shown = f"{type(made).__name__} for the key {_shown(key)}"
                raise UserCodeError(f"{name} returned {shown}; return a row (a dict) or rows")
            rows_made: Iterable[Any] = [made] if isinstance(made, dict) else made
            for row in rows_made:
                if not isinstance(row, dict):
                    raise UserCodeError(
                        f"{name} gave {type(row).__name__} for the key {_shown(key)}; give dicts (rows)"
                    )
                yield row
        except ZephyrError:
            raise
        except FAILURES as e:
            raise UserCodeError(f"{name} failed on the key {_shown(key)}: {type(e).__name__}: {e}") from e


def _coded_rows(frames: Frames) -> Iterator[tuple[bytes, Row]]:
    """Each row with the code that tells its key from others."""
    for frame in frames:
        code = GROUP if GROUP in frame.columns else KEY
        yield from zip(frame.get_column(code), frame.drop(KEY, GROUP, strict=False).iter_rows(named=True), strict=True)


def _shown(key: Any) -> str:
    return clipped(repr(key), _SHOWN)
