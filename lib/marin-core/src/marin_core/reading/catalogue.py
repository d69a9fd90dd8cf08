"""The catalogue: what stands under a prefix, found as people name it.

A step is asked for by its address, by its name (the newest of that name is meant, and said to be when there are
several), or by the beginning of an address; a run by its id, by the beginning of one, as ``latest``, or as
``latest~1`` for the one before. What is not there is answered with what comes closest.

Nothing here writes, and nothing here trusts a record: one that cannot be read comes back as the error that says why,
beside all the others. A status is what holds now: a run that a dead process drove is ``died``, whatever its record
says.
"""

import difflib
import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Protocol

from marin_core import leases
from marin_core.ahead import side_by_side
from marin_core.errors import CorruptRecordError, NewerRecordError, PrefixError, UsageError
from marin_core.reading.heads import RunHead, head_of, live_status, run_key
from marin_core.reading.shapes import checked
from marin_core.reasons import Found
from marin_core.records import AttemptRecord, RunRecord, StepRecord, Tombstone, check_schema, committed, from_json
from marin_core.store import Store, open_store

Unreadable = CorruptRecordError | NewerRecordError

_KEY = re.compile(r"[A-Za-z0-9_.+=-]+(/[A-Za-z0-9_.+=-]+)*")
_MARKS = frozenset({"step.json", "lease.json", "tombstone.json"})
"""Files by which a directory is known to be a step's."""
_MOST_LISTED = 8
_POINTER = frozenset(f.name for f in fields(StepRecord) if f.default is MISSING and f.default_factory is MISSING)
"""What every pointer to a committed attempt has."""


class Source(Protocol):
    """What records are read from: a store, or one that also judges where a key leads."""

    def read(self, key: str) -> bytes | None: ...
    def names(self, key: str) -> list[str]: ...


@dataclass(frozen=True, kw_only=True)
class Commit:
    """What is told of a committed step in a list of thousands."""

    attempt: int
    epoch: int
    version: str | None
    committed_at: float
    seconds: float
    num_files: int
    num_bytes: int
    value: Any


