"""Ancestry: from what a committed step was made, and what was made of it, as far as records go.

A walk over the records' ``upstream``, iterative and linear: a step that several lead to is told once, with all that
lies behind it, and named where it comes up again. A step that was collected answers from its tombstone, one that was
adopted from the run that read it, and one that nothing is known of is named as missing.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from marin_core.reading.catalogue import Catalogue
from marin_core.records import AttemptRecord, StepRecord, Tombstone

State = Literal["committed", "collected", "adopted", "corrupt", "missing"]


@dataclass(frozen=True, kw_only=True)
class Kin:
    """One step of a lineage."""

    address: str
    state: State
    record: StepRecord | None = None
    run_id: str | None = None
    """The run that made it."""
    commit: str | None = None
    """The git commit that this run was started from; with a + if the tree had changes."""
    note: str = ""
    """When it was collected, where it was adopted from, or why it cannot be read."""

    @property
    def upstream(self) -> tuple[str, ...]:
        return self.record.upstream if self.record else ()


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the tree: a step at its depth. ``again`` if it, and what lies behind it, was told above."""

    depth: int
    kin: Kin
    again: bool = False


class Ancestry:
    """The relations between the steps of one prefix; each record is read once."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._kin: dict[str, Kin] = {}
        self._runs: dict[str, tuple[str | None, dict[str, str]]] = {}

    def of(self, address: str, *, maker: str | None = None) -> Kin:
        """What is known of one step.

        Args:
            address: the step.
            maker: the run of a step that read it, which knows of data that was adopted.
        """
        if address not in self._kin:
            self._kin[address] = self._look(address, maker)
        return self._kin[address]

    def up(self, kin: Kin) -> Sequence[Kin]:
        """What a step was made from."""
        return [self.of(a, maker=kin.run_id) for a in kin.upstream]

    def down(self, kin: Kin) -> Sequence[Kin]:
        """What was made from a step, in order of address."""
        return [self.of(a) for a in self._downstream.get(kin.address, ())]

    @functools.cached_property
    def _downstream(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        records = self._catalogue.each(self._catalogue.remembered, self._catalogue.addresses)
        for address, record in records.items():
            for upstream in record.upstream if record else ():
                found.setdefault(upstream, []).append(address)
        return found

    def adopted(self, text: str) -> list[str]:
        """Addresses of adopted data of that address, or name, or beginning of an address, in the order in which they
        were last read."""
        text = text.strip("/")
        found: dict[str, tuple[float, str]] = {}
        for address in (a for down in self._downstream.values() for a in down):
            record = self._catalogue.remembered(address)
            if record is None:
                continue
            for data in record.adopted:
                if text in (data, data.rpartition("/")[0]) or ("/" in text and data.startswith(text)):
                    found[data] = max(found.get(data, (0.0, "")), (record.committed_at, record.run_id))
        for data, (_, run_id) in found.items():
            self.of(data, maker=run_id)
        return sorted(found, key=found.__getitem__)

    def _look(self, address: str, maker: str | None) -> Kin:
        found, note = self._catalogue.record(address), ""
        state: State = "committed"
        if found is None:
            found = self._catalogue.tombstone(address)
            state = "collected"
        if isinstance(found, Tombstone):
            found, note = found.step, _when(found)
        if found is None:
            _, adopted = self._run(maker) if maker else (None, {})
            source = adopted.get(address)
            return Kin(address=address, state="adopted" if source else "missing", note=source or "no record of it here")
        if not isinstance(found, StepRecord):
            return Kin(address=address, state="corrupt", note=str(found))
        attempt = self._catalogue.attempt(address, found.attempt)
        run_id = attempt.run_id if isinstance(attempt, AttemptRecord) else None
        commit, _ = self._run(run_id) if run_id else (None, {})
        return Kin(address=address, state=state, record=found, run_id=run_id, commit=commit, note=note)

    def _run(self, run_id: str) -> tuple[str | None, dict[str, str]]:
        """The commit of a run, and where the steps that it adopted lie."""
        if run_id not in self._runs:
            data = self._catalogue.run_data(run_id)
            self._runs[run_id] = (None, {}) if isinstance(data, Exception) else (_commit(data), _adopted(data))
        return self._runs[run_id]


def tree(root: Kin, relatives: Callable[[Kin], Sequence[Kin]]) -> Iterator[Line]:
    """A step and all that ``relatives`` leads to, depth first, each step told once."""
    told: set[str] = set()
    stack = [(0, root)]
    while stack:
        depth, kin = stack.pop()
        again = kin.address in told
        yield Line(depth=depth, kin=kin, again=again)
        if not again:
            told.add(kin.address)
            stack.extend((depth + 1, other) for other in reversed(relatives(kin)))


def _when(stone: Tombstone) -> str:
    import time

    return f"collected on {time.strftime('%Y-%m-%d', time.localtime(stone.collected_at))}: {stone.reason}"


def _commit(run: dict[str, Any]) -> str | None:
    git = run.get("git") or {}
    commit = git.get("commit")
    return f"{commit[:12]}{'+' if git.get('dirty') else ''}" if isinstance(commit, str) and commit else None


def _adopted(run: dict[str, Any]) -> dict[str, str]:
    said = {str(n.get("address")): str(n.get("reason", "")) for n in run["nodes"] if isinstance(n, dict)}
    return {address: reason for address, reason in said.items() if reason.startswith("adopted from ")}
