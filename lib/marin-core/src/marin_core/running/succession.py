"""Succession: a run that takes a step over from a driver that died finds the body still running, and goes on with it.

Only some launchers' bodies outlive their driver. The last attempt's record tells whether there may be one: it says
``running``, and which kind of launcher has the job. What was asked for must not have changed meanwhile: recipe, code
and inputs are those that this run would give to a new body. Then the attempt goes on under the new lease, with its
number and its directory, and its body, which is told nothing, keeps the epoch of `Work` that it was started with.
Otherwise the old job is cancelled, so that never two bodies of one step are at work.

Invariant: a body is adopted under a lease that is held, so by one run at a time, and its output is committed under
that lease or not at all.
"""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from marin_core import leases, staging
from marin_core.encoding import digest
from marin_core.errors import CorruptRecordError, UsageError
from marin_core.graph import Node
from marin_core.launchers import MORTAL, JobStatus, Launcher, delivery, kind_of, make_launcher
from marin_core.processes import this_host
from marin_core.records import AttemptRecord, from_json, to_json
from marin_core.running.attempts import Attempt, job_name, user
from marin_core.running.beginning import begin
from marin_core.store import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Succession:
    """An attempt that was begun, or goes on."""

    attempt: Attempt
    reason: str
    adopted: bool = False
    ended: JobStatus | None = None
    """Set if the body of an adopted attempt has ended and no launcher knows of it any more."""


def attempt_at(
    store: Store,
    node: Node,
    lease: leases.Holding,
    *,
    launcher: Launcher,
    notify: Callable[[str], None],
    run_id: str,
    reason: str,
    arguments: Mapping[str, Any],
    inputs: dict[str, str],
    fresh: bool,
) -> Succession:
    """The attempt that an earlier driver left with its body at work, adopted; else a new one, whose body is to be
    launched. Arguments are those of `beginning.begin`, and:

    Args:
        launcher: where this run's bodies run.
        notify: told the job's name when an adopted body has ended.
    """
    record = _unfinished(store, node.address)
    if record is not None and record.launcher:
        wanted = not fresh and kind_of(launcher) == record.launcher and _wanted(record, node, inputs)
        if not wanted:
            _end(job_name(store.url, node.address, record.attempt), record.launcher, launcher)
        elif (status := _found(store, record, launcher=launcher, notify=notify)) is not None:
            attempt = _go_on(store, node, lease, record, run_id=run_id, inputs=inputs)
            why = f"goes on with the body that run {record.run_id} started"
            return Succession(attempt=attempt, reason=why, adopted=True, ended=None if status.running else status)
    attempt = begin(
        store,
        node,
        lease,
        run_id=run_id,
        reason=reason,
        arguments=arguments,
        inputs=inputs,
        launcher=kind_of(launcher),
        fresh=fresh,
    )
    return Succession(attempt=attempt, reason=reason)


def clear_away(store: Store, address: str, *, launcher: Launcher) -> None:
    """Ends the job that a dead driver left at a step which is not to be run."""
    record = _unfinished(store, address)
    if record is not None and record.launcher:
        _end(job_name(store.url, address, record.attempt), record.launcher, launcher)


def _found(
    store: Store, record: AttemptRecord, *, launcher: Launcher, notify: Callable[[str], None]
) -> JobStatus | None:
    """What there is of an attempt's body: a job that the launcher adopts, or what it left; None if it never began, or
    nobody can tell what it left."""
    if launcher.adopt(job_name(store.url, record.address, record.attempt), notify=notify):
        return JobStatus(running=True)
    try:
        delivered = delivery.find(store, f"{record.address}/attempts/{record.attempt}")
    except CorruptRecordError:
        return None
    return None if delivered is None else JobStatus(running=False)


def _go_on(
    store: Store, node: Node, lease: leases.Holding, record: AttemptRecord, *, run_id: str, inputs: dict[str, str]
) -> Attempt:
    """The attempt under a new lease, which its record names from now on."""
    key = f"{node.address}/attempts/{record.attempt}"
    host, pid = this_host().split(":")[0], os.getpid()
    record = replace(record, epoch=lease.epoch, run_id=run_id, host=host, user=user(), pid=pid)
    store.write(f"{key}/attempt.json", to_json(record).encode(), durable=False)
    directory = store.local / key if store.local else staging.owned_directory("attempt")
    return Attempt(node=node, record=record, lease=lease, directory=directory, inputs=inputs, prefix=store.url)


def _unfinished(store: Store, address: str) -> AttemptRecord | None:
    """The record of the last attempt, if nobody has entered its end."""
    numbers = [int(n) for n in store.names(f"{address}/attempts") if n.isdigit()]
    key = f"{address}/attempts/{max(numbers, default=0)}/attempt.json"
    data = store.read(key) if numbers else None
    try:
        record = from_json(AttemptRecord, data, where=key) if data is not None else None
    except CorruptRecordError:
        return None
    return record if record is not None and record.state == "running" else None


def _wanted(record: AttemptRecord, node: Node, inputs: dict[str, str]) -> bool:
    wanted = (node.recipe_digest, node.code.digest, digest([inputs[a] for a in node.upstream]))
    return (record.digests.recipe, record.digests.code, record.digests.inputs) == wanted


def _end(name: str, kind: str, launcher: Launcher) -> None:
    """Cancels a job that is still at work, through a launcher of the kind that has it."""
    if kind_of(launcher) != kind:
        if kind in MORTAL:
            return
        try:
            launcher = make_launcher(kind)
        except UsageError as e:
            log.warning("job %s may still be at work under launcher %s, which cannot be asked: %s", name, kind, e)
            return
    if launcher.adopt(name, notify=lambda _: None):
        launcher.cancel(name)
