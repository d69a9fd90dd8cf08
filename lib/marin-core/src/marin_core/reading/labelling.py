"""Labelling: what tells the steps of one name under a prefix apart, for lists of them.

A committed step's recipe says what it was given; for one that has no output, the record of the run does that last
tried it. Only steps that share their name are looked at.
"""

from collections import Counter
from collections.abc import Collection
from typing import Any

from marin_core.namesakes import Member, Remembered, labels
from marin_core.reading.catalogue import Catalogue
from marin_core.records import AttemptRecord


def labels_of(catalogue: Catalogue, addresses: Collection[str]) -> dict[str, str]:
    """Address -> what the step is called, for those of the given ones that share their name and are known."""
    shared = Counter(address.rpartition("/")[0] for address in addresses)
    if not any(number > 1 for number in shared.values()):
        return {}
    found: list[tuple[float, Member]] = []
    runs: dict[str, dict[str, Member]] = {}
    for address, record in catalogue.each(catalogue.remembered, sorted(addresses)).items():
        if record is not None:
            found.append((record.committed_at, Remembered.of(record)))
        elif (member := _tried(catalogue, address, runs)) is not None:
            found.append((float("inf"), member))
    return labels(member for _, member in sorted(found, key=lambda pair: pair[0]))


def _tried(catalogue: Catalogue, address: str, runs: dict[str, dict[str, Member]]) -> Member | None:
    """A step without an output, as the run that last tried it has recorded it."""
    number = max(catalogue.attempts(address), default=0)
    attempt = catalogue.attempt(address, number) if number else None
    if not isinstance(attempt, AttemptRecord):
        return None
    if attempt.run_id not in runs:
        data = catalogue.run_data(attempt.run_id)
        nodes = [] if isinstance(data, Exception) else data["nodes"]
        members = (m for n in nodes if isinstance(n, dict) and (m := _member(n)) is not None)
        runs[attempt.run_id] = {m.address: m for m in members}
    return runs[attempt.run_id].get(address)


def _member(node: dict[str, Any]) -> Remembered | None:
    match node:
        case {"address": str(address), "name": str(name), "upstream": [*upstream], "arguments": dict(arguments)}:
            return Remembered(address, name, tuple(map(str, upstream)), arguments)
    return None
