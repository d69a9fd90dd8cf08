"""What lies beside the steps and belongs to none: objects, descriptions of environments, and pages of runs.

Steps and runs that are kept are the roots here too: by their `records.Origin` and by the digests of the environments
that they ran in, whose lock files are objects. As long as anything goes on, or cannot be read, nobody knows all that
is referred to, and nothing of this is garbage.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from marin_core.provenance import environments
from marin_core.records import AttemptRecord, StepRecord
from marin_core.store import Store

PLACES = ("objects", "environments", "runs")


def unreferenced(
    store: Store, steps: Iterable[StepRecord | AttemptRecord], runs: Iterable[Mapping[str, Any]]
) -> Iterator[tuple[str, int]]:
    """Keys and sizes of the objects and environments that none of these steps and runs refers to."""
    described, objects = _environments(steps := list(steps), runs := list(runs)), _objects(steps, runs)
    for digest in described:
        if (environment := environments.read(store, digest)) is not None:
            objects.add(environment.lock)
    yield from _others(store, "environments", {f"{d}.json" for d in described})
    yield from _others(store, "objects", objects)


def orphaned_pages(store: Store) -> Iterator[tuple[str, int]]:
    """Keys and sizes of the pages of runs whose records are gone."""
    names = store.names("runs")
    for name in names:
        if name.endswith(".html") and f"{name.removesuffix('.html')}.json" not in names:
            found = store.status(f"runs/{name}")
            yield f"runs/{name}", found.size if found else 0


def _others(store: Store, place: str, kept: set[str]) -> Iterator[tuple[str, int]]:
    if set(store.names(place)) - kept:
        yield from ((f"{place}/{name}", size) for name, size in store.tree(place).items() if name not in kept)


def _environments(steps: list[StepRecord | AttemptRecord], runs: list[Mapping[str, Any]]) -> set[str]:
    nodes = (node for run in runs for node in run["nodes"])
    return {r.digests.environment for r in steps} | {(n.get("digests") or {}).get("environment", "") for n in nodes}


def _objects(steps: list[StepRecord | AttemptRecord], runs: list[Mapping[str, Any]]) -> set[str]:
    origins = [r.origin for r in steps if isinstance(r, StepRecord)] + [run.get("origin") or {} for run in runs]
    return {o.get(name) or "" for o in origins for name in ("patch", "lock", "machine")}
