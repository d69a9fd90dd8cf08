"""One attempt at a step: its directory, its commit, and its end. `beginning` starts one, `examination` looks at what
its body has left.

    {address}/attempts/{n}/attempt.json   the record, from the moment the attempt begins
    {address}/attempts/{n}/out/           what the body writes; nobody reads it before the commit
    {address}/attempts/{n}/log.txt        the body's stdout and stderr
    {address}/attempts/{n}/step.json      its record, once another attempt has been committed; see `earlier`
    {address}/step.json                   the commit: the pointer to attempt n, swapped in under the lease

A failed or killed attempt leaves its directory behind, which is never read as an output and never reused: the next
attempt has the next number.
"""

import contextlib
import functools
import getpass
import hashlib
import json
import os
import shutil
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from marin_core import earlier, faults, leases
from marin_core.encoding import digest
from marin_core.errors import ConflictError, MarinCoreError
from marin_core.graph import Node
from marin_core.launchers import Job
from marin_core.records import AttemptRecord, Failure, FileEntry, StepRecord, to_json
from marin_core.store import Store


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """An attempt that has begun. ``directory`` is local: the attempt's own, or a staging one on a remote prefix."""

    node: Node
    record: AttemptRecord
    lease: leases.Holding
    directory: Path
    inputs: dict[str, str]
    prefix: str
    """The store's path or URL."""
    script: str | None = None
    """The driver's script, if the body needs it."""
    given: Mapping[str, tuple[FileEntry, ...]] = field(default_factory=dict)
    """The committed outputs that the body gets as directories of this machine, relative to the prefix -> manifest."""

    @property
    def address(self) -> str:
        return self.node.address

    @property
    def key(self) -> str:
        """The attempt's directory relative to the prefix."""
        return f"{self.address}/attempts/{self.record.attempt}"

    @property
    def log(self) -> Path:
        """Where the body's output goes."""
        return self.directory / "log.txt"

    @functools.cached_property
    def name(self) -> str:
        """The name of its job, the same whoever asks."""
        return job_name(self.prefix, self.address, self.record.attempt)

    @property
    def job(self) -> Job:
        """What a launcher is given."""
        return Job(
            name=self.name,
            prefix=self.prefix,
            key=self.key,
            request=str(self.directory / "request.pickle"),
            log=str(self.log),
            resources=self.node.step.resources,
            timeout_seconds=self.node.step.function.timeout_seconds,
            run_id=self.record.run_id,
            script=self.script,
            shareable=not self.node.code.changed_files(),
        )


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What a body left: either a failure, or a value and the manifest of its output."""

    failure: Failure | None = None
    value: Any = None
    files: tuple[FileEntry, ...] = ()


def job_name(prefix: str, address: str, number: int) -> str:
    """What an attempt's job is called: the same for every driver, and another under another prefix."""
    return f"{address}/{number}@{hashlib.sha256(prefix.encode()).hexdigest()[:12]}"


def commit(store: Store, attempt: Attempt, ended: Ended, *, provenance: Mapping[str, Any]) -> StepRecord:
    """Swaps the pointer to this attempt in, if the lease is still ours.

    Args:
        store: the prefix.
        attempt: the attempt.
        ended: what its body left.
        provenance: the fields ``origin`` and ``adopted`` of the record.

    Raises:
        LeaseLostError: another runner has taken the step over; nothing is committed.
        PrefixError: the prefix cannot be written.
    """
    node, now = attempt.node, time.time()
    record = StepRecord(
        address=node.address,
        name=node.name,
        version=node.step.version,
        attempt=attempt.record.attempt,
        digests=attempt.record.digests,
        recipe=node.recipe,
        code=node.code.units,
        upstream=tuple(node.upstream),
        files=ended.files,
        output_digest=digest([[f.path, f.size, f.sha256] for f in ended.files] + [ended.value]),
        value=ended.value,
        committed_at=now,
        seconds=now - attempt.record.started_at,
        inputs=attempt.inputs,
        epoch=attempt.lease.epoch,
        run_id=attempt.record.run_id,
        **provenance,
    )
    _point(store, attempt.lease, record)
    return record


def restore(store: Store, lease: leases.Holding, record: StepRecord) -> StepRecord:
    """Points at an earlier attempt again, whose record this was; returns what it is now.

    Raises:
        LeaseLostError: another runner has taken the step over; nothing is committed.
        PrefixError: the prefix cannot be written.
    """
    record = replace(record, epoch=lease.epoch, fence=0)
    _point(store, lease, record)
    return record


def _point(store: Store, lease: leases.Holding, record: StepRecord) -> None:
    """Swaps the pointer; the record that it held is kept with its attempt."""
    if lease.pointer is not None:
        earlier.keep(store, record.address, but=record.attempt)
    faults.reached("before-commit")
    leases.commit(store, record.address, lease, to_json(record).encode())
    faults.reached("after-commit")


def close(store: Store, attempt: Attempt, *, state: Any, failure: Failure | None = None, settled: bool = True) -> None:
    """Enters the end of an attempt in its record, keeps its log, and gives the lease back. An attempt that a later run
    goes on with is that run's to close.

    Args:
        store: the prefix.
        attempt: the attempt.
        state: how it ended.
        failure: why it failed.
        settled: False if its commit may yet take effect: then the lease is left to run out, so that whoever comes next
            fences that commit off.
    """
    record = replace(attempt.record, state=state, ended_at=time.time(), failure=failure)
    try:
        with told(store):
            if _entered(store, attempt, record):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{attempt.directory}/request.pickle")  # noqa: PTH108
        faults.reached("attempt-closed")
    finally:
        if settled:
            leases.release(store, attempt.address, attempt.lease)
        else:  # whoever overtakes the lease kills the body that it names, whose process may be another's by then
            with contextlib.suppress(MarinCoreError):
                leases.update(store, attempt.address, attempt.lease, body=None)
        if store.local is None:
            shutil.rmtree(attempt.directory, ignore_errors=True)


def _entered(store: Store, attempt: Attempt, record: AttemptRecord) -> bool:
    """Writes the record and the log, unless another run has taken this very attempt over, with its body. Only a commit
    proves that none has."""
    key, data = f"{attempt.key}/attempt.json", to_json(record).encode()
    found = store.read_versioned(key) if record.state != "succeeded" else None
    if found is not None and _run_id(found.data) not in (None, record.run_id):
        return False
    if store.local is None and attempt.log.exists():
        store.put_file(attempt.log, record.log)
    if found is None:
        store.write(key, data, durable=False)
        return True
    try:
        store.swap(key, data, expected=found.version)
    except ConflictError:
        return False
    return True


def _run_id(data: bytes) -> str | None:
    """The run that an attempt's record names; None if it cannot be read."""
    try:
        return json.loads(data).get("run_id")
    except (ValueError, AttributeError, RecursionError):
        return None


def failure_of(error: MarinCoreError) -> Failure:
    """The failure of an attempt that an error of this package has ended: it would meet it again."""
    return Failure(type=type(error).__name__, message=str(error), traceback="", exit_code=error.exit_code)


@contextlib.contextmanager
def told(store: Store) -> Generator[None]:
    """Says of an operating system error what it means for the prefix."""
    try:
        yield
    except OSError as e:
        raise store.error(e) from e


@functools.cache
def user() -> str:
    """The user's name, or number where it has none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())
