"""Collection: which outputs nothing needs any more, and their removal beside runners that go on working.

A step is kept if it is reachable from a *root*: a pin, a version, a live lease, or a run that is recent, named or
still going on; and everything upstream of what is kept is kept. `survey` finds the rest, and what lies at kept steps
that no commit points to: attempts that failed or were superseded, work that no attempt will resume, temporary files of
writers that died; and what lies beside the steps for the sake of what is gone (`references`). It reads only; `removal`
takes away what a survey found. (Mark and sweep: McCarthy, 1960.)

What cannot be read is left alone and named: a step whose record is corrupt may be anything. Nothing outside the prefix
is looked at: adopted data has no address here, and what a symbolic link leads to is not followed.
"""

import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from marin_core import encoding, leases
from marin_core.collection import references
from marin_core.collection.pins import PIN
from marin_core.errors import MarinCoreError
from marin_core.processes import this_host
from marin_core.reading.catalogue import Catalogue, live_status
from marin_core.reasons import Found
from marin_core.records import AttemptRecord, StepRecord
from marin_core.store import Store

_DAY = 86_400.0
_TEMPORARY = re.compile(r".+\.\d+\.\d+\.tmp")
_STALE_AFTER = 3600.0
"""Seconds after which a temporary file belongs to nobody: its writer has renamed or removed it within one."""


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
class Garbage:
    """Something to remove, and why nothing needs it."""

    kind: Literal["step", "attempt", "work", "temporary", "object", "environment", "page"]
    address: str
    """The step it belongs to, or the directory of a file that belongs to none."""
    what: str
    """The step, attempt, work directory or file, relative to the prefix."""
    why: str
    attempt: int | None
    """The attempt that was committed there when this was found garbage."""
    keys: tuple[str, ...]
    """What is removed, relative to the prefix."""
    num_files: int
    num_bytes: int


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


@dataclass(kw_only=True)
class _Site:
    """What stands at one address."""

    address: str
    names: list[str]
    found: Found
    live: leases.Lease | None
    attempts: dict[int, Any]
    """Number -> record; of the committed attempt, which nothing here asks about, None."""
    children: dict[int, list[str]] = field(default_factory=dict)

    @property
    def committed(self) -> int | None:
        return self.found.attempt if isinstance(self.found, StepRecord) else None

    @property
    def unreadable(self) -> str | None:
        bad = [r for r in (self.found, *self.attempts.values()) if isinstance(r, MarinCoreError)]
        return str(bad[0]) if bad else None


def survey(catalogue: Catalogue, policy: Policy) -> Survey:
    """What nothing needs any more. Reads; writes nothing."""
    witness = leases.Witness()
    sites = catalogue.each(lambda a: _site(catalogue, a, witness=witness), catalogue.addresses)
    runs = _kept_runs(catalogue, sites, policy)
    roots, unreadable = _roots(sites, runs), [str(r) for r in runs.values() if not isinstance(r, dict)]
    kept = _reachable(sites, roots)
    garbage: list[Garbage] = []
    for site in sites.values():
        garbage.extend(_temporaries(catalogue.store, site.address, site.names))
        if (bad := site.unreadable) is not None:
            unreadable.append(bad)
        elif site.live is None:
            pieces = _of_site(catalogue.store, site, kept=site.address in kept)
            garbage.extend(g for g in pieces if g.num_files or g.kind == "step")
    garbage.extend(_temporaries(catalogue.store, "runs", catalogue.store.names("runs")))
    garbage.extend(_beside(catalogue.store, sites, kept, runs, is_known=not unreadable))
    return Survey(kept=kept, garbage=tuple(garbage), unreadable=tuple(unreadable))


def _site(catalogue: Catalogue, address: str, *, witness: leases.Witness) -> _Site:
    store, found = catalogue.store, catalogue.record(address)
    try:
        lease = leases.read(store, address)
    except MarinCoreError as e:
        return _Site(address=address, names=[], found=e, live=None, attempts={})  # type: ignore[arg-type]
    committed = found.attempt if isinstance(found, StepRecord) else None
    numbers = catalogue.attempts(address)
    return _Site(
        address=address,
        names=store.names(address),
        found=found,
        live=lease if lease is not None and witness.alive(address, lease) else None,
        attempts={n: catalogue.attempt(address, n) if n != committed else None for n in numbers},
        children={n: store.names(f"{address}/attempts/{n}") for n in numbers if n != committed},
    )


# Roots