class Catalogue:
    """What one prefix holds, as it stands when it is asked.

    Args:
        store: the prefix.
        source: what its records are read from; default the store.
    """

    def __init__(self, store: Store, *, source: Source | None = None) -> None:
        self.store = store
        self._source = source or store

    @classmethod
    def of(cls, prefix: str) -> "Catalogue":
        """The catalogue of a prefix that exists; reading makes none.

        Raises:
            PrefixError: there is no such directory.
        """
        return cls(store_of(prefix))

    # Steps

    @functools.cached_property
    def addresses(self) -> tuple[str, ...]:
        """Every address that was ever worked on, committed or not, in order."""
        return find_addresses(self.store)

    def each[R](self, read: Callable[[str], R], keys: Iterable[str]) -> dict[str, R]:
        """``read`` of every key; side by side where each read is a journey."""
        keys = list(keys)
        return dict(zip(keys, side_by_side(self.store, read, keys), strict=True))

    def record(self, address: str) -> Found:
        """What is committed at an address."""
        key = f"{address}/step.json"
        try:
            found = committed(self._source.read(key), where=key)
            return None if found is None else checked(found, where=key)
        except (CorruptRecordError, NewerRecordError) as e:
            return e

    def commit(self, address: str) -> Commit | Unreadable | None:
        """What a list says of what is committed at an address: half the time of `record`, for what looks at many."""
        key = f"{address}/step.json"
        try:
            data = self._source.read(key)
            return None if data is None else _commit(json.loads(data, parse_constant=str), where=key)
        except (CorruptRecordError, NewerRecordError) as e:
            return e
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
            return CorruptRecordError(f"{key}: not a readable StepRecord ({e})")

    def tombstone(self, address: str) -> Tombstone | Unreadable | None:
        """What was committed at an address before it was collected."""
        return self._read(f"{address}/tombstone.json", Tombstone)

    def remembered(self, address: str) -> StepRecord | None:
        """The step as it is committed, or as it was before it was collected."""
        found = self.record(address)
        if found is None and isinstance(stone := self.tombstone(address), Tombstone):
            return stone.step
        return found if isinstance(found, StepRecord) else None

    def attempts(self, address: str) -> tuple[int, ...]:
        """Numbers of the attempts at a step."""
        names = self._source.names(f"{address}/attempts")
        return tuple(sorted(int(n) for n in names if n.isascii() and n.isdecimal()))

    def attempt(self, address: str, number: int) -> AttemptRecord | Unreadable | None:
        """The record of one attempt."""
        return self._read(f"{address}/attempts/{number}/attempt.json", AttemptRecord)

    def lease(self, address: str) -> leases.Lease | None:
        """The lease of a step, or None if it never had a readable one.

        Raises:
            NewerRecordError: it is of a later schema.
        """
        try:
            return leases.read(self._source, address)
        except CorruptRecordError:  # a link that leads out of the prefix
            return None

    def named(self, text: str) -> list[str]:
        """The addresses that a text names: itself, or all of the step of that name, or what begins with it."""
        text = text.strip("/")
        words = text.split("/")
        if not _KEY.fullmatch(text) or not {"..", "attempts"}.isdisjoint(words) or words[0] == "runs":
            return []
        if self._is_address(text):
            return [text]
        if found := [a for a in self._below(text) if self._is_address(a)]:
            return found
        name, _, start = text.rpartition("/")
        return [a for a in self._below(name) if a.startswith(f"{name}/{start}") and self._is_address(a)] if name else []

    def addresses_of(self, text: str) -> list[str]:
        """`named`, and an error where there is none.

        Raises:
            UsageError: names the closest.
        """
        if found := self.named(text):
            return found
        names = {a.rpartition("/")[0] for a in self.addresses}
        hint = _closest(text, sorted({*names, *self.addresses})) or "marin status lists them"
        raise UsageError(f"{text}: no step of this address or name under {self.store.url}; {hint}")

    def find_step(self, text: str) -> tuple[str, str | None]:
        """The one address that a text names, and a remark if others go by it too; the newest committed one wins."""
        found = self.addresses_of(text)
        if len(found) == 1:
            return found[0], None
        newest = max(found, key=self._recency)
        return newest, f"{text}: the newest of {len(found)} is meant, {newest}"

    def _below(self, key: str) -> list[str]:
        return [f"{key}/{name}" for name in self._source.names(key)]

    def _is_address(self, text: str) -> bool:
        return not _MARKS.isdisjoint(self._source.names(text))

    def _recency(self, address: str) -> tuple[bool, float, str]:
        if isinstance(found := self.record(address), StepRecord):
            return True, found.committed_at, address
        last = self.attempt(address, max(self.attempts(address), default=0))
        return False, last.started_at if isinstance(last, AttemptRecord) else 0.0, address

    # Runs

    @functools.cached_property
    def run_ids(self) -> tuple[str, ...]:
        """Ids of all runs, oldest first: an id begins with the time of its start."""
        return self.list_runs()

    def list_runs(self) -> tuple[str, ...]:
        """`run_ids`, asked anew."""
        return tuple(sorted(n.removesuffix(".json") for n in self._source.names("runs") if n.endswith(".json")))

    def find_run(self, text: str) -> str:
        """The id of the run that a text names.

        Raises:
            UsageError: there is none, or several ids begin so.
        """
        ids = self.run_ids
        if re.fullmatch(r"latest(~\d+)?", text):
            back = int(text.partition("~")[2] or 0)
            if back >= len(ids):
                raise UsageError(f"{text}: there are {len(ids)} runs under {self.store.url}")
            return ids[-1 - back]
        begun = [i for i in ids if i.startswith(text)] if text else []
        if text in begun or len(begun) == 1:
            return text if text in begun else begun[0]
        if begun:
            raise UsageError(f"run {text}: {len(begun)} ids begin so: {', '.join(begun[:_MOST_LISTED])}")
        hint = _closest(text, ids) or "marin status lists them"
        raise UsageError(f"run {text}: no such run under {self.store.url}; {hint}")

    def run(self, run_id: str) -> RunRecord:
        """A run with all its nodes, and what its status is by now.

        Raises:
            CorruptRecordError: it cannot be read.
            NewerRecordError: a later version wrote it.
        """
        key = run_key(run_id)
        found = checked(from_json(RunRecord, self._source.read(key) or b"", where=key), where=key)
        status: Any = live_status(vars(found))
        return replace(found, run_id=run_id, status=status)

    def run_data(self, run_id: str) -> dict[str, Any] | Unreadable:
        """A run's record as plain JSON: a tenth of the time of `run`, for what looks at many."""
        key = run_key(run_id)
        try:
            data = json.loads(self._source.read(key) or b"", parse_constant=str)
            check_schema(data, where=key)
            if not isinstance(data["nodes"], list):
                raise TypeError("nodes is no list")
        except (CorruptRecordError, NewerRecordError) as e:
            return e
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
            return CorruptRecordError(f"{key}: not a readable RunRecord ({e})")
        return data

    def head(self, run_id: str) -> RunHead | Unreadable:
        """A run without its nodes, and what its status is by now."""
        data = self.run_data(run_id)
        return head_of(run_id, data) if isinstance(data, dict) else data

    def _read[T](self, key: str, kind: type[T]) -> T | Unreadable | None:
        try:
            data = self._source.read(key)
            return None if data is None else checked(from_json(kind, data, where=key), where=key)
        except (CorruptRecordError, NewerRecordError) as e:
            return e


def store_of(prefix: str) -> Store:
    """The store of a prefix that exists.

    Raises:
        PrefixError: there is no such directory.
    """
    store = open_store(prefix, unsafe_single_writer=True)
    if store.local is not None and not store.local.is_dir():
        what = "is not a directory" if store.local.exists() else "does not exist"
        raise PrefixError(f"prefix {store.url} {what}; give --prefix or MARIN_PREFIX")
    return store


def find_addresses(store: Store) -> tuple[str, ...]:
    """Every address under a prefix that was ever worked on, in order; looks anew at every call."""
    if store.local is not None:
        found = set(_walk(str(store.local)))
    else:
        found = {k.rpartition("/")[0] for name in ("lease.json", "step.json") for k in store.find(name)}
    return tuple(sorted(a for a in found if a and not a.startswith("runs/")))


def _commit(data: dict[str, Any], *, where: str) -> Commit | None:
    check_schema(data, where=where)
    if data["attempt"] is None:
        return None  # a fence; see `leases`
    if missing := _POINTER - data.keys():
        raise KeyError(min(missing))
    found = Commit(
        attempt=data["attempt"],
        epoch=data.get("epoch", 0),
        version=data["version"],
        committed_at=data["committed_at"],
        seconds=data["seconds"],
        num_files=len(data["files"]),
        num_bytes=sum([f["size"] for f in data["files"]]),
        value=data["value"],
    )
    return checked(found, where=where)


def _walk(root: str) -> Iterator[str]:
    """Directories of steps below a local prefix, in one walk that enters no output and follows no link."""
    for directory, below, files in os.walk(root):
        if not _MARKS.isdisjoint(files):
            below[:] = [name for name in below if name not in ("attempts", "work")]
            yield directory[len(root) + 1 :]


def _closest(text: str, known: Iterable[str]) -> str | None:
    close = difflib.get_close_matches(text, list(known), n=3, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else None
