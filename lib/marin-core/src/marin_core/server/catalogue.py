"""The catalogue: the records under a prefix, each read once for every version of its file.

Listing a hundred runs must not parse a hundred large records at every request, so what a listing needs of a run is
kept (`RunSummary`), keyed by the version of the file it was read from; whole records are kept for the few runs that
are being looked at. A record that cannot be read is an entry too, with the reason in its place.
"""

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from marin_core.errors import CorruptRecordError, NewerRecordError
from marin_core.records import AttemptRecord, RunRecord, StepRecord, from_json
from marin_core.store import open_store
from marin_core.web.files import PrefixFiles, UnreadableFileError
from marin_core.web.view import RunView, outcome_class

Unreadable = CorruptRecordError | NewerRecordError | UnreadableFileError

_MAX_RECORD_BYTES = 256_000_000
_KEPT_VIEWS = 3
_KEPT_SUMMARIES = 2000
_FRESH_SECONDS = 2.0
_FRESH_SHARE = 10
"""How long a list of all addresses stands in for another walk through the prefix: so many seconds, or so many times
what the walk took."""


@dataclass(frozen=True)
class RunSummary:
    """What a listing says of a run, and what a step's page asks it."""

    run_id: str
    script: str
    argv: tuple[str, ...]
    status: str
    started_at: float
    ended_at: float | None
    outcomes: dict[str, int]
    """How many steps came to what."""
    nodes: dict[str, str]
    """Address -> outcome."""
    downstream: dict[str, tuple[str, ...]]
    """Address -> addresses of the steps made from it."""

    @classmethod
    def of(cls, run_id: str, record: RunRecord) -> "RunSummary":
        downstream: dict[str, list[str]] = {}
        for node in record.nodes:
            for address in node.upstream:
                downstream.setdefault(address, []).append(node.address)
        return cls(
            run_id=run_id,
            script=record.script,
            argv=record.argv,
            status=record.status,
            started_at=record.started_at,
            ended_at=record.ended_at,
            outcomes=dict(Counter(outcome_class(node.outcome) for node in record.nodes)),
            nodes={node.address: outcome_class(node.outcome) for node in record.nodes},
            downstream={address: tuple(found) for address, found in downstream.items()},
        )


class Catalogue:
    """What lies under one prefix.

    Args:
        prefix: a directory or an fsspec URL.
    """

    def __init__(self, prefix: str) -> None:
        self.store = open_store(prefix, unsafe_single_writer=True)
        self.url = self.store.url
        self._views = _Kept(_KEPT_VIEWS)
        self._summaries = _Kept(_KEPT_SUMMARIES)
        self._addresses: tuple[float, tuple[str, ...]] = (0.0, ())
        self._walking = threading.Lock()

    def files(self) -> PrefixFiles:
        """The files, with an allowance of their own for one page."""
        return PrefixFiles(self.url)

    def run_ids(self) -> list[str]:
        """All runs, the newest first: their names begin with the time."""
        names = self.files().names("runs")
        return sorted((name.removesuffix(".json") for name in names if name.endswith(".json")), reverse=True)

    def run_version(self, run_id: str) -> str | None:
        """Another word for every change of the run's record; None where there is none."""
        status = self.files().status(run_key(run_id))
        return status.version if status else None

    def summary(self, run_id: str) -> RunSummary | Unreadable:
        """What a listing says of a run; the error where its record cannot be read."""

        def read() -> RunSummary | Unreadable:
            try:
                record = self._read(run_key(run_id), RunRecord)
                return RunSummary.of(run_id, record)
            except _UNREADABLE as e:
                return e
            except (AttributeError, TypeError) as e:  # JSON of the right names and of other kinds
                return CorruptRecordError(f"{run_key(run_id)}: {e}")

        return self._summaries.get(run_id, self._version(run_key(run_id)), read)

    def summaries(self, *, most: int) -> list[RunSummary]:
        """The newest runs that can be read."""
        found = (self.summary(run_id) for run_id in self.run_ids()[:most])
        return [summary for summary in found if isinstance(summary, RunSummary)]

    def view(self, run_id: str) -> RunView:
        """A run joined with its files.

        Raises:
            UnreadableFileError: there is no such run.
            CorruptRecordError, NewerRecordError: its record cannot be read.
        """

        def read() -> RunView:
            record = self._read(run_key(run_id), RunRecord)
            try:
                return RunView.of(replace(record, run_id=run_id), self.files(), served=True)
            except (AttributeError, TypeError) as e:
                raise CorruptRecordError(f"{run_key(run_id)}: {e}") from e

        version = self.run_version(run_id)
        if version is None:
            raise UnreadableFileError(f"there is no run {run_id}")
        return replace(self._views.get(run_id, version, read), files=self.files())

    def addresses(self) -> tuple[str, ...]:
        """Every step that was ever tried: those with a lease, and those with a committed output."""
        with self._walking:
            now = time.monotonic()
            fresh_until, found = self._addresses
            if now >= fresh_until:
                keys = {key.rpartition("/")[0] for name in ("step.json", "lease.json") for key in self.store.find(name)}
                found = tuple(sorted(keys - {""}))
                took = time.monotonic() - now
                self._addresses = (now + took + max(_FRESH_SECONDS, _FRESH_SHARE * took), found)
            return found

    def step(self, address: str) -> StepRecord | Unreadable | None:
        """What is committed at an address; None where nothing is."""
        return self._entry(f"{address}/step.json", StepRecord)

    def attempts(self, address: str) -> list[int]:
        """Numbers of the attempts at a step, the newest first."""
        names = self.files().names(f"{address}/attempts")
        return sorted((int(name) for name in names if name.isdecimal() and name.isascii()), reverse=True)

    def attempt(self, address: str, number: int) -> AttemptRecord | Unreadable | None:
        """The record of an attempt; None where there is none."""
        return self._entry(f"{address}/attempts/{number}/attempt.json", AttemptRecord)

    def _entry(self, key: str, kind: type[Any]) -> Any:
        try:
            return self._read(key, kind) if self.files().status(key) else None
        except _UNREADABLE as e:
            return e

    def _read[T](self, key: str, kind: type[T]) -> T:
        return from_json(kind, self.files().read(key, max_bytes=_MAX_RECORD_BYTES), where=key)

    def _version(self, key: str) -> str:
        try:
            status = self.files().status(key)
        except UnreadableFileError as e:
            return str(e)
        return status.version if status else ""


_UNREADABLE = (CorruptRecordError, NewerRecordError, UnreadableFileError)


def run_key(run_id: str) -> str:
    """The file of a run's record."""
    return f"runs/{run_id}.json"


class _Kept:
    """The most recently used values by key, each only for the version of its source that it was made from."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[str, tuple[str, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def get[T](self, key: str, version: str, make: Callable[[], T]) -> T:
        with self._lock:
            found = self._kept.get(key)
            if found is not None and found[0] == version:
                self._kept.move_to_end(key)
                return found[1]
        made = make()
        with self._lock:
            self._kept[key] = (version, made)
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return made


def matching(names: Sequence[str], query: str) -> list[str]:
    """Those that contain every word of a query, in any case."""
    words = query.lower().split()
    return [name for name in names if all(word in name.lower() for word in words)]