def _kept_runs(
    catalogue: Catalogue, sites: dict[str, _Site], policy: Policy
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


def _roots(sites: dict[str, _Site], runs: dict[str, dict[str, Any] | MarinCoreError]) -> dict[str, str]:
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


def _reachable(sites: dict[str, _Site], roots: dict[str, str]) -> dict[str, str]:
    kept = {a: why for a, why in roots.items() if a in sites}
    waiting = list(kept)
    while waiting:
        site = sites[waiting.pop()]
        for upstream in site.found.upstream if isinstance(site.found, StepRecord) else ():
            if upstream in sites and upstream not in kept:
                kept[upstream] = f"upstream of {site.address}"
                waiting.append(upstream)
    return kept


# Garbage


def _of_site(store: Store, site: _Site, *, kept: bool) -> Iterator[Garbage]:
    """What can go at one step that nobody is making."""
    if not kept and site.committed is not None:
        keys = [k for n in site.attempts for k in _contents(store, site, n, keep_log=False)]
        keys += _work(store, site, None)
        why = "no pin, version or kept run needs it"
        yield _garbage(store, site, "step", what=site.address, why=why, keys=keys)
        return
    last = max(site.attempts, default=0)
    for number, record in site.attempts.items():
        if number != site.committed:
            keys = _contents(store, site, number, keep_log=kept and number == last)
            what, why = f"{site.address}/attempts/{number}", _why(site, record, number, kept=kept)
            yield _garbage(store, site, "attempt", what=what, why=why, keys=keys)
    resumable = _resumable(site.attempts[last]) if kept and last and last != site.committed else None
    for key in _work(store, site, resumable):
        why = "its step is committed" if site.committed is not None else "no attempt will resume it"
        yield _garbage(store, site, "work", what=key, why=why, keys=[key])


def _contents(store: Store, site: _Site, number: int, *, keep_log: bool) -> list[str]:
    """What an attempt holds beside its record; all of it where there is no record."""
    directory = f"{site.address}/attempts/{number}"
    names = site.children[number] if number in site.children else store.names(directory)
    if "attempt.json" not in names:
        return [directory]
    spared = {"attempt.json", "log.txt"} if keep_log else {"attempt.json"}
    return [f"{directory}/{name}" for name in names if name not in spared]


def _work(store: Store, site: _Site, spared: str | None) -> list[str]:
    names = store.names(f"{site.address}/work") if "work" in site.names else []
    return [f"{site.address}/work/{name}" for name in names if name != spared]


def _resumable(record: AttemptRecord | None) -> str | None:
    """The name of the work directory that the next attempt would go on from; see `Node.work_key`."""
    if record is None:
        return None
    d = record.digests
    return encoding.digest([d.recipe, d.code, d.inputs])[:12]


def _why(site: _Site, record: AttemptRecord | None, number: int, *, kept: bool) -> str:
    if record is None:
        return "it has no record"
    if site.committed is not None and number < site.committed and record.state == "succeeded":
        return f"superseded by attempt {site.committed}"
    if record.failure is not None:
        return f"failed: {record.failure.type}"
    if record.state == "succeeded":
        return "its step was collected" if "tombstone.json" in site.names else "it was never committed"
    state = "its driver died" if record.state == "running" else record.state
    return state if kept else f"{state}, and no kept run needs it"


def _beside(
    store: Store,
    sites: dict[str, _Site],
    kept: dict[str, str],
    runs: dict[str, dict[str, Any] | MarinCoreError],
    *,
    is_known: bool,
) -> Iterator[Garbage]:
    """What no kept step or run refers to, where all of those are known and none is going on."""
    for key, size in references.orphaned_pages(store):
        yield _file("page", key, "its run's record is gone", size)
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
        yield _file(kind, key, "no kept step or run refers to it", size)


def _file(kind: Literal["temporary", "object", "environment", "page"], key: str, why: str, size: int) -> Garbage:
    """A file that belongs to no step."""
    address = key.rpartition("/")[0]
    return Garbage(
        kind=kind, address=address, what=key, why=why, attempt=None, keys=(key,), num_files=1, num_bytes=size
    )


def _temporaries(store: Store, directory: str, names: Iterable[str]) -> Iterator[Garbage]:
    """Files that a writer which died has left beside those it was to replace."""
    for name in names if store.local is not None else ():
        if not _TEMPORARY.fullmatch(name):
            continue
        path = Path(store.child(f"{directory}/{name}"))
        try:
            age, size = time.time() - path.lstat().st_mtime, path.lstat().st_size
        except OSError:
            continue
        if age > _STALE_AFTER and path.is_file():
            yield _file("temporary", f"{directory}/{name}", f"a temporary file, untouched for {age / 3600:.0f} h", size)


def _garbage(
    store: Store, site: _Site, kind: Literal["step", "attempt", "work"], *, what: str, why: str, keys: Iterable[str]
) -> Garbage:
    """What lies under the keys, measured; what is reached through a symbolic link is not among it."""
    keys = tuple(keys)
    if not is_inside(store, *keys):
        keys = tuple(key for key in keys if is_inside(store, key))
    sizes = [size for key in keys for size in _sizes(store, key)]
    return Garbage(
        kind=kind,
        address=site.address,
        what=what,
        why=why,
        attempt=site.committed,
        keys=keys,
        num_files=len(sizes),
        num_bytes=sum(sizes),
    )


def _sizes(store: Store, key: str) -> list[int]:
    if store.local is not None:
        path = store.local / key
        if path.is_symlink() or path.is_file():
            return [path.lstat().st_size]
        return [(Path(d) / f).lstat().st_size for d, _, files in os.walk(path) for f in files]
    return list(store.tree(key).values()) or [len(store.read(key) or b"")]


def is_inside(store: Store, *keys: str) -> bool:
    """Whether keys lie in the prefix itself, and no symbolic link on the way to one leads elsewhere."""
    if store.local is None:
        return True
    root, real = str(store.local), os.path.realpath(store.local)  # strings: this is asked of every step, twice
    parents = {key.rpartition("/")[0] for key in keys}
    return all(os.path.realpath(f"{root}/{parent}") == f"{real}/{parent}".rstrip("/") for parent in parents)
