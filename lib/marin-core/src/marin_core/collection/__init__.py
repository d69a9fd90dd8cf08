"""Collection: which outputs nothing needs any more, and their removal beside runners that go on working.

A step is kept if it is reachable from a *root*: a pin, a version, a live lease, or a run that is recent, named or
still going on; and everything upstream of what is kept is kept. `survey` finds the rest, and what lies at kept steps
that no commit points to: attempts that failed or were superseded, work that no attempt will resume, temporary files of
writers that died; and what lies beside the steps for the sake of what is gone (`references`). It reads only; `removal`
takes away what a survey found. (Mark and sweep: McCarthy, 1960.)

What cannot be read is left alone and named: a step whose record is corrupt may be anything. Nothing outside the prefix
is looked at: adopted data has no address here, and what a symbolic link leads to is not followed.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from marin_core import leases
from marin_core.collection import references
from marin_core.collection.garbage import Garbage, Site, loose_file, of_site, temporaries
from marin_core.collection.pins import PIN
from marin_core.errors import MarinCoreError
from marin_core.processes import this_host
from marin_core.reading.catalogue import Catalogue
from marin_core.reading.heads import live_status
from marin_core.records import AttemptRecord, StepRecord
from marin_core.store import Store

_DAY = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Which runs keep what they used.

    Args:
        keep_days: those that began or ended in the last so many days.
        keep_runs: the newest so many.
        keep_run: ids of others.
    """

    keep_days: float = 14.0
    keep_runs: int = 1
    keep_run: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What a collection would keep and remove."""

    kept: dict[str, str]
    """Address -> the root that it is reachable from, in words."""
    garbage: tuple[Garbage, ...]
    unreadable: tuple[str, ...]
    """Records that cannot be read: what lies there is left alone."""

    @property
    def num_bytes(self) -> int:
        return sum(g.num_bytes for g in self.garbage)


def survey(catalogue: Catalogue, policy: Policy) -> Survey:
    """What nothing needs any more. Reads; writes nothing."""
    witness = leases.Witness()
    sites = catalogue.each(lambda a: _site(catalogue, a, witness=witness), catalogue.addresses)
    runs = _kept_runs(catalogue, sites, policy)
    roots, unreadable = _roots(sites, runs), [str(r) for r in runs.values() if not isinstance(r, dict)]
    kept = _reachable(sites, roots)
    garbage: list[Garbage] = []
    for site in sites.values():
        garbage.extend(temporaries(catalogue.store, site.address, site.names))
        if (bad := site.unreadable) is not None:
            unreadable.append(bad)
        elif site.live is None:
            pieces = of_site(catalogue.store, site, kept=site.address in kept)
            garbage.extend(g for g in pieces if g.num_files or g.kind == "step")
    garbage.extend(temporaries(catalogue.store, "runs", catalogue.store.names("runs")))
    garbage.extend(_beside(catalogue.store, sites, kept, runs, is_known=not unreadable))
    return Survey(kept=kept, garbage=tuple(garbage), unreadable=tuple(unreadable))


def _site(catalogue: Catalogue, address: str, *, witness: leases.Witness) -> Site:
    store, found = catalogue.store, catalogue.record(address)
    try:
        lease = leases.read(store, address)
    except MarinCoreError as e:
        return Site(address=address, names=[], found=e, live=None, attempts={})  # type: ignore[arg-type]
    committed = found.attempt if isinstance(found, StepRecord) else None
    numbers = catalogue.attempts(address)
    return Site(
        address=address,
        names=store.names(address),
        found=found,
        live=lease if lease is not None and witness.alive(address, lease) else None,
        attempts={n: catalogue.attempt(address, n) if n != committed else None for n in numbers},
        children={n: store.names(f"{address}/attempts/{n}") for n in numbers if n != committed},
    )


# Roots


def _kept_runs(
    catalogue: Catalogue, sites: dict[str, Site], policy: Policy
) -> dict[str, dict[str, Any] | MarinCoreError]:
    """The runs that keep what they used, newest first; among them those whose record nobody can read."""
    holders = {site.live.run_id for site in sites.values() if site.live is not None}
    asked = holders | {catalogue.find_run(text) for text in policy.keep_run}
    asked.update(catalogue.run_ids[-policy.keep_runs :] if policy.keep_runs else ())
    since, found = time.time() - policy.keep_days * _DAY, {}
    for run_id in reversed(catalogue.run_ids):
        data = catalogue.run_data(run_id)
        if not isinstance(data, dict) or run_id in asked or _goes_on(data) or _last_seen(data) >= since:
            found[run_id] = data
    return found


def _roots(sites: dict[str, Site], runs: dict[str, dict[str, Any] | MarinCoreError]) -> dict[str, str]:
    """Addresses that are kept for themselves, with the reason."""
    roots: dict[str, str] = {}
    for address, site in sites.items():
        if site.live is not None:
            roots[address] = f"being made by {site.live.who}"
        elif PIN in site.names:
            roots[address] = "pinned"
        elif isinstance(site.found, StepRecord) and site.found.version is not None:
            roots[address] = "versioned"
    for run_id, data in runs.items():
        for node in data["nodes"] if isinstance(data, dict) else ():
            roots.setdefault(str(node.get("address")), f"used by run {run_id}")
    return roots


def _goes_on(run: dict[str, Any]) -> bool:
    """Whether a run's driver is known to live. One on another host is known by its leases, and by how recent it is."""
    here = (run.get("driver") or {}).get("host") == this_host()
    return here and live_status(run) == "running"


def _last_seen(run: dict[str, Any]) -> float:
    times = [run.get("started_at"), run.get("ended_at"), *(n.get("ended_at") for n in run["nodes"])]
    return max((t for t in times if isinstance(t, int | float)), default=0.0)


def _reachable(sites: dict[str, Site], roots: dict[str, str]) -> dict[str, str]:
    kept = {a: why for a, why in roots.items() if a in sites}
    waiting = list(kept)
    while waiting:
        site = sites[waiting.pop()]
        for upstream in site.found.upstream if isinstance(site.found, StepRecord) else ():
            if upstream in sites and upstream not in kept:
                kept[upstream] = f"upstream of {site.address}"
                waiting.append(upstream)
    return kept


def _beside(
    store: Store,
    sites: dict[str, Site],
    kept: dict[str, str],
    runs: dict[str, dict[str, Any] | MarinCoreError],
    *,
    is_known: bool,
) -> Iterator[Garbage]:
    """What no kept step or run refers to, where all of those are known and none is going on."""
    for key, size in references.orphaned_pages(store):
        yield loose_file("page", key, "its run's record is gone", size)
    whole = [run for run in runs.values() if isinstance(run, dict)]
    if (
        not is_known
        or any(s.live is not None for s in sites.values())
        or any(live_status(r) == "running" for r in whole)
    ):
        return
    here = [sites[address] for address in kept]
    steps = [r for s in here for r in (s.found, *s.attempts.values()) if isinstance(r, StepRecord | AttemptRecord)]
    for key, size in references.unreferenced(store, steps, whole):
        kind = "object" if key.startswith("objects/") else "environment"
        yield loose_file(kind, key, "no kept step or run refers to it", size)
