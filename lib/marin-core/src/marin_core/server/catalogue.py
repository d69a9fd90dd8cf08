"""The server's catalogue: what stands under the prefix at each request, with large things kept from one to the next.

It is the catalogue that the commands read by, on files that are judged by where they lead (`web.files`). Listing a
hundred runs must not parse a hundred large records at every request, so what a listing needs of a run is kept
(`RunSummary`), keyed by the version of the file it was read from; whole records are kept for the few runs that are
being looked at. What time alone can change (a driver that dies) is asked anew.
"""

import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from marin_core import leases
from marin_core.errors import CorruptRecordError
from marin_core.reading import catalogue, states
from marin_core.reading.catalogue import Unreadable
from marin_core.reading.heads import RunHead, head_of, live_status, run_key
from marin_core.web.files import PrefixFiles, UnreadableFileError
from marin_core.web.sweeps import parameters
from marin_core.web.values import in_words
from marin_core.web.view import RunView, outcome_class

_MAX_RECORD_BYTES = 256_000_000
_MAX_ARGUMENTS = 160
_KEPT_VIEWS = 3
_KEPT_SUMMARIES = 2000
_LABELLED_RUNS = 20
"""The newest runs, by whose arguments steps are searched; others are told by their own records."""
_FRESH_SECONDS = 2.0
_FRESH_SHARE = 10
"""How long a list of all addresses stands in for another walk through the prefix: so many seconds, or so many times
what the walk took."""


@dataclass(frozen=True)
class RunSummary:
    """What a listing says of a run, and what a step's page asks it."""

    head: RunHead
    driver: dict[str, Any]
    nodes: dict[str, str]
    """Address -> outcome."""
    downstream: dict[str, tuple[str, ...]]
    """Address -> addresses of the steps made from it."""
    arguments: dict[str, str]
    """Address -> the literal arguments in one line, of the steps that were given any."""

    @classmethod
    def of(cls, run_id: str, data: dict[str, Any]) -> "RunSummary | Unreadable":
        head = head_of(run_id, data)
        if not isinstance(head, RunHead):
            return head
        downstream: dict[str, list[str]] = {}
        for node in data["nodes"]:
            for address in node["upstream"]:
                downstream.setdefault(address, []).append(node["address"])
        return cls(
            head=replace(head, status=data["status"]),
            driver=data.get("driver") or {},
            nodes={node["address"]: outcome_class(node["outcome"]) for node in data["nodes"]},
            downstream={address: tuple(found) for address, found in downstream.items()},
            arguments={
                node["address"]: sys.intern(said) for node in data["nodes"] if (said := arguments_of(node["arguments"]))
            },
        )

    def now(self) -> "RunSummary":
        """The same with the status that the run has by now."""
        status = live_status({"status": self.head.status, "driver": self.driver})
        return self if status == self.head.status else replace(self, head=replace(self.head, status=status))


class Catalogue(catalogue.Catalogue):
    """What lies under one prefix.

    Args:
        prefix: a directory or a URL.

    Raises:
        PrefixError: there is no such directory, or the store cannot be reached.
    """

    def __init__(self, prefix: str) -> None:
        self.store = catalogue.store_of(prefix)
        super().__init__(self.store, source=_Contained(self.files))
        self.url = self.store.url
        self._views = _Kept(_KEPT_VIEWS)
        self._summaries = _Kept(_KEPT_SUMMARIES)
        self._addresses: tuple[float, tuple[str, ...]] = (0.0, ())
        self._walking = threading.Lock()
        self._witness = leases.Witness()

    def files(self) -> PrefixFiles:
        """The files, with an allowance of their own for one page."""
        return PrefixFiles(self.store)

    @property
    def run_ids(self) -> tuple[str, ...]:
        """Ids of all runs by now, oldest first."""
        return self.list_runs()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Every step that was ever worked on, as it was known moments ago."""
        with self._walking:
            now = time.monotonic()
            fresh_until, found = self._addresses
            if now >= fresh_until:
                found = catalogue.find_addresses(self.store)
                took = time.monotonic() - now
                self._addresses = (now + took + max(_FRESH_SECONDS, _FRESH_SHARE * took), found)
            return found

    def run_version(self, run_id: str) -> str | None:
        """Another word for every change of the run's record, and of whether its driver lives; None where there is
        none."""
        status = self.files().status(run_key(run_id))
        if status is None:
            return None
        summary = self.summary(run_id)
        return f"{status.version}-{summary.head.status}" if isinstance(summary, RunSummary) else status.version

    def summary(self, run_id: str) -> RunSummary | Unreadable:
        """What a listing says of a run; the error where its record cannot be read."""

        def read() -> RunSummary | Unreadable:
            data = self.run_data(run_id)
            try:
                return RunSummary.of(run_id, data) if isinstance(data, dict) else data
            except (TypeError, KeyError, AttributeError) as e:  # JSON of the right names and of other kinds
                return CorruptRecordError(f"{run_key(run_id)}: not a readable RunRecord ({e})")

        found = self._summaries.get(run_id, self._version(run_key(run_id)), read)
        return found.now() if isinstance(found, RunSummary) else found

    def labels(self) -> dict[str, str]:
        """Address -> arguments of the steps of the newest runs, in one line."""
        found: dict[str, str] = {}
        for summary in self.summaries(most=_LABELLED_RUNS):
            for address, said in summary.arguments.items():
                found.setdefault(address, said)
        return found

    def summaries(self, *, most: int) -> list[RunSummary]:
        """The newest runs that can be read."""
        found = (self.summary(run_id) for run_id in reversed(self.run_ids[-most:]))
        return [summary for summary in found if isinstance(summary, RunSummary)]

    def view(self, run_id: str) -> RunView:
        """A run joined with its files.

        Raises:
            UnreadableFileError: there is no such run.
            CorruptRecordError, NewerRecordError: its record cannot be read.
        """
        version = self.run_version(run_id)
        if version is None:
            raise UnreadableFileError(f"there is no run {run_id}")
        view = self._views.get(run_id, version, lambda: RunView.of(self.run(run_id), self.files(), served=True))
        return replace(view, files=self.files())

    def state(self, address: str) -> states.StepState:
        """How a step stands."""
        return states.state_of(self, address, witness=self._witness)

    def attempt_state(self, address: str, number: int) -> str:
        """How an attempt stands."""
        return states.attempt_state(self, address, number, witness=self._witness)

    def _version(self, key: str) -> str:
        try:
            status = self.files().status(key)
        except UnreadableFileError as e:
            return str(e)
        return status.version if status else ""


@dataclass(frozen=True)
class _Contained:
    """Records of the prefix alone: one that a link leads to elsewhere is not read."""

    files: Callable[[], PrefixFiles]

    def read(self, key: str) -> bytes | None:
        try:
            return self.files().record(key, max_bytes=_MAX_RECORD_BYTES)
        except UnreadableFileError as e:
            raise CorruptRecordError(str(e)) from e

    def names(self, key: str) -> list[str]:
        return self.files().names(key)


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


def arguments_of(given: dict[str, Any]) -> str:
    """Literal arguments in one line, as the call has them."""
    flat = parameters([given, {}])
    said = [f"{name}={in_words('', value)}" for name, (value, _) in flat.items()]
    text = ", ".join(said)
    return text if len(text) <= _MAX_ARGUMENTS else f"{text[: _MAX_ARGUMENTS - 1]}…"


def matching(names: Sequence[str], query: str) -> list[str]:
    """Those that contain every word of a query, in any case."""
    words = query.lower().split()
    return [name for name in names if all(word in name.lower() for word in words)]
