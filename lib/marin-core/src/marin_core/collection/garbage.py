"""Garbage: what lies at one step, or beside it, that nothing points to, with the reason and the size of each piece."""

import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from marin_core import encoding, leases
from marin_core.errors import MarinCoreError
from marin_core.reasons import Found
from marin_core.records import AttemptRecord, StepRecord
from marin_core.store import Store

_TEMPORARY = re.compile(r".+\.\d+\.\d+\.tmp")
_STALE_AFTER = 3600.0
"""Seconds after which a temporary file belongs to nobody: its writer has renamed or removed it within one."""


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


@dataclass(kw_only=True)
class Site:
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


def of_site(store: Store, site: Site, *, kept: bool) -> Iterator[Garbage]:
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
            keep_log = kept and number == last and not _is_superseded(site, record)
            keys = _contents(store, site, number, keep_log=keep_log)
            what, why = f"{site.address}/attempts/{number}", _why(site, record, kept=kept)
            yield _garbage(store, site, "attempt", what=what, why=why, keys=keys)
    is_over = last in (0, site.committed) or _is_superseded(site, site.attempts[last])
    resumable = None if is_over or not kept else _resumable(site.attempts[last])
    for key in _work(store, site, resumable):
        why = "its step is committed" if site.committed is not None else "no attempt will resume it"
        yield _garbage(store, site, "work", what=key, why=why, keys=[key])


def _contents(store: Store, site: Site, number: int, *, keep_log: bool) -> list[str]:
    """What an attempt holds beside its record; all of it where there is no record. What says that its output may be
    served again goes first."""
    directory = f"{site.address}/attempts/{number}"
    names = site.children[number] if number in site.children else store.names(directory)
    if "attempt.json" not in names:
        return [directory]
    spared = {"attempt.json", "log.txt"} if keep_log else {"attempt.json"}
    return [f"{directory}/{name}" for name in sorted(names, key=lambda n: n != "step.json") if name not in spared]


def _work(store: Store, site: Site, spared: str | None) -> list[str]:
    names = store.names(f"{site.address}/work") if "work" in site.names else []
    return [f"{site.address}/work/{name}" for name in names if name != spared]


def _resumable(record: AttemptRecord | None) -> str | None:
    """The name of the work directory that the next attempt would go on from; see `Node.work_key`."""
    if record is None:
        return None
    d = record.digests
    return encoding.digest([d.recipe, d.code, d.inputs])[:12]


def _is_superseded(site: Site, record: AttemptRecord | None) -> bool:
    """Whether an attempt was committed once, and another one, which may be an earlier one again, is by now."""
    return site.committed is not None and record is not None and record.state == "succeeded"


def _why(site: Site, record: AttemptRecord | None, *, kept: bool) -> str:
    if record is None:
        return "it has no record"
    if _is_superseded(site, record):
        return f"superseded by attempt {site.committed}"
    if record.failure is not None:
        return f"failed: {record.failure.type}"
    if record.state == "succeeded":
        return "its step was collected" if "tombstone.json" in site.names else "it was never committed"
    state = "its driver died" if record.state == "running" else record.state
    return state if kept else f"{state}, and no kept run needs it"


def loose_file(kind: Literal["temporary", "object", "environment", "page"], key: str, why: str, size: int) -> Garbage:
    """A file that belongs to no step."""
    address = key.rpartition("/")[0]
    return Garbage(
        kind=kind, address=address, what=key, why=why, attempt=None, keys=(key,), num_files=1, num_bytes=size
    )


def temporaries(store: Store, directory: str, names: Iterable[str]) -> Iterator[Garbage]:
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
            yield loose_file(
                "temporary", f"{directory}/{name}", f"a temporary file, untouched for {age / 3600:.0f} h", size
            )


def _garbage(
    store: Store, site: Site, kind: Literal["step", "attempt", "work"], *, what: str, why: str, keys: Iterable[str]
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
