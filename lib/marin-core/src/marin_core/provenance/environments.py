"""Environments: what a body runs in, as far as a digest knows it, and what changed between two of them.

The digest is over Python's version and the nearest ``uv.lock`` above a step's source; without one, over the installed
distributions. A digest alone could only say *that* something changed. So each is described once under the prefix, in
``environments/{digest}.json`` (Python, lock file, version of every package), with the lock file's text beside it in
``objects/``; any later plan can then name the packages that differ, and the lock can be installed again.

Installed distributions are known by the names of their metadata directories, ``{name}-{version}.dist-info`` (the
binary distribution format fixes that form), because opening a hundred METADATA files costs a tenth of a second.
"""

import functools
import hashlib
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from marin_core.encoding import digest
from marin_core.errors import CorruptRecordError, NewerRecordError
from marin_core.provenance import objects
from marin_core.records import EnvironmentRecord, from_json, to_json
from marin_core.store import Store

LOCK = "uv.lock"
_MOST_CHANGES = 6

_locks: dict[str, Path | None] = {}
"""Digest -> the lock file behind it, of every environment that this process has digested."""


def environment_digest(source: Path | None) -> str:
    """Digest of the environment of a body whose workspace source is ``source``; None for one that has none."""
    return _environment_digest(source.parent if source else None)


@functools.cache
def _environment_digest(directory: Path | None) -> str:
    lock = nearest_lock(directory) if directory else None
    held = {"lock": file_digest(lock)} if lock else {"packages": installed_packages()}
    found = digest({"python": platform.python_version(), **held})
    _locks[found] = lock
    return found


def nearest_lock(directory: Path) -> Path | None:
    """The ``uv.lock`` in a directory or the nearest one above it."""
    return next((a / LOCK for a in (directory, *directory.parents) if (a / LOCK).is_file()), None)


@functools.cache
def record_of(environment: str) -> EnvironmentRecord:
    """The description of an environment that this process has digested."""
    lock = _locks[environment]
    return EnvironmentRecord(
        python=platform.python_version(),
        lock=file_digest(lock) if lock else "",
        packages=locked_packages(lock) if lock else installed_packages(),
    )


def keep(store: Store, environment: str) -> None:
    """Describes an environment under the prefix, unless it is described already."""
    key = _key(environment)
    if store.read(key) is None:
        if lock := _locks[environment]:
            objects.put(store, lock.read_bytes())
        store.write(key, to_json(record_of(environment)).encode(), durable=False)


def read(store: Store, environment: str) -> EnvironmentRecord | None:
    """The description of an environment that some run has had; None if there is none that can be read."""
    data = store.read(_key(environment)) if environment else None
    try:
        return from_json(EnvironmentRecord, data, where=_key(environment)) if data else None
    except (CorruptRecordError, NewerRecordError):
        return None


def _key(environment: str) -> str:
    return f"environments/{environment}.json"


def changes(old: EnvironmentRecord, new: EnvironmentRecord) -> list[str]:
    """What differs, one entry each: ``numpy 2.3.1 -> 2.4.0``, ``ray 2.60.0 (new)``, ``python 3.12.11 -> 3.12.12``."""
    found = [*package_changes(old.packages, new.packages)]
    if old.python != new.python:
        found.append(f"python {old.python} -> {new.python}")
    if not found and old.lock != new.lock:
        found.append(f"{LOCK} (of the same versions)")
    return found


def package_changes(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    """Packages that differ, in order of name."""
    for name in sorted({*old, *new}):
        before, after = old.get(name), new.get(name)
        if before != after:
            known = f"{before} -> {after}" if before and after else f"{after} (new)" if after else f"{before} (gone)"
            yield f"{name} {known}"


def listed(found: Sequence[str]) -> str:
    """A list of changes as text, cut where it gets long."""
    more = f" and {len(found) - _MOST_CHANGES} more" if len(found) > _MOST_CHANGES else ""
    return ", ".join(found[:_MOST_CHANGES]) + more


def locked_packages(lock: Path) -> dict[str, str]:
    """Package -> version in a ``uv.lock``. Of several versions for several platforms the installed one counts; where
    none of them is installed, all are named."""
    import tomllib

    versions: dict[str, list[str]] = {}
    try:
        packages = tomllib.loads(lock.read_text(encoding="utf-8")).get("package", [])
    except ValueError:  # a merge conflict, or no lock at all: its digest still tells it from others
        return {}
    for package in packages:
        versions.setdefault(package["name"], []).append(package.get("version", "dynamic"))
    installed = installed_packages() if any(len(v) > 1 for v in versions.values()) else {}
    return {n: installed[n] if installed.get(n) in v else " or ".join(v) for n, v in sorted(versions.items())}


@functools.cache
def installed_packages() -> dict[str, str]:
    """Installed distributions: normalised name -> version. Of two with one name, the one that imports find."""
    found: dict[str, str] = {}
    for directory in dict.fromkeys(p or "." for p in sys.path):
        for entry in _entries(directory):
            name, version = _distribution(directory, entry)
            if name:
                found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), version)
    return dict(sorted(found.items()))


def _entries(directory: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if name.endswith((".dist-info", ".egg-info")))  # noqa: PTH208
    except OSError:
        return []


def _distribution(directory: str, entry: str) -> tuple[str, str]:
    """Name and version of a metadata directory; an old ``.egg-info`` has to be opened for them."""
    name, _, version = entry.removesuffix(".dist-info").rpartition("-")
    if name and entry.endswith(".dist-info"):
        return name, version
    from importlib.metadata import PathDistribution

    metadata = PathDistribution(Path(directory, entry)).metadata
    return metadata["Name"] or "", metadata["Version"] or ""


def file_digest(path: Path) -> str:
    """sha256 (hex) of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
