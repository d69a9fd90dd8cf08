"""History: what was committed before, to say what is new: earlier recipes of a step, tombstones, earlier environments.

Read once a name or environment, and not for names with so many siblings that reading them would cost more than the
sentence is worth.
"""

import time
from collections.abc import Iterable, Mapping

from marin_core.ahead import side_by_side
from marin_core.errors import CorruptRecordError, NewerRecordError
from marin_core.graph import Node
from marin_core.provenance import environments
from marin_core.reasons import CODE_OF, UPSTREAM, code_changes, flatten, read_record, recipe_changes
from marin_core.records import AttemptRecord, StepRecord, Tombstone, from_json
from marin_core.steps import find_steps
from marin_core.store import Store

_MOST_SIBLINGS = 64
"""Earlier recipes of one name, and of all names of a graph, that are read to say what is new."""
_MOST_READ = 4096
_MOST_CHANGES = 6
_MOST_ATTEMPTS = 64
"""Steps without an output whose last attempt is looked at: one after another, where a store may be far away."""
_LONGEST = 120
"""Characters of a failure's message."""


class History:
    """What stands under one prefix, as far as it has been asked for."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._siblings: dict[str, frozenset[str]] = {}
        self._earlier: dict[str, list[tuple[StepRecord, dict[str, str]]]] = {}
        self._num_read = self._num_attempts = 0
        self._environments: dict[tuple[str, str], str] = {}

    def environment_changes(self, old: str, new: str) -> str:
        """The packages that differ between two environments, by digest; empty if the old one was never described."""
        if (old, new) not in self._environments:
            record = environments.read(self._store, old)
            changes = environments.changes(record, environments.record_of(new)) if record else ()
            self._environments[old, new] = environments.listed(changes)
        return self._environments[old, new]

    def environment_since(self, record: StepRecord, node: Node) -> str:
        """That a committed output was made in another environment, in words; empty if it was not."""
        if record.digests.environment == node.environment:
            return ""
        changed = self.environment_changes(record.digests.environment, node.environment)
        return f"environment changed since{f': {changed}' if changed else ''}"

    def what_is_new(self, node: Node) -> str:
        """The reason why a step without a committed output runs."""
        if (collected := self._collected(node)) is not None:
            return collected
        nearest = self.nearest(node)
        if nearest is None:
            return f"no committed output{self._failed(node)}"
        changes = [self._adopted(c, node) for c in recipe_changes(nearest.recipe, node.recipe)]
        more = f"; and {len(changes) - _MOST_CHANGES} more" if len(changes) > _MOST_CHANGES else ""
        if any(f": {CODE_OF}" in change for change in changes):
            more += f"; code changed: {code_changes(nearest.code, node)}"
        return "recipe is new: " + "; ".join(changes[:_MOST_CHANGES]) + more + self._failed(node)

    def _adopted(self, change: str, node: Node) -> str:
        """A change of adopted data in words of its own: there is no recipe that anybody wrote."""
        parameter = change.removesuffix(f": {UPSTREAM}")
        steps = list(find_steps(node.step.arguments.get(parameter)))
        return f"{parameter}: adopted data changed" if steps and all(s.external for s in steps) else change

    def nearest(self, node: Node) -> StepRecord | None:
        """The committed step of the same name whose recipe differs in the fewest leaves, the newest of several; one
        of the same function before any other."""
        if node.step.version is not None:
            return None
        self.read_ahead([node.name])
        own = flatten(node.recipe)
        earlier = self._earlier[node.name]
        ranked = [(x["function"] != own["function"], _distance(x, own), -r.committed_at, r) for r, x in earlier]
        return min(ranked, key=lambda rank: rank[:3], default=(True, 0, 0.0, None))[3]

    def read_ahead(self, names: Iterable[str]) -> None:
        """Reads what is known of these names, side by side."""
        unread = [n for n in dict.fromkeys(names) if n not in self._siblings]
        asked: list[tuple[str, str]] = []
        for name, siblings in zip(unread, side_by_side(self._store, self._store.names, unread), strict=True):
            self._siblings[name], self._earlier[name] = frozenset(siblings), []
            if len(siblings) <= min(_MOST_SIBLINGS, _MOST_READ - self._num_read):
                self._num_read += len(siblings)
                asked += [(name, f"{name}/{sibling}") for sibling in siblings]
        records = side_by_side(self._store, lambda a: read_record(self._store, a[1]), asked)
        for (name, _), record in zip(asked, records, strict=True):
            if isinstance(record, StepRecord) and record.version is None:
                self._earlier[name].append((record, flatten(record.recipe)))

    def _failed(self, node: Node) -> str:
        """How the last attempt at a step ended that has no committed output, if it failed. Looked up only where the
        step's directory exists, and for so many steps."""
        name, _, last = node.address.rpartition("/")
        self.read_ahead([name])
        if last not in self._siblings[name] or self._num_attempts >= _MOST_ATTEMPTS:
            return ""
        self._num_attempts += 1
        number = max((int(n) for n in self._store.names(f"{node.address}/attempts") if n.isdecimal()), default=0)
        key = f"{node.address}/attempts/{number}/attempt.json"
        try:
            attempt = from_json(AttemptRecord, self._store.read(key) or b"", where=key)
        except (CorruptRecordError, NewerRecordError):
            return ""
        if attempt.state != "failed" or attempt.failure is None:
            return ""
        message = " ".join(attempt.failure.message.split())[:_LONGEST]
        return f"; attempt {number} failed: {attempt.failure.type}: {message}"

    def _collected(self, node: Node) -> str | None:
        """The reason of a step whose output was collected."""
        name, _, last = node.address.rpartition("/")
        self.read_ahead([name])
        key = f"{node.address}/tombstone.json"
        data = self._store.read(key) if last in self._siblings[name] else None
        try:
            stone = from_json(Tombstone, data, where=key) if data is not None else None
        except (CorruptRecordError, NewerRecordError):
            return None
        return f"collected by gc on {time.strftime('%Y-%m-%d', time.localtime(stone.collected_at))}" if stone else None


def _distance(before: Mapping[str, str], after: Mapping[str, str]) -> int:
    """Number of leaves in which two recipes differ."""
    return len(dict(before.items() ^ after.items()))
