"""Verification: whether what is committed is still what was committed.

Every committed output is compared with its manifest: files that are missing, resized or added, and, deep, files of
another sha256. So is an earlier attempt that would be served again. Beside the outputs, what the records say must be
there: a pointer to an attempt that is gone, an attempt without a record, a record that cannot be read. One damaged
thing never hides another.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from marin_core import earlier, leases
from marin_core.errors import CorruptRecordError, NewerRecordError
from marin_core.reading.catalogue import Catalogue, Unreadable
from marin_core.reading.heads import run_key
from marin_core.records import StepRecord
from marin_core.store import Store

_HASHERS = 4


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was found at one step, or at one run record."""

    key: str
    """The step's address, or the record's path."""
    damage: tuple[str, ...]
    committed: bool = False
    """Whether something is committed there, readable or not."""
    num_files: int = 0
    """Files compared with the manifest."""
    num_bytes: int = 0


def verify_steps(catalogue: Catalogue, addresses: Sequence[str], *, deep: bool) -> Iterator[Finding]:
    """What is wrong with each step, in order; nothing wrong is an empty damage.

    Args:
        catalogue: the prefix.
        addresses: the steps.
        deep: compare every file's sha256, not only its size.
    """
    witness = leases.Witness()

    def look(address: str) -> Finding:
        return _verify(catalogue, address, deep=deep, witness=witness)

    if not deep:
        yield from catalogue.each(look, addresses).values()
        return
    with ThreadPoolExecutor(_HASHERS) as pool:
        yield from pool.map(look, addresses)


def verify_runs(catalogue: Catalogue) -> Iterator[Finding]:
    """The run records that cannot be read."""
    for run_id in catalogue.run_ids:
        data = catalogue.run_data(run_id)
        if not isinstance(data, dict):
            yield Finding(key=run_key(run_id), damage=(_unreadable(data),))


def _verify(catalogue: Catalogue, address: str, *, deep: bool, witness: leases.Witness) -> Finding:
    store, found = catalogue.store, catalogue.record(address)
    damage: list[str] = []
    record = found if isinstance(found, StepRecord) else None
    present = set(catalogue.attempts(address))
    if found is not None and record is None:
        damage.append(_unreadable(found))  # type: ignore[arg-type]
    elif record is not None and record.attempt not in present:
        damage.append(f"step.json points at attempt {record.attempt}, which is not there")
    elif record is not None:
        damage.extend(_output(store, record, deep=deep))
        others = sorted(present - {record.attempt})
        damage.extend(d for number in others for d in _kept(store, address, number, deep=deep))
    damage.extend(_attempts(catalogue, address, sorted(present), witness=witness))
    if isinstance(stone := catalogue.tombstone(address), CorruptRecordError | NewerRecordError):
        damage.append(_unreadable(stone))
    files, size = (len(record.files), record.num_bytes) if record else (0, 0)
    return Finding(key=address, damage=tuple(damage), committed=found is not None, num_files=files, num_bytes=size)


def _output(store: Store, record: StepRecord, *, deep: bool) -> list[str]:
    """What is wrong with an attempt's output, files that were added to it included."""
    key = f"{record.address}/attempts/{record.attempt}/out"
    added = sorted(store.tree(key).keys() - {entry.path for entry in record.files})
    return store.damage(key, record.files, deep=deep) + [f"{name} was added after the commit" for name in added]


def _kept(store: Store, address: str, number: int, *, deep: bool) -> list[str]:
    """What is wrong with a superseded attempt that would be served again; see `earlier`."""
    try:
        record = earlier.kept(store, address, number)
    except (CorruptRecordError, NewerRecordError) as e:
        return [_unreadable(e)]
    return [f"attempts/{number}: {d}" for d in _output(store, record, deep=deep)] if record is not None else []


def _attempts(catalogue: Catalogue, address: str, numbers: Sequence[int], *, witness: leases.Witness) -> Iterator[str]:
    """Attempts without a readable record. At a step that is being made one may just be beginning."""
    for number in numbers:
        found = catalogue.attempt(address, number)
        if isinstance(found, CorruptRecordError | NewerRecordError):
            yield _unreadable(found)
        elif found is None and not _being_made(catalogue, address, witness):
            yield f"attempts/{number} has no record"


def _being_made(catalogue: Catalogue, address: str, witness: leases.Witness) -> bool:
    try:
        lease = leases.read(catalogue.store, address)
    except NewerRecordError:
        return True
    return lease is not None and witness.alive(address, lease)


def _unreadable(error: Unreadable) -> str:
    return f"corrupt: {error}" if isinstance(error, CorruptRecordError) else str(error)
