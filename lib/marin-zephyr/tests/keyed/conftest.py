"""Keyed work run in every way that must not matter."""

from collections.abc import Callable

import pytest

from marin_zephyr import Dataset, Session, planning
from marin_zephyr.backends import inline
from marin_zephyr.keyed import grouping, joining


@pytest.fixture(scope="session")
def run() -> Callable[..., list[dict]]:
    """``run(dataset, memory=..., ...)``: its rows.

    ``many`` takes several partitions instead of one; ``small`` lets a small right side of a join be given to every
    task; ``gathered`` is how many partial aggregates are held.
    """

    def rows_of(
        dataset: Dataset, *, memory: int = 1 << 30, many: bool = False, small: bool = False, gathered: int = 500_000
    ) -> list[dict]:
        with pytest.MonkeyPatch.context() as patch, Session(backend="inline") as session:
            patch.setattr(inline, "merge_memory", lambda _: memory)
            patch.setattr(planning, "_PARTITION_BYTES", 1 if many else 1 << 40)
            patch.setattr(planning, "_MAX_PARTITIONS", 6)
            patch.setattr(joining, "_SMALL_BYTES", 1 << 20 if small else -1)
            patch.setattr(grouping, "_GATHERED_ROWS", gathered)
            return list(session.rows(dataset))

    return rows_of
