"""Earlier attempts: a step that goes back to code, or to inputs, that it had is served what was made of them then.

    {address}/attempts/{n}/step.json   the `StepRecord` of an attempt that another one has superseded

`keep` writes it before the pointer moves on, so first commits cost nothing more. `decide` is the decision about a node
with that in mind: where `reasons` would run an unversioned step because its code or inputs changed, the newest kept
record of just this recipe, code and inputs is used instead, if its files are all there. The runner then points
``step.json`` back at it, by a commit like any other.

Only the newest attempt at the same is looked at: one below it was superseded by it, as by ``--force``.
"""

from collections.abc import Mapping
from typing import NamedTuple

from marin_core import reasons
from marin_core.ahead import side_by_side
from marin_core.errors import CorruptRecordError, NewerRecordError
from marin_core.graph import Node
from marin_core.history import History
from marin_core.reasons import Found, Options
from marin_core.records import Decision, StepRecord, from_json, to_json
from marin_core.store import Store

_MOST_READ = 16
"""Attempts that are looked at, the newest: each costs a round trip where the store is far away."""


class Verdict(NamedTuple):
    """What is to be done with a node, why, and, if an earlier attempt is used, its record."""

    decision: Decision
    reason: str
    earlier: StepRecord | None = None


def decide(
    node: Node,
    found: Found,
    *,
    outputs: Mapping[str, str | None],
    options: Options,
    store: Store,
    history: History,
) -> Verdict:
    """`reasons.decide`, whose arguments these are, unless an earlier attempt has made just what is asked."""
    decision, reason = reasons.decide(
        node, found, outputs=outputs, options=options, store=store, history=history
    )  # fmt: skip
    if decision != "run" or not isinstance(found, StepRecord) or node.step.version is not None:
        return Verdict(decision, reason)
    asked = reasons.matches(options.force + options.rebuild, node)
    if asked or any(outputs[upstream] is None for upstream in node.upstream):
        return Verdict(decision, reason)
    inputs = reasons.inputs_digest(node, outputs)
    is_new = {"code": found.digests.code != node.code.digest, "inputs": found.digests.inputs != inputs}
    changed = [what for what, new in is_new.items() if new]
    record = _made_of(node, inputs, but=found.attempt, store=store) if changed else None
    if record is None:
        return Verdict(decision, reason)
    those = "is that" if changed == ["code"] else "are those"
    why = reason.removeprefix("code changed: ").removeprefix("input ")
    since = history.environment_since(record, node)
    said = f"{' and '.join(changed)} {those} of attempt {record.attempt} again ({why}){since and f'; {since}'}"
    return Verdict("reuse", said, record)


def kept(store: Store, address: str, number: int) -> StepRecord | None:
    """The record of a superseded attempt; None if none was kept.

    Raises:
        CorruptRecordError: it cannot be read.
        NewerRecordError: a later version wrote it.
    """
    key = _key(address, number)
    data = store.read(key)
    return None if data is None else from_json(StepRecord, data, where=key)


def keep(store: Store, address: str, *, but: int) -> None:
    """Keeps the record that ``step.json`` holds with its attempt, unless that is attempt ``but``."""
    found = reasons.read_record(store, address)
    if isinstance(found, StepRecord) and found.attempt != but:
        store.write(_key(address, found.attempt), to_json(found).encode())


def _made_of(node: Node, inputs: str, *, but: int, store: Store) -> StepRecord | None:
    """The newest earlier attempt at this recipe, code and inputs, if it is whole."""
    numbers = sorted((int(n) for n in store.names(f"{node.address}/attempts") if n.isdecimal()), reverse=True)

    def read(number: int) -> StepRecord | None:
        try:
            return kept(store, node.address, number)
        except (CorruptRecordError, NewerRecordError):
            return None

    wanted = (node.recipe_digest, node.code.digest, inputs)
    for record in side_by_side(store, read, [n for n in numbers if n != but][:_MOST_READ]):
        if record is not None and (record.digests.recipe, record.digests.code, record.digests.inputs) == wanted:
            damage = store.damage(f"{node.address}/attempts/{record.attempt}/out", record.files)
            return None if damage else record
    return None


def _key(address: str, number: int) -> str:
    return f"{address}/attempts/{number}/step.json"
