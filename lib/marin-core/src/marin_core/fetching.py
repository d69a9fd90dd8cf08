"""Fetching: the committed output of a remote prefix as a local directory, whole or not at all.

Steps of one run share a cache: each output is fetched once a host, by whoever comes first, in parallel, while the
others wait for its lock. What was fetched is compared with the manifest of the commit, size and sha256, and renamed
into place only then, so a fetch that was interrupted is never taken for a whole one.
"""

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
from collections.abc import Generator
from pathlib import Path

from marin_core import staging
from marin_core.errors import CorruptRecordError, MissingOutputError, NewerRecordError
from marin_core.records import committed
from marin_core.store import Store, open_store
from marin_core.store.manifests import sha256_of
from marin_core.threads import DaemonExecutor

_DOWNLOADS = 16
_Expected = tuple[int, str | None]
"""Size, and sha256 where the manifest is known."""


def fetch(url: str, *, cache: str = "") -> Path:
    """The directory with all files of an output.

    Args:
        url: of the output, ``{prefix}/{address}/attempts/{n}/out``.
        cache: directory to share; default one of this process.

    Raises:
        MissingOutputError: a file of the output is missing or is not what was committed.
        PrefixError: the store does not answer.
    """
    target = _place(url, cache)
    with _locked(target):
        if not target.exists():
            store, key = _store_of(url)
            files, partial = _files(store, key), target.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            with DaemonExecutor(_DOWNLOADS, name="marin-fetch") as pool:
                list(pool.map(lambda name: _fetch_one(store, key, name, files[name], partial), files))
            partial.rename(target)
    return target


def fetch_file(url: str, name: str, *, cache: str = "") -> Path:
    """One file of an output; the rest is not fetched. Raises as `fetch` does, and FileNotFoundError for a file that
    the output does not have."""
    whole = _place(url, cache)
    if whole.exists():
        return whole / name
    target = whole.with_suffix(".files")
    with _locked(target):
        if not (target / name).exists():
            store, key = _store_of(url)
            files = _files(store, key)
            if name not in files:
                raise FileNotFoundError(f"{url} has no file {name}")
            partial = target.with_suffix(".partial-files")
            shutil.rmtree(partial, ignore_errors=True)
            _fetch_one(store, key, name, files[name], partial)
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (partial / name).rename(target / name)
    return target / name


def _fetch_one(store: Store, key: str, name: str, expected: _Expected, directory: Path) -> None:
    target, where = directory / name, f"{store.child(key)}/{name}"
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        store.get_file(f"{key}/{name}", target)
    except FileNotFoundError as e:
        raise MissingOutputError(f"{where} is missing; marin verify lists what is damaged") from e
    size, sha256 = expected
    found = target.stat().st_size
    if found != size:
        raise MissingOutputError(f"{where} has {found} bytes instead of {size}; marin verify lists what is damaged")
    if sha256 is not None and sha256_of(target) != sha256:
        raise MissingOutputError(f"{where} has another sha256 than recorded; marin verify --deep lists what is damaged")


def _store_of(url: str) -> tuple[Store, str]:
    """The store of the step that an output belongs to, and the output's key there. It is only read."""
    step, _, rest = url.rpartition("/attempts/")
    return open_store(step, unsafe_single_writer=True), f"attempts/{rest}"


def _files(store: Store, key: str) -> dict[str, _Expected]:
    """What the output has to hold: its manifest if it is the committed one, else what is listed."""
    with contextlib.suppress(CorruptRecordError, NewerRecordError):
        record = committed(store.read("step.json"), where=store.child("step.json"))
        if record is not None and key == f"attempts/{record.attempt}/out":
            return {entry.path: (entry.size, entry.sha256) for entry in record.files}
    return {name: (size, None) for name, size in store.tree(key).items()}


def _place(url: str, cache: str) -> Path:
    return Path(cache or _own_cache()) / hashlib.sha256(url.encode()).hexdigest()[:32]


@functools.cache
def _own_cache() -> str:
    staging.sweep()
    return str(staging.owned_directory("inputs"))


@contextlib.contextmanager
def _locked(target: Path) -> Generator[None]:
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(target.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
