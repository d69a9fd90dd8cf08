"""Pins: outputs that are kept whatever their age, and all they were made from with them.

``{address}/pin.json`` says who pinned it, when and why. One file a pin, beside the step it speaks of: two people who
pin at once lose nothing, and a prefix that is moved takes its pins along.
"""

import time
from dataclasses import dataclass

from marin_core.errors import CorruptRecordError, MissingOutputError, NewerRecordError
from marin_core.reasons import read_record
from marin_core.records import SCHEMA, StepRecord, from_json, to_json
from marin_core.store import Store

PIN = "pin.json"


@dataclass(frozen=True, kw_only=True)
class Pin:
    """That an output is kept, since when (seconds since the epoch), by whom and why."""

    address: str
    user: str
    pinned_at: float
    why: str = ""
    schema: int = SCHEMA


def pin(store: Store, address: str, *, why: str = "") -> Pin:
    """Keeps what is committed at an address. A collection that is under way is waited for, since it may have looked
    before the pin was there.

    Raises:
        MissingOutputError: nothing is committed there, or it has just been collected.
    """
    from marin_core.collection.removal import await_collection
    from marin_core.running.attempts import user

    made = Pin(address=address, user=user(), pinned_at=time.time(), why=why)
    _require(store, address)
    store.write(f"{address}/{PIN}", to_json(made).encode())
    await_collection(store)
    try:
        _require(store, address)
    except MissingOutputError:
        unpin(store, address)
        raise
    return made


def unpin(store: Store, address: str) -> bool:
    """Takes a pin away; False if there was none."""
    was = store.read(f"{address}/{PIN}") is not None
    store.delete(f"{address}/{PIN}")
    return was


def read_pin(store: Store, address: str) -> Pin | None:
    """The pin of a step. One that cannot be read still pins; who and why are lost."""
    data = store.read(f"{address}/{PIN}")
    if data is None:
        return None
    try:
        return from_json(Pin, data, where=f"{address}/{PIN}")
    except (CorruptRecordError, NewerRecordError) as e:
        return Pin(address=address, user="unknown", pinned_at=0.0, why=str(e))


def _require(store: Store, address: str) -> None:
    if not isinstance(read_record(store, address), StepRecord):
        raise MissingOutputError(f"{address}: nothing is committed there, so there is nothing to keep")
