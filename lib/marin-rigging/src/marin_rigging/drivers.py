"""The driver: takes a job from the claim of its directory to its last record, and answers for its ranks meanwhile.

Invariant: whatever ends the driver's wait (the gang's end, an interrupt, an error) leaves no rank behind; whatever
short of the driver's own sudden death ends it leaves a final record.
"""

import contextlib
from collections.abc import Callable

from marin_rigging.fleet import Job, Pool
from marin_rigging.gangs import GangExit
from marin_rigging.jobs import JobRecord, JobStore
from marin_rigging.logs import Follower
from marin_rigging.providers import local

FOLLOW_S = 0.1
"""How often logs are looked at; it delays their display and nothing else."""

Output = Callable[[int, str], None]
"""Receives a rank's number and one line of what it wrote."""


def run_job(
    job: Job,
    pool: Pool,
    *,
    store: JobStore,
    output: Output | None = None,
    grace_s: float = local.GRACE_S,
) -> JobRecord:
    """Run a job on a pool of this machine and wait for its end.

    An interrupt (KeyboardInterrupt, hence also what a signal handler makes of SIGTERM) stops the ranks with
    ``grace_s`` to finish; a second one kills them.

    Args:
        job: what to run.
        pool: where; its provider is ``local``.
        store: where logs and the record go.
        output: receives every line that a rank writes.
        grace_s: seconds between SIGTERM and SIGKILL.

    Returns:
        The final record.

    Raises:
        CommandError: the program or working directory is not there; nothing was started and no record kept.
        JobError: the store cannot be written.
    """
    environment = dict(job.env)
    local.check(job.command, cwd=job.cwd, env=environment, grace_s=grace_s)
    record = store.create(job, pool)
    try:
        gang = local.start(
            job.command,
            job=record.id,
            num_ranks=record.num_ranks,
            log_dir=store.log_dir(record),
            attempt=record.attempt,
            env=environment,
            cwd=job.cwd,
            grace_s=grace_s,
        )
    except BaseException as error:
        store.finish(record, state="failed", summary=f"could not be started: {error}")
        raise
    ended: GangExit | None = None
    follower = Follower(gang.logs)
    try:
        with gang, contextlib.suppress(KeyboardInterrupt):
            try:
                ended = _wait(gang, follower, output)
            except KeyboardInterrupt:
                ended = gang.stop()
            _hand_on(follower, output, last=True)
    finally:
        ended = ended or gang.kill()
        record = store.finish(record, state=ended.state, summary=ended.describe(), exits=ended.exits)
    return record


def _wait(gang: local.LocalGang, follower: Follower, output: Output | None) -> GangExit:
    """Wait for the gang's end, handing on lines as they come."""
    if output is None:
        return gang.wait()
    while (ended := gang.poll(FOLLOW_S)) is None:
        _hand_on(follower, output, last=False)
    return ended


def _hand_on(follower: Follower, output: Output | None, *, last: bool) -> None:
    if output is not None:
        for rank, line in follower.lines(last=last):
            output(rank, line)
